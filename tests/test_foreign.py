"""foreign: the payload Laravel's worker reads, what is refused, and where it may go."""

from __future__ import annotations

import enum
import json
import logging
import time
import uuid
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qframe import (
    Exponential,
    InvalidJob,
    PayloadTooLarge,
    Queueable,
    QueueManager,
    Unsupported,
    bulk,
    dispatch,
    dispatch_if,
    dispatch_sync,
    dispatch_unless,
    events,
    foreign,
    manager,
)
from qframe.connection import Connection
from qframe.contracts import Sizes
from qframe.jobs.foreign import Foreign
from qframe.payload import envelope
from tests.support.process import Project

IMPORT = "App\\Handlers\\Import@handle"


class Ours(Queueable):
    def handle(self) -> None: ...


class OursNow(Queueable):
    connection = "sync"

    def handle(self) -> None:
        _ran.append(self)


_ran: list[OursNow] = []


@pytest.fixture
def queue(fresh: Path) -> Connection:
    """Give the default connection; `other` is a second database."""
    other = {"driver": "database", "url": "sqlite:///other.sqlite3"}
    manager.use(QueueManager({"root": str(fresh), "connections": {"other": other}}))
    _ran.clear()
    return manager.default().connection()


def wire(job: Foreign) -> str:
    return envelope.encode(envelope.create(job)).decode()


# -- the wire -----------------------------------------------------------------------------------


def test_the_payload_is_laravels_key_by_key_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1724234567.75)
    job = foreign(
        IMPORT, {"id": 7}, tries=5, max_exceptions=3, backoff=(1, 5, 10), timeout=60,
        fail_on_timeout=True, retry_until=60,
    )  # fmt: skip
    message = envelope.create(job)
    identity = uuid.UUID(message["uuid"])
    assert (identity.version, identity.variant) == (7, uuid.RFC_4122)
    assert envelope.encode(message).decode() == (
        f'{{"uuid":"{identity}",'
        r'"displayName":"App\\Handlers\\Import","job":"App\\Handlers\\Import@handle",'
        '"maxTries":5,"maxExceptions":3,"failOnTimeout":true,"backoff":"1,5,10",'
        '"timeout":60,"retryUntil":1724234628,"data":{"id":7},"createdAt":1724234567,'
        f'"id":"{identity}","attempts":0,"delay":null}}'
    )


def test_what_is_not_said_is_left_to_laravels_worker() -> None:
    message = envelope.create(foreign(IMPORT, {}))
    absent = ("maxTries", "maxExceptions", "backoff", "timeout", "retryUntil", "delay")
    assert [message[key] for key in absent] == [None] * 6
    assert message["failOnTimeout"] is False
    assert message.keys().isdisjoint({"tags", "expiresAt"})


def test_each_has_an_id_of_its_own_for_every_push() -> None:
    job = foreign(IMPORT, {})
    assert envelope.create(job)["id"] != envelope.create(job)["id"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (IMPORT, "App\\Handlers\\Import"),
        ("App\\Handlers\\Import", "App\\Handlers\\Import"),
        ("import", "import"),
        ("app.jobs.Shared@fire", "app.jobs.Shared"),
        ("Bücher@größe", "Bücher"),
    ],
)
def test_the_name_goes_as_it_is_and_is_shown_without_the_method(name: str, shown: str) -> None:
    message = envelope.create(foreign(name, {}))
    assert (message["job"], message["displayName"]) == (name, shown)


def test_names_and_tags_for_people() -> None:
    message = envelope.create(foreign(IMPORT, {}, display_name="Import 7", tags=["import", "id:7"]))
    assert message["displayName"] == "Import 7"
    assert message["tags"] == ["import", "id:7"]


@pytest.mark.parametrize(
    "data",
    [
        {"id": 7},
        [1, "two", None, True, 2.5],
        "text",
        "",
        7,
        0.1,
        False,
        None,
        {},
        [],
        {"a": {"b": [{"c": []}]}, "": {"ключ": "日本語 \U0001f600", "nul": "\0", "quote": '"\\/'}},
        {"least": -(2**63), "most": 2**63 - 1},
    ],
)
def test_any_json_value_is_sent_as_it_is(data: Any) -> None:
    assert json.loads(wire(foreign(IMPORT, data)))["data"] == data


