"""Who may write anything a store keeps, and has no signing key, has nothing of their own run."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import Flow, Queueable, QueueManager, batch, chain, dispatch, events, manager
from qframe.connection import Connection
from qframe.contracts.backend import Health
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Arrive, Push, Record, Release, Set, Step
from qframe.drivers import ordered
from qframe.exceptions import ConfigurationError, InvalidSignature
from qframe.failed.retry import retry
from qframe.features.chain import CAUSE
from qframe.operations import schedules as operations
from qframe.operations.planned import PlannedSchedules
from qframe.operations.unsafe import of_connection
from qframe.payload import signature
from qframe.payload.encryption import new_key
from qframe.schedules.definition import book
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.runs import RunMaker
from qframe.schedules.scheduler import Scheduler
from qframe.schedules.schedulers import Schedulers
from qframe.testing import drain
from tests.support.redis_server import RedisServer

KEY, OLD, THEIRS = ("a signing key of these tests", "the one before that", "not the signing key")
ENCRYPTION = new_key()
RAN: list[str] = []
CAUSES: list[dict[str, str]] = []
MODULE = "tests.test_forged"


class Note(Queueable):
    """A job that says it ran."""

    job_name = f"{MODULE}.Note"
    name: str

    def handle(self) -> None:
        RAN.append(self.name)


class Names(Queueable):
    """A job with a list as its result."""

    job_name = f"{MODULE}.Names"

    def handle(self) -> list[str]:
        return ["honest"]


class Boom(Note):
    job_name = f"{MODULE}.Boom"
    tries = 1

    def handle(self) -> None:
        raise ValueError("honestly")


class Sorry(Note):
    """What follows a failure, and is told of it."""

    job_name = f"{MODULE}.Sorry"

    def handle(self) -> None:
        super().handle()
        CAUSES.append(self.job.payload[CAUSE])


class Hidden(Note):
    job_name = f"{MODULE}.Hidden"
    encrypted = True


@pytest.fixture(params=["memory", "sqlite", "redis", "apart"])
def place(
    request: pytest.FixtureRequest, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Give settings; `apart` has messages in one database, all else in another."""
    RAN.clear()
    CAUSES.clear()
    monkeypatch.setattr(book, "schedules", [], raising=False)
    url = f"sqlite:///{fresh}/jobs.sqlite3"
    connections: dict[str, Any] = {"jobs": {"driver": "database", "url": url}}
    made: dict[str, Any] = {"default": "jobs", "connections": connections, "jobs": [MODULE]}
    if request.param == "memory":
        connections["jobs"] = {"driver": "memory"}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_running")
        server.command("FLUSHALL")
        connections["jobs"] = {"driver": "redis", "url": server.url}
    if request.param == "apart":
        connections["kept"] = {"driver": "database", "url": f"sqlite:///{fresh}/kept.sqlite3"}
        made |= {"store": {"driver": "kept"}, "failed": {"driver": "kept"}}
    return made | {"signing_keys": [KEY], "encryption_keys": [ENCRYPTION]}


def used(settings: dict[str, Any], **more: Any) -> Connection:
    """Use a configuration, as a process of its own would."""
    before = manager.current()
    made = QueueManager({**settings, **more})
    if settings["connections"]["jobs"]["driver"] == "memory" and before is not None:
        made._backends.update(before._backends)
    manager.use(made)
    return made.connection()


@pytest.fixture
def queue(place: dict[str, Any]) -> Connection:
    return used(place)


@pytest.fixture
def refused() -> Iterator[list[events.StoredRefused]]:
    """Give what listeners hear of refusals."""
    heard: list[events.StoredRefused] = []
    with events.kept():
        events.listen(events.StoredRefused)(heard.append)
        yield heard


def forge(queue: Connection, key: str, text: str) -> None:
    (result,) = queue.backend.apply(Step(None, Set(key, text)))
    assert result.applied


def facts(queue: Connection, prefix: str) -> dict[str, str]:
    return dict(queue.store.items(prefix))


def link_of(queue: Connection, number: int = 0) -> tuple[str, str]:
    """Give a link of the one chain, in the order of their jobs' names."""
    links = [
        (key, text)
        for key, text in facts(queue, "chain:").items()
        if key.count(":") == 2 and not key.endswith(":catch")
    ]
    return sorted(links, key=lambda each: json.loads(inside(each[1])["raw"])["data"]["name"])[
        number
    ]