def test_without_data_php_gets_an_empty_array() -> None:
    assert '"data":[],' in wire(foreign(IMPORT))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(
        st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@given(JSON)
def test_what_json_has_arrives(data: Any) -> None:
    assert repr(json.loads(wire(foreign(IMPORT, data)))["data"]) == repr(data)


def test_tuples_and_kinds_of_dicts_and_lists_are_arrays_in_php() -> None:
    point = namedtuple("point", "x y")  # noqa: PYI024 (its tuple is what is tried)
    data = {"tuple": (1, 2), "named": point(3, 4), "ordered": OrderedDict(a=1)}
    assert '"data":{"tuple":[1,2],"named":[3,4],"ordered":{"a":1}}' in wire(foreign(IMPORT, data))


def test_the_data_is_what_it_was_when_the_job_was_made() -> None:
    inner = [1]
    data = {"list": inner}
    job = foreign(IMPORT, data)
    inner.append(2)
    data["more"] = inner
    assert job.data == {"list": [1]}
    assert '"data":{"list":[1]}' in wire(job)


# -- what is refused ----------------------------------------------------------------------------


class Colour(enum.StrEnum):
    RED = "red"


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (float("nan"), "data is nan, which is no number in JSON"),
        ({"a": [0.5, float("inf")]}, "data.a.1 is inf, which is no number in JSON"),
        ({"a": {7: "x"}}, "data.a has a key that is a int; JSON's are text"),
        ({None: 1}, "data has a key that is a NoneType"),
        ({Colour.RED: 1}, "data has a key that is a Colour"),
        ({"a": {1, 2}}, "data.a is a set; give what JSON has"),
        ({"a": b"x"}, "data.a is a bytes"),
        ({"a": date(2026, 1, 1)}, "data.a is a date"),
        ({"a": Decimal("0.1")}, "data.a is a Decimal"),
        ({"a": uuid.UUID(int=1)}, "data.a is a UUID"),
        ({"a": Colour.RED}, "data.a is a Colour"),
        ({"a": object()}, "data.a is a object"),
        (Ours(), "data is a Ours"),
        ({"a": "\ud800"}, "data.a holds a lone surrogate"),
        ({"a": {"\udfff": 1}}, "data.a holds a lone surrogate"),
        ({"a": 2**63}, "data.a is an integer beyond the 64 bits PHP has; give text"),
        ({"a": -(2**63) - 1}, "data.a is an integer beyond the 64 bits PHP has"),
        ({"a": 10**5000}, "data.a is an integer beyond the 64 bits PHP has"),
        (_deep(511), "the data is nested deeper than PHP reads"),
        (_endless(), "the data is nested deeper than PHP reads"),
        ({"a\x1b[31m\nb": {1}}, r"data.a\x1b[31m b is a set"),
    ],
)
def test_data_that_would_not_arrive_is_refused_naming_its_place(data: Any, message: str) -> None:
    with pytest.raises(InvalidJob) as raised:
        foreign(IMPORT, data)
    assert str(raised.value).startswith(f"App\\Handlers\\Import@handle: {message}")
    assert str(raised.value).isprintable()


def test_the_deepest_data_php_reads_can_be_sent() -> None:
    assert wire(foreign(IMPORT, _deep(510))).count("[") == 510


@pytest.mark.parametrize(
    "name",
    ["", "@handle", "App\\Import@", "A@b@c", "A@not-a-method", "App\\X y", "App\new", "App\x00",
     "\ud800", "App\ttasks", " App"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_on_one_line(name: str) -> None:
    with pytest.raises(InvalidJob, match="is no name of a job") as raised:
        foreign(name, {})
    assert str(raised.value).isprintable()


def test_a_name_spoilt_by_an_escape_is_told_how_to_be_written() -> None:
    with pytest.raises(InvalidJob, match=r"write its backslashes as \\\\, or the text as r'...'"):
        foreign("App\notify", {})


@pytest.mark.parametrize("name", [None, 7, Ours, b"App\\Import"])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(InvalidJob, match="a foreign job's name is text, not"):
        foreign(name, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tries": -1}, "tries must be a whole number from 0 to 1,000,000, not -1"),
        ({"tries": True}, "tries must be a whole number"),
        ({"max_exceptions": 0}, "max_exceptions must be a whole number from 1 to"),
        ({"timeout": 1.5}, "timeout must be whole seconds for PHP, not 1.5"),
        ({"timeout": -1}, "timeout must be seconds, from 0 to 100 years, not -1"),
        ({"backoff": 0.5}, "backoff must be whole seconds for PHP, not 0.5"),
        ({"backoff": (1, 2.5)}, "backoff must be whole seconds for PHP, not 2.5"),
        (
            {"backoff": Exponential(1, factor=1.5)},
            "backoff must be whole seconds for PHP, not 1.5",
        ),
        ({"backoff": []}, "backoff must be seconds, a sequence of seconds"),
        ({"backoff": lambda: 1}, "backoff cannot be a function: PHP could not call it"),
        ({"retry_until": datetime(2030, 1, 1)}, "retry_until must be seconds, a timedelta"),  # noqa: DTZ001
        ({"delay": -1}, "delay must be seconds, a timedelta or an aware datetime"),
        ({"delay": None}, "delay must be seconds, a timedelta or an aware datetime"),
        ({"queue": "a b"}, "queue: 'a b' is not a queue name"),
        ({"fail_on_timeout": 1}, "fail_on_timeout must be True or False"),
        ({"tags": "one"}, "tags must be a list of names"),
        ({"display_name": ""}, "display_name must be a name"),
        ({"try": 5}, "Laravel's jobs have no option 'try' (did you mean 'tries'?)"),
        ({"expires": 5}, "Laravel's jobs have no option 'expires'"),
        ({"job_name": "x"}, "Laravel's jobs have no option 'job_name'"),
    ],
)
def test_a_wrong_option_is_refused(options: Any, message: str) -> None:
    with pytest.raises(InvalidJob) as raised:
        foreign(IMPORT, {}, **options)
    assert message in str(raised.value)
    assert str(raised.value).startswith("App\\Handlers\\Import@handle")


def test_an_exponential_is_written_as_its_delays() -> None:
    message = envelope.create(foreign(IMPORT, {}, backoff=Exponential(5, most=60)))
    assert message["backoff"] == "5,10,20,40,60"


def test_whole_floats_and_none_are_fine() -> None:
    job = foreign(IMPORT, {}, timeout=60.0, backoff=[1.0, 2], tries=None, connection=None)  # type: ignore[arg-type, list-item]
    message = envelope.create(job)
    assert (message["timeout"], message["backoff"]) == (60, "1,2")
    assert '"timeout":60,' in wire(job)


@pytest.mark.parametrize("kind", ["timedelta", "seconds", "moment"])
def test_retry_until_is_whole_seconds_counted_from_the_dispatch(kind: str) -> None:
    hour, began = timedelta(hours=1), time.time()
    until: dict[str, Any] = {
        "timedelta": hour,
        "seconds": 3600,
        "moment": datetime.now(UTC) + hour,
    }
    deadline = envelope.create(foreign(IMPORT, {}, retry_until=until[kind]))["retryUntil"]
    assert isinstance(deadline, int)
    assert began + 3599 < deadline < time.time() + 3602


# -- what Lua rounds ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [10**14, -(10**14), 2**53, 123456789012345, 0.1 + 0.2, 1e300 / 3]
)
def test_a_number_with_too_many_digits_for_lua_is_warned_of_once(
    number: float, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"App\\Rounds{number}"
    for _ in range(2):
        foreign(name, {"list": [1, number, number]})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{name}: data.list.1 has more digits than the 14 that Laravel's "
        "Redis driver keeps when it tries a job again; send it as text"
    )


@pytest.mark.parametrize("number", [10**14 - 1, -(10**14) + 1, 0.1, 1.5e300, 0.0, True])
def test_what_lua_carries_is_not_warned_of(number: float, caplog: pytest.LogCaptureFixture) -> None:
    foreign(f"App\\Keeps{number}", {"number": number})
    assert caplog.records == []