def inside(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(signature.unsealed(text))
    return found


def changed(**fields: Any) -> Callable[[str], str]:
    """Change what a signed text says, and leave its signature."""

    def change(text: str) -> str:
        after = json.dumps({**inside(text), **fields}, separators=(",", ":"))
        return text.replace(signature.unsealed(text), after)

    return change


def with_raw(**fields: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        return changed(raw=json.dumps({**json.loads(inside(text)["raw"]), **fields}))(text)

    return change


def signed_by_another(text: str) -> str:
    return signature.Signer([THEIRS]).sealed("chain:x", signature.unsealed(text))


FORGERIES: dict[str, Callable[[str], str]] = {
    "unsigned": signature.unsealed,
    "within": changed(within={"timeout": 1.0, "maxTries": 99.0}),
    "queue": changed(queue="other"),
    "delay": changed(delay=0.0001),
    "uuid": changed(uuid="another"),
    "arguments": with_raw(data={"name": "evil"}),
    "job": with_raw(job=f"{MODULE}.Boom"),
    "another's key": signed_by_another,
    "no JSON": lambda _: "{",
    "no job": lambda _: '{"signature":"' + "0" * 64 + '","kept":7}',
    "empty": lambda _: "",
    "a delay that is none": changed(delay="soon"),
}


def run() -> None:
    drain("jobs")


def run_one() -> None:
    with contextlib.suppress(AssertionError):  # there are others
        drain("jobs", at_most=1)


def told(queue: Connection) -> list[str]:
    return [record.name for record in queue.failed.all()]


# -- chains ---------------------------------------------------------------------------------------


def one_chain() -> None:
    links = [Note(name="a"), Note(name="b"), Note(name="c")]
    chain(links).catch(Sorry(name="sorry")).dispatch()


def test_a_chain_runs_as_it_was_signed(queue: Connection) -> None:
    one_chain()
    run()
    assert RAN == ["a", "b", "c"]
    assert facts(queue, "chain:") == {}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_link_that_was_changed_ends_its_chain_as_failed(
    queue: Connection,
    refused: list[events.StoredRefused],
    forgery: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one_chain()
    key, text = link_of(queue)
    forged = FORGERIES[forgery](text)
    forge(queue, key, forged)
    with caplog.at_level(logging.ERROR):
        run()
    assert RAN == ["a", "sorry"]
    assert [each.key for each in refused] == [key]
    assert "the link behind" in caplog.text
    assert "is refused" in caplog.text
    assert facts(queue, key) == {key: forged}
    (record,) = queue.failed.all()
    assert (record.name, record.payload) == ("(refused)", forged.encode())
    assert CAUSES[0]["uuid"] == record.uuid
    retried = InvalidSignature if forgery not in {"no JSON", "empty"} else Exception
    with pytest.raises(retried):
        retry(manager.default(), queue.failed, record)
    assert RAN == ["a", "sorry"]


def test_links_cannot_change_places_nor_go_to_another_chain(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    one_chain()
    (first, _), (_, second) = link_of(queue), link_of(queue, 1)
    forge(queue, first, second)
    run()
    assert RAN == ["a", "sorry"]
    assert len(refused) == 1


def test_what_waits_in_a_chain_is_of_no_use_in_a_queue(queue: Connection) -> None:
    one_chain()
    queue.backend.purge("default")
    for text in (link_of(queue)[1], inside(link_of(queue)[1])["raw"]):
        queue.push_raw(text)
    run()
    assert RAN == []
    assert told(queue) == ["(refused)", "(refused)"]


def test_what_was_signed_for_a_queue_is_no_link(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    one_chain()
    key, text = link_of(queue)
    dispatch(Note(name="seen")).on_queue("other").send()
    (message,) = queue.reserve(["other"])
    message.delete()
    forge(queue, key, json.dumps({**inside(text), "raw": message.raw_body.decode()}))
    run()
    assert RAN == ["a", "sorry"]
    assert refused


def test_what_catches_a_failure_is_not_another(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    chain([Boom(name="a"), Note(name="b")]).catch(Sorry(name="sorry")).dispatch()
    (key,) = [each for each in facts(queue, "chain:") if each.endswith(":catch")]
    forge(queue, key, facts(queue, key)[key].replace("sorry", "angry"))
    run()
    assert RAN == []
    assert [each.key for each in refused] == [key]
    assert sorted(told(queue)) == ["(refused)", f"{MODULE}.Boom"]


@pytest.mark.parametrize("field", ["at", "last"])
@pytest.mark.parametrize("place_of", [0, 1, "catch", "none"])
def test_a_forged_position_of_a_chain_runs_nothing_but_its_own_links(
    queue: Connection, field: str, place_of: int | str
) -> None:
    one_chain()
    (key,) = [each for each in facts(queue, "chain:") if each.count(":") == 1]
    uuid = place_of if isinstance(place_of, str) else inside(link_of(queue, place_of)[1])["uuid"]
    head = json.loads(facts(queue, key)[key])
    forge(queue, key, json.dumps({**head, field: uuid}))
    run()
    run()
    assert {*RAN} <= {"a", "b", "c", "sorry"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at":1,"last":"","delays":0}', "nonsense"])
def test_a_chain_of_which_nothing_can_be_read_fails(
    queue: Connection, refused: list[events.StoredRefused], text: str
) -> None:
    one_chain()
    (key,) = [each for each in facts(queue, "chain:") if each.count(":") == 1]
    forge(queue, key, text)
    run()
    assert RAN == ["a", "sorry"]
    assert [each.key for each in refused] == [key]


@pytest.mark.parametrize("text", ["[]", "null", "{}", "[[]]"])
def test_a_link_of_which_nothing_can_be_read_is_refused_without_a_key_as_well(
    place: dict[str, Any], refused: list[events.StoredRefused], text: str
) -> None:
    queue = used({key: value for key, value in place.items() if key != "signing_keys"})
    one_chain()
    key, _ = link_of(queue)
    forge(queue, key, text)
    run()
    assert RAN == ["a", "sorry"]
    assert [each.key for each in refused] == [key]


def test_a_member_whose_chain_is_refused_has_failed(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    made = batch([[Note(name="a"), Note(name="b")]]).catch(Sorry(name="sorry")).dispatch()
    key, text = link_of(queue)
    forge(queue, key, text.replace('"b', '"e'))
    run()
    assert RAN == ["a", "sorry"]
    assert (made.fresh().failed, made.fresh().is_finished) == (1, True)
    assert "was refused" in CAUSES[0]["error"]
    assert len(refused) == 1


# -- batches --------------------------------------------------------------------------------------


def batch_fact(queue: Connection) -> tuple[str, str]:
    (found,) = [each for each in facts(queue, "batch:").items() if each[0].count(":") == 1]
    return found


@pytest.mark.parametrize(
    "forgery",
    [
        lambda text: text.replace("then ran", "evil ran"),
        lambda text: text.replace("then ran", "then ran\\\\u0000"),
        lambda text: json.dumps(
            {k: v for k, v in json.loads(text).items() if k != "about"}
            | json.loads(signature.unsealed(json.loads(text)["about"]))
        ),
        lambda text: json.dumps({**json.loads(text), "about": 7}),
        lambda text: json.dumps({**json.loads(text), "about": '{"options":{}}'}),
    ],
)
def test_what_follows_a_batch_is_not_another(
    queue: Connection, refused: list[events.StoredRefused], forgery: Callable[[str], str]
) -> None:
    made = batch([Note(name="a")]).then(Note(name="then ran")).dispatch()
    key, text = batch_fact(queue)
    forged = forgery(text)
    assert forged != text
    forge(queue, key, forged)
    run()
    assert RAN == ["a"]
    assert [each.key for each in refused] == [key]
    assert told(queue) == ["batch: what follows"]
    assert facts(queue, key)[key] == forged
    assert made.fresh().name == "(refused)"
    with pytest.raises(InvalidSignature):
        made.fresh().add(Note(name="more"))
    forge(queue, key, text)  # put right, a retry goes on
    retry(manager.default(), queue.failed, next(iter(queue.failed.all())))
    run()
    assert RAN == ["a", "then ran"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"options":7}', "nonsense"])
def test_a_batch_of_which_nothing_can_be_read_is_refused(
    queue: Connection, refused: list[events.StoredRefused], text: str
) -> None:
    made = batch([Note(name="a")]).then(Note(name="then")).dispatch()
    key, _ = batch_fact(queue)
    forge(queue, key, text)
    run()
    assert RAN == ["a"]
    assert told(queue) == ["batch: what follows"]
    assert [each.key for each in refused] == [key]
    assert made.fresh().name == "(refused)"


def test_a_batch_of_another_id_is_of_no_use(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    batch([Note(name="a")]).then(Note(name="first")).dispatch()
    _, text = batch_fact(queue)
    queue.backend.purge("default")
    other = batch([Note(name="b")]).then(Note(name="second")).dispatch()
    forge(queue, f"batch:{other.id}", text)
    run()
    assert RAN == ["b"]
    assert len(refused) == 1


def test_forged_counts_of_a_batch_run_nothing_but_what_was_signed(queue: Connection) -> None:
    made = batch([Boom(name="a"), Note(name="b")]).then(Note(name="then")).catch(Sorry(name="c"))
    made.allow_failures().finally_(Note(name="finally")).dispatch()
    key, text = batch_fact(queue)
    forged = {"name": "evil", "allows_failures": False, "options": {"follow": {"then": [{}]}}}
    more = {"notified": [], "notified_progress": -1}
    forge(queue, key, json.dumps({**json.loads(text), **forged, **more}))
    arrivals = [Arrive(key, number, False, "") for number in range(2)]
    queue.backend.apply(Step(None, *arrivals))
    run()
    assert {*RAN} == {"b", "then", "finally"}, "early, and although one fails: as it was signed"


def test_callbacks_are_told_what_was_signed_of_a_failure(queue: Connection) -> None:
    made = (
        batch([Boom(name="a"), Note(name="b")]).allow_failures().catch(Sorry(name="c")).dispatch()
    )
    run_one()
    (record,) = queue.failed.all()
    forged = FailedJob(
        record.uuid, "jobs", "default", record.payload, "Evil: pay me", "evil", 1, History(), 1.0
    )
    queue.backend.apply(Step(None, Record(forged)))
    run()
    assert [
        {"uuid": record.uuid, "name": f"{MODULE}.Boom", "error": "ValueError: honestly"}
    ] == CAUSES
    assert made.fresh().failed == 1


def test_a_batch_in_a_chain_goes_on_as_it_was_signed(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    inner = batch([Note(name="a"), [Note(name="b"), Note(name="b2")]]).then(Note(name="then"))
    chain([Note(name="first"), inner, Note(name="last")]).dispatch()
    run()
    assert sorted(RAN) == ["a", "b", "b2", "first", "last", "then"]
    assert refused == []
    assert told(queue) == []


def test_the_members_of_a_batch_in_a_chain_are_no_messages(queue: Connection) -> None:
    chain([batch([Note(name="a")]), Note(name="last")]).dispatch()
    (job,) = queue.reserve(["default"])
    ((member,), *_) = [each["links"] for each in json.loads(job.raw_body)["data"]["members"]]
    queue.backend.apply(job.reservation.delete())
    queue.push_raw(member["raw"])
    run()
    assert RAN == []


# -- schedules ------------------------------------------------------------------------------------


def scheduler(queue: Connection) -> Scheduler:
    made = Schedulers(manager.default(), [queue]).scheduler(queue)
    made.turn()
    return made


ROW = ScheduleRow(job=f"{MODULE}.Note", data={"name": "planned"}, when="every 1s")


def dispatched(queue: Connection, seconds: float = 3.0) -> int:
    """Let time pass on a scheduler, and give how many runs it dispatched."""
    shift = [0.0]
    made = Schedulers(manager.default(), [queue], clock=lambda: time.time() + shift[0])
    one = made.scheduler(queue)
    one.turn()
    for _ in range(4):
        shift[0] += seconds / 3
        one.turn()
    return one.dispatched


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", '"x"', "1e999", "[" * 3000, '{"a":' * 3000, '{"at": "nan", "n": 0}',
        '{"at": 1e300, "n": 1}', '{"at": -62135596900, "n": 1}', '{"at": 0, "n": 1e300}',
        '{"at": 1, "n": 1, "runs": [["x", [], {}, null, 5]]}', '{"at": 1, "n": 1, "skip": [{}, 1]}',
        '{"at": 1, "n": 1, "open": ["{}", "q"]}',
    ],
)  # fmt: skip
def test_a_track_of_which_nothing_can_be_read_holds_no_schedule_up(
    queue: Connection, text: str
) -> None:
    rows = ScheduleRows(manager.default())
    rows.add(queue, "nightly", ROW)
    rows.add(queue, "other", ROW)
    scheduler(queue)
    forge(queue, keys_of(manager.default(), queue).progress("nightly"), text)
    assert dispatched(queue) > 3
    states = PlannedSchedules(manager.default()).states()
    assert {each.name for each in states} == {"nightly", "other"}


def test_a_row_that_was_signed_is_dispatched(queue: Connection) -> None:
    ScheduleRows(manager.default()).add(queue, "nightly", ROW)
    assert dispatched(queue) > 0
    run()
    assert {*RAN} == {"planned"}


@pytest.mark.parametrize(
    "forgery",
    [
        signature.unsealed,
        changed(data={"name": "evil"}),
        changed(when="every 2s"),
        changed(queue="other"),
        signed_by_another,
        lambda _: "nonsense",
        lambda _: '{"signature":"' + "0" * 64 + '","kept":7}',
    ],
)
def test_a_row_that_was_changed_is_shown_as_refused_and_dispatches_nothing(
    queue: Connection, refused: list[events.StoredRefused], forgery: Callable[[str], str]
) -> None:
    queues = manager.default()
    ScheduleRows(queues).add(queue, "nightly", ROW)
    key = keys_of(queues, queue).row("nightly")
    forged = forgery(facts(queue, key)[key])
    forge(queue, key, forged)
    forge(queue, keys_of(queues, queue).changed(), "now")
    assert dispatched(queue) == 0
    assert [each.key for each in refused] == [key]
    assert facts(queue, key)[key] == forged
    (state,) = PlannedSchedules(queues).states()
    assert "sign" in state.refused
    (unsafe,) = of_connection(queues, queue, Health("memory"))
    assert "the schedule nightly is refused" in unsafe.text
    assert state.next_at is None
    with pytest.raises(ConfigurationError, match="sign"):
        ScheduleRows(queues).change(queue, "nightly", spread=3)
    with pytest.raises(ConfigurationError, match="is refused"):
        PlannedSchedules(queues).run("nightly")
    assert queue.size() == 0


def test_a_row_is_of_no_use_under_another_name(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    queues = manager.default()
    ScheduleRows(queues).add(queue, "nightly", ROW)
    keys = keys_of(queues, queue)
    forge(queue, keys.row("other"), facts(queue, keys.row("nightly"))[keys.row("nightly")])
    ScheduleRows(queues).remove(queue, "nightly")
    assert dispatched(queue) == 0
    assert [each.key for each in refused] == [keys.row("other")]


def test_a_row_of_before_is_signed_by_hand(place: dict[str, Any]) -> None:
    bare = {key: value for key, value in place.items() if key != "signing_keys"}
    queue = used(bare)
    ScheduleRows(manager.default()).add(queue, "nightly", ROW)
    queue = used(place)
    assert dispatched(queue) == 0
    assert ScheduleRows(manager.default()).sign(queue, "nightly") is not None
    assert dispatched(queue) > 0
    assert ScheduleRows(manager.default()).sign(queue, "other") is None


def test_the_data_of_an_encrypted_job_in_a_row_cannot_be_read(queue: Connection) -> None:
    row = ScheduleRow(job=f"{MODULE}.Hidden", data={"name": "hush"}, when="every 1s")
    queues = manager.default()
    ScheduleRows(queues).add(queue, "nightly", row)
    assert "hush" not in str(facts(queue, "schedule:"))
    ScheduleRows(queues).change(queue, "nightly", spread=0)
    assert "hush" not in str(facts(queue, "schedule:"))
    assert dispatched(queue) > 0
    run()
    assert {*RAN} == {"hush"}


@pytest.mark.parametrize("text", ["1", "evil", '{"signature":"' + "0" * 64 + '","kept":1}'])
def test_a_run_that_is_wanted_is_signed(
    queue: Connection, refused: list[events.StoredRefused], text: str
) -> None:
    queues = manager.default()
    ScheduleRows(queues).add(queue, "yearly", ROW.model_copy(update={"when": "yearly"}))
    keys = keys_of(queues, queue)
    forge(queue, keys.requested("yearly"), text)
    forge(queue, keys.changed(), "now")
    scheduler(queue)
    assert queue.size() == 0
    assert [each.key for each in refused] == [keys.requested("yearly")]
    operations.ask(queues, queue, "yearly")
    scheduler(queue)
    assert queue.size() == 1


def test_a_wish_is_of_no_use_later(
    queue: Connection, refused: list[events.StoredRefused], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = manager.default()
    ScheduleRows(queues).add(queue, "yearly", ROW.model_copy(update={"when": "yearly"}))
    key = keys_of(queues, queue).requested("yearly")
    forge(queue, key, queue.context.sealed(key, "1000.0"))
    forge(queue, keys_of(queues, queue).changed(), "now")
    scheduler(queue)
    assert queue.size() == 0
    assert len(refused) == 1


# -- where a step is parts ------------------------------------------------------------------------


def seen(queue: Connection) -> bytes:
    """Give a signed message that somebody has seen and that was taken away."""
    dispatch(Note(name="seen")).on_queue("other").send()
    (job,) = queue.reserve(["other"])
    queue.backend.apply(job.reservation.delete())
    return job.raw_body


@pytest.mark.parametrize("place", ["apart"], indirect=True)
def test_an_outbox_that_was_changed_is_not_sent(
    queue: Connection, refused: list[events.StoredRefused]
) -> None:
    raw = seen(queue)
    dispatch(Note(name="a")).send()
    (job,) = queue.reserve(["default"])
    queue.backend.apply(job.start_plan())
    queue.backend.apply(Step(job.reservation, Release()))
    (job,) = queue.reserve(["default"])
    key = ordered._outbox(job.reservation)
    text = ordered._encoded([Push("other", raw)])
    forge(queue, key, text)
    queue.backend.apply(job.start_plan())
    assert queue.size("other") == 0
    assert [each.key for each in refused] == [f"refused:{key}"]
    assert facts(queue, "refused:") == {f"refused:{key}": text}
    assert facts(queue, "outbox:") == {}


@pytest.mark.parametrize("place", ["apart"], indirect=True)
@pytest.mark.parametrize("way", ["unsigned", "another schedule's"])
def test_a_run_that_a_track_keeps_is_pushed_only_as_it_was_signed(
    queue: Connection, refused: list[events.StoredRefused], way: str
) -> None:
    queues, raw = manager.default(), seen(queue).decode()
    ScheduleRows(queues).add(queue, "yearly", ROW.model_copy(update={"when": "yearly"}))
    shift = [0.0]
    one = Schedulers(queues, [queue], clock=lambda: time.time() + shift[0]).scheduler(queue)
    one.turn()
    key = keys_of(queues, queue).progress("yearly")
    opened: Any = [raw, "other", 0, 0]
    if way != "unsigned":
        other = keys_of(queues, queue).progress("other")
        opened = queue.context.sealed(f"{other}:open", json.dumps(opened))
    forge(queue, key, json.dumps({**json.loads(facts(queue, key)[key]), "open": opened}))
    one = Schedulers(queues, [queue], clock=lambda: time.time() + shift[0]).scheduler(queue)
    for _ in range(5):
        shift[0] += 3
        one.turn()
    assert [each.key for each in refused] == [key]
    assert told(queue) == ["(refused)"]
    assert "open" not in json.loads(facts(queue, key)[key])
    run()
    assert RAN == []


@pytest.mark.parametrize("place", ["apart"], indirect=True)
def test_a_run_whose_push_was_not_made_is_pushed_again(queue: Connection) -> None:
    queues = manager.default()
    ScheduleRows(queues).add(queue, "nightly", ROW)
    shift = [0.0]

    def host() -> Scheduler:
        made = Schedulers(queues, [queue], clock=lambda: time.time() + shift[0]).scheduler(queue)
        made.turn()
        return made

    one = host()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunMaker, "push_pending", lambda _self, made: made.after)
        shift[0] += 1.5
        one.turn()
    assert queue.size() == 0
    ScheduleRows(queues).change(queue, "nightly", when="yearly")
    other = host()
    for _ in range(5):
        shift[0] += 3
        other.turn()
    run()
    assert RAN == ["planned"]


# -- records --------------------------------------------------------------------------------------


def test_a_failed_record_that_nobody_signed_is_not_run(queue: Connection) -> None:
    raw = json.dumps({"uuid": "u", "job": f"{MODULE}.Note", "data": {"name": "evil"}}).encode()
    queues = manager.default()
    for number, payload in enumerate([raw, signature.Signer([THEIRS]).signed(raw, "default")]):
        record = FailedJob(f"u{number}", "jobs", "default", payload, "E: x", "n", 1, History(), 1.0)
        queue.backend.apply(Step(None, Record(record)))
        with pytest.raises(InvalidSignature):
            retry(queues, queue.failed, record)
    assert len(told(queue)) == 2
    run()
    assert RAN == []


# -- keys that come and go ------------------------------------------------------------------------


def test_what_an_older_key_signed_goes_on(place: dict[str, Any]) -> None:
    queue = used(place, signing_keys=[OLD])
    one_chain()
    batch([Note(name="m")]).then(Note(name="then")).dispatch()
    ScheduleRows(manager.default()).add(queue, "nightly", ROW)
    queue = used(place, signing_keys=[KEY, OLD])
    run()
    assert sorted(RAN) == ["a", "b", "c", "m", "then"]
    assert dispatched(queue) > 0
    ScheduleRows(manager.default()).sign(queue, "nightly")
    queue = used(place)
    assert [each.refused for each in ScheduleRows(manager.default()).summaries(queue)] == [""]


def test_while_the_unsigned_is_accepted_it_runs_and_nobody_vouches_for_it(
    place: dict[str, Any],
) -> None:
    bare = {key: value for key, value in place.items() if key != "signing_keys"}
    used(bare)
    one_chain()
    batch([Note(name="m")]).then(Note(name="then")).dispatch()
    queue = used(place, signing="accept-unsigned")
    run_one()
    raws = [each.raw_body for each in queue.reserve(["default"], 10)]
    assert not any(map(signature.is_signed, raws))


def test_nobody_vouches_for_what_an_unsigned_row_runs(place: dict[str, Any]) -> None:
    used({key: value for key, value in place.items() if key != "signing_keys"})
    ScheduleRows(manager.default()).add(manager.default().connection(), "nightly", ROW)
    queue = used(place, signing="accept-unsigned")
    ScheduleRows(manager.default()).change(queue, "nightly", grace=60)
    key = keys_of(manager.default(), queue).row("nightly")
    assert not signature.is_sealed(facts(queue, key)[key])
    assert dispatched(queue) > 0
    raws = [each.raw_body for each in queue.reserve(["default"], 10)]
    assert raws
    assert not any(map(signature.is_signed, raws))
    ScheduleRows(manager.default()).sign(queue, "nightly")
    assert dispatched(queue, 60.0) > 0  # beyond what was dispatched before
    raws = [each.raw_body for each in queue.reserve(["default"], 10)]
    assert raws
    assert all(map(signature.is_signed, raws))


def test_nobody_vouches_for_what_a_map_makes_of_an_unsigned_result(place: dict[str, Any]) -> None:
    queue = used(place, signing="accept-unsigned")
    made = Flow("x")
    names = made.add(Names())
    made.map(Note, over=names.result)
    made.dispatch()
    run_one()
    (key,) = [key for key in facts(queue, "flow:") if ":s:" in key]
    forge(queue, key, json.dumps({**inside(facts(queue, key)[key]), "result": ["evil"]}))
    run_one()
    raws = [each.raw_body for each in queue.reserve(["default"], 10)]
    assert [signature.is_signed(raw) for raw in raws if b"evil" in raw] == [False]


def test_the_unsigned_runs_while_it_is_accepted(place: dict[str, Any]) -> None:
    bare = {key: value for key, value in place.items() if key != "signing_keys"}
    used(bare)
    one_chain()
    batch([Note(name="m")]).then(Note(name="then")).dispatch()
    inner = batch([Note(name="x")]).then(Note(name="y"))
    chain([Note(name="w"), inner, Note(name="z")]).dispatch()
    used(place, signing="accept-unsigned")
    run()
    assert sorted(RAN) == ["a", "b", "c", "m", "then", "w", "x", "y", "z"]


def test_who_has_no_key_reads_what_was_signed(place: dict[str, Any]) -> None:
    used(place)
    one_chain()
    batch([Note(name="m")]).then(Note(name="then")).dispatch()
    used({key: value for key, value in place.items() if key != "signing_keys"})
    run()
    assert sorted(RAN) == ["a", "b", "c", "m", "then"]


def test_without_a_key_nothing_is_signed(place: dict[str, Any]) -> None:
    queue = used({key: value for key, value in place.items() if key != "signing_keys"})
    one_chain()
    batch([Note(name="m")]).then(Note(name="then")).dispatch()
    ScheduleRows(manager.default()).add(queue, "nightly", ROW)
    kept = [*facts(queue, "chain:").values()]
    kept += [*facts(queue, "batch:").values(), *facts(queue, "schedule:").values()]
    assert not any('"signature"' in text for text in kept)