# -- for Celery ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("shop.add", [], {"wire": "php"}, "wire is 'laravel' or 'celery', not 'php'"),
        ("shop.add", [], {"wire": []}, "wire is 'laravel' or 'celery'"),
        ("shop.add", [], {"wire": "celery", "tries": 3}, "tries is set on Celery's task"),
        ("shop.add", [], {"priority": 3, "wire": "celery"}, "priority is set on Celery's task"),
        ("shop.add", [], {"wire": "celery", "group": "a"}, "groups are for jobs that qframe runs"),
        ("shop.add", "text", {"wire": "celery"}, "named in a dict or positional in a list"),
        ("shop.add@handle", [], {"wire": "celery"}, "is no name of a task"),
        ("shop.add", [{1}], {"wire": "celery"}, "data.0 is a set"),
    ],
)
def test_what_celery_cannot_be_told_is_refused(
    name: str, data: Any, options: Any, message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        foreign(name, data, **options)


def test_a_task_of_celery_goes_to_rabbitmq_alone(queue: Connection) -> None:
    job = foreign("shop.add", [1, 2], wire="celery", expires=60)
    for push in (lambda: dispatch(job).send(), lambda: queue.bulk([job]), lambda: queue.push(job)):
        with pytest.raises(Unsupported, match="is for Celery's workers, and the conn"):
            push()
    assert queue.sizes() == Sizes()


# -- dispatching --------------------------------------------------------------------------------


def sent(queue: Connection, name: str = "default") -> list[Any]:
    return [job.payload["data"] for job in queue.reserve([name], 100)]


def test_it_is_dispatched_like_a_job_of_ours(queue: Connection) -> None:
    identity = dispatch(foreign(IMPORT, {"id": 7})).on_connection("other").on_queue("php").send()
    (job,) = manager.default().connection("other").reserve(["php"])
    assert (job.uuid, job.payload["id"], job.name) == (identity, identity, "App\\Handlers\\Import")
    assert job.payload["data"] == {"id": 7}


def test_its_options_say_where_it_goes_unless_the_dispatch_does(queue: Connection) -> None:
    job = foreign(IMPORT, {}, connection="other", queue="php", delay=timedelta(minutes=1))
    dispatch(job).send()
    dispatch(job).on_connection("database").on_queue("high").delay(0).send()
    assert manager.default().connection("other").sizes("php") == Sizes(delayed=1)
    assert queue.sizes("high") == Sizes(ready=1)


def test_a_delay_is_not_in_the_payload_where_laravel_takes_it_for_a_backoff(
    queue: Connection,
) -> None:
    queue.later(0.001, foreign(IMPORT, {}))
    dispatch(Ours()).delay(0.001).send()
    time.sleep(0.002)  # both are due
    theirs, ours = queue.reserve(["default"], 2)
    assert (theirs.payload["delay"], ours.payload["delay"]) == (None, 0.001)


def test_the_other_ways_to_dispatch(queue: Connection) -> None:
    dispatch(foreign(IMPORT, "dropped"))
    dispatch_unless(0, foreign(IMPORT, "unless"))
    assert dispatch_if(0, foreign(IMPORT, "if")) is None
    queue.push(foreign(IMPORT, "pushed"))
    queue.bulk([foreign(IMPORT, "bulk")])
    assert sent(queue) == ["dropped", "unless", "pushed", "bulk"]


def test_bulk_takes_it_among_jobs_of_ours(queue: Connection) -> None:
    jobs: list[Any] = [
        foreign(IMPORT, 1),
        Ours(),
        foreign(IMPORT, 2, queue="php"),
        foreign(IMPORT, 3),
    ]
    ids = bulk(jobs)
    assert len(set(ids)) == 4
    assert [job.uuid for job in queue.reserve(["default"], 9)] == [ids[0], ids[1], ids[3]]
    assert sent(queue, "php") == [2]


def test_listeners_hear_of_it_and_may_add_keys(queue: Connection) -> None:
    heard: list[Any] = []

    @events.listen(events.JobQueueing)
    def add(event: events.JobQueueing) -> None:
        event.payload["trace"] = event.job.name
        heard.append(event.job)

    @events.listen(events.JobQueued)
    def keep(event: events.JobQueued) -> None:
        heard.append(event.payload["trace"])

    job = foreign(IMPORT, {})
    dispatch(job).send()
    assert heard == [job, IMPORT]
    (reserved,) = queue.reserve(["default"])
    assert reserved.payload["trace"] == IMPORT


def test_it_shows_what_it_is(queue: Connection) -> None:
    assert repr(foreign(IMPORT, {"password": "x"})) == f"<foreign {IMPORT}>"
    pending = dispatch(foreign(IMPORT, {}))
    assert repr(pending) == "<PendingDispatch App\\Handlers\\Import pending>"


def test_one_that_is_too_large_is_refused(queue: Connection) -> None:
    with pytest.raises(PayloadTooLarge):
        dispatch(foreign(IMPORT, "x" * 2_000_000))


# -- where it cannot run ------------------------------------------------------------------------

NOT_HERE = r"'sync' \(sync\) runs jobs in this process and App\\Handlers\\Import@handle is a job of"


def test_the_sync_connection_refuses_it_when_it_would_run(queue: Connection) -> None:
    job = foreign(IMPORT, {}, connection="sync")
    with pytest.raises(Unsupported, match=NOT_HERE):
        dispatch(job).send()
    with pytest.raises(Unsupported, match=NOT_HERE):
        dispatch_sync(job)
    with pytest.raises(Unsupported, match=NOT_HERE):
        manager.default().connection("sync").push(job)
    dispatch(job).on_connection("database").send()
    assert queue.sizes() == Sizes(ready=1)


def test_the_sync_connection_runs_nothing_of_a_bulk_with_one(queue: Connection) -> None:
    with pytest.raises(Unsupported, match=NOT_HERE):
        bulk([OursNow(), foreign(IMPORT, {}, connection="sync")])
    assert _ran == []


def test_a_python_worker_fails_one_as_unknown(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        for method in ("", "@handle", "@fire"):
            project.queue.push(foreign(f"App\\Handlers\\Import{method}", {"id": 7}))
        project.drain("--tries", 5)
        for record in project.failed():
            assert "UnknownJob: App\\Handlers\\Import is not a job of this project" in (
                record.exception
            )
            assert json.loads(record.payload)["data"] == {"id": 7}
        assert len(project.failed()) == 3
