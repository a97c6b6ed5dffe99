"""What is stored is checked against new code: every place, every trouble, and nothing changed."""

from __future__ import annotations

import base64
import json
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import Flow, Queueable, QueueManager, batch, chain, dispatch, foreign, manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Push, Step
from qframe.exceptions import BackendUnavailable, UnknownJob
from qframe.jobs.registry import Registry
from qframe.operations import payloads
from qframe.operations.payloads import PayloadCheck
from qframe.operations.stored_payloads import payloads_in
from qframe.outbox.text import encoded
from qframe.payload import encryption, envelope
from qframe.payload.encryption import new_key
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from qframe.testing import drain
from tests.conftest import settings_of


class Ship(Queueable):
    """As the code of yesterday has it."""

    order: int
    note: str = ""
    tries: ClassVar[int | None] = 1

    def handle(self) -> int:
        if self.order < 0:
            raise ValueError
        return self.order


class NewShip(Queueable):
    """As the code of today has it."""

    order: int
    carrier: str

    def handle(self) -> None: ...


class Old(Queueable):
    def handle(self) -> None: ...


class Hidden(Queueable):
    text: str
    encrypted: ClassVar[bool] = True

    def handle(self) -> None: ...


class Adds(Queueable):
    to: int
    value: int

    def handle(self) -> None: ...


class InTurn(Queueable):
    shop: int
    group: ClassVar[str] = "shop:{shop}"

    def handle(self) -> None: ...


class Versioned(Queueable):
    order: int
    version: ClassVar[int | None] = 2

    @staticmethod
    def upgrade(data: dict[str, Any], version: int) -> dict[str, Any]:
        return {"order": data["number"]} if version < 2 else data

    def handle(self) -> None: ...


class Picky(Queueable):
    order: int

    def __post_init__(self) -> None:
        if self.order == 13:
            raise RuntimeError("not this one")
        if self.order == 14:
            raise SystemExit(0)
        if self.order == 15:
            raise CancelledError

    def handle(self) -> None: ...


def made(fresh: Path, settings: dict[str, Any], **more: Any) -> QueueManager:
    queues = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {"here": settings},
            "jobs": [__name__],
            "groups": {"*": {"order": "strict"}},
            "encryption_keys": [new_key()],
            **more,
        }
    )
    manager.use(queues)
    return queues


@pytest.fixture
def queues(fresh: Path) -> QueueManager:
    return made(fresh, {"driver": "memory"})


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the code that of today."""
    find = Registry.find

    def found(self: Registry, name: str) -> Any:
        if name == Ship.own_name():
            return NewShip
        if name == Old.own_name():
            raise UnknownJob(f"{name} is not a job of this project: start where its module is")
        return find(self, name)

    return lambda: monkeypatch.setattr(Registry, "find", found)


def push(connection: Connection, of: Queueable, /, **changes: Any) -> None:
    message = envelope.create(of, connection.context.keyring) | changes
    raw = connection.signed(envelope.encode(message), "default")
    connection.backend.apply(Step(None, Push("default", raw)))


def sentences(found: PayloadCheck) -> list[str]:
    return [each.sentence for each in found.troubles]


def one(found: PayloadCheck) -> str:
    (said,) = sentences(found)
    return said


# -- troubles -------------------------------------------------------------------------------------


def test_all_is_well(queues: QueueManager) -> None:
    dispatch(Ship(order=1)).send()
    dispatch(Hidden(text="a")).delay(60).send()
    found = payloads.check(queues)
    assert (found.read, found.is_good, found.notes) == (2, True, [])


def test_a_lacking_field_and_an_unknown_class_are_counted_by_class(
    queues: QueueManager, deploy: Callable[[], None]
) -> None:
    for _ in range(2):
        dispatch(Ship(order=1)).send()
    dispatch(Ship(order=1)).on_queue("mail").delay(3600).send()
    dispatch(Old()).send()
    deploy()
    found = payloads.check(queues)
    lacks, unknown = found.troubles
    assert lacks.sentence.startswith(f"3 of {Ship.own_name()} lack `carrier` (due until ")
    assert lacks.sentence.endswith(" UTC)")
    assert lacks.places == {"ready in here:default": 2, "delayed in here:mail": 1}
    assert unknown.sentence == (
        f"1 of {Old.own_name()} are unknown: {Old.own_name()} is not a job of this project"
    )
    assert [each.kind for each in found.troubles] == ["lacks", "unknown"]
    assert not found.is_good


@pytest.mark.parametrize(
    ("job", "changes", "said"),
    [
        (Ship(order=1), {"data": {"order": "x"}}, "do not fit: order: Input should be a valid int"),
        (Ship(order=1), {"data": 7}, "do not fit: the payload's data is a int, not named fields"),
        (Picky(order=1), {"data": {"order": 13}}, "raise RuntimeError: not this one ("),
        (Picky(order=1), {"data": {"order": 14}}, "raise SystemExit: 0"),
        (Picky(order=1), {"data": {"order": 15}}, "raise CancelledError"),
        (Versioned(order=1), {"dataVersion": 3}, "are newer: the payload has version 3, and the"),
        (
            Versioned(order=1),
            {"dataVersion": 1},
            "are not carried over: upgrade of version 1 raise",
        ),
        (Hidden(text="a"), {"data": {encryption.KEY: "aaaa"}}, "cannot be decrypted: "),
        (Ship(order=1), {"job": ""}, "cannot be read: the payload has no job name under `job`"),
        (Ship(order=1), {"job": f"{Ship.own_name()}@x"}, "cannot be read: the payload asks for "),
    ],
)
def test_each_trouble_is_said(
    queues: QueueManager, job: Queueable, changes: dict[str, Any], said: str
) -> None:
    push(queues.connection(), job, **changes)
    assert said in one(payloads.check(queues))


def test_the_values_of_an_encrypted_job_are_in_no_message(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("hush")

    dispatch(Hidden(text="hush")).send()
    monkeypatch.setattr(Hidden, "from_data", refuse)
    assert one(payloads.check(queues)) == f"1 of {Hidden.own_name()} raise RuntimeError"


@pytest.mark.parametrize("raw", [b"\xff", b"not JSON", b"[]", b"[" * 100_000, b'{"job":"\\ud800"}'])
def test_what_is_no_payload_is_counted(queues: QueueManager, raw: bytes) -> None:
    queues.connection().backend.apply(Step(None, Push("default", raw)))
    (trouble,) = payloads.check(queues).troubles
    assert (trouble.kind, trouble.count, trouble.job) == ("broken", 1, "")
    assert trouble.sentence.isprintable()


def test_a_payload_with_a_wrong_signature_is_refused_unread(fresh: Path) -> None:
    queues = made(fresh, {"driver": "memory"}, signing_key=new_key())
    connection = queues.connection()
    dispatch(Ship(order=1)).send()
    chain([Ship(order=1), Ship(order=2)]).dispatch()
    assert payloads.check(queues).is_good
    raw = envelope.encode(envelope.create(Ship(order=1)))
    connection.backend.apply(Step(None, Push("default", raw)))
    assert "are refused: the payload is not signed" in one(payloads.check(queues))


def test_what_upgrade_carries_over_is_good_and_counted(queues: QueueManager) -> None:
    push(queues.connection(), Versioned(order=1), dataVersion=1, data={"number": 4})
    found = payloads.check(queues)
    assert (found.upgraded, found.is_good) == (1, True)


def test_a_key_without_a_field_is_named(queues: QueueManager, caplog: Any) -> None:
    """A renamed field with a default loses its values: no error at the start says so."""
    push(queues.connection(), Ship(order=1), data={"order": 1, "remark": "a"})
    found = payloads.check(queues)
    assert (found.left_out, found.is_good) == ({f"{Ship.own_name()}.remark": 1}, True)
    assert "remark" not in caplog.text


def test_jobs_of_other_programs_are_passed_over(queues: QueueManager) -> None:
    dispatch(foreign("App\\Import@handle", {"id": 7})).send()
    php = "Illuminate\\Queue\\CallQueuedHandler@call"
    push(queues.connection(), Old(), job=php, data={"command": "O:8"})
    found = payloads.check(queues)
    assert (found.read, found.foreign, found.is_good) == (2, 2, True)


def test_many_different_troubles_are_bounded(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "_MOST_KINDS", 3)
    for number in range(5):
        push(queues.connection(), Old(), job=f"gone.Job{number}")
    found = payloads.check(queues)
    assert (len(found.troubles), found.others) == (3, 2)


# -- places ---------------------------------------------------------------------------------------


def test_links_callbacks_and_nodes_are_read_where_they_are_kept(
    queues: QueueManager, deploy: Callable[[], None]
) -> None:
    chain([Old(), Ship(order=1)]).catch(Ship(order=2)).dispatch()
    batch([Old()]).then(Ship(order=3)).dispatch()
    flow = Flow("f")
    first = flow.add(Old())
    flow.add(Ship(order=4), after=[first])
    flow.dispatch()
    deploy()
    lacks = next(e for e in payloads.check(queues).troubles if e.kind == "lacks")
    assert lacks.places == {
        "kept for chains of here": 2,
        "kept for batches of here": 1,
        "kept for flows of here": 1,
    }


def test_a_field_that_gets_a_result_later_is_not_lacking(queues: QueueManager) -> None:
    flow = Flow("f")
    flow.add(Adds(to=1, value=flow.add(Ship(order=4)).result))
    flow.dispatch()
    assert payloads.check(queues).is_good


def test_what_failed_is_read_unless_it_is_left_out(
    queues: QueueManager, deploy: Callable[[], None]
) -> None:
    dispatch(Ship(order=-1)).send()
    assert drain().failed == 1
    deploy()
    (trouble,) = payloads.check(queues).troubles
    assert trouble.places == {"failed in here:default": 1}
    assert payloads.check(queues, failed=False).read == 0


def test_a_job_in_the_line_of_its_group_is_read(queues: QueueManager) -> None:
    for number in range(3):
        dispatch(InTurn(shop=number // 9)).send()
    assert payloads.check(queues).read == 3


def test_the_row_of_a_schedule_is_read(queues: QueueManager, deploy: Callable[[], None]) -> None:
    row = ScheduleRow(job=Ship.own_name(), data={"order": 1}, when="every 5m")
    ScheduleRows(queues).add(queues.connection(), "nightly", row)
    php = ScheduleRow(job="App.Sync", foreign=True, when="every 5m")
    ScheduleRows(queues).add(queues.connection(), "php", php)
    deploy()
    (trouble,) = payloads.check(queues).troubles
    assert trouble.places == {"the schedule nightly": 1}


def test_the_outbox_is_read_and_not_sent(fresh: Path, deploy: Callable[[], None]) -> None:
    url = f"sqlite:///{fresh}/app.sqlite3"
    main = {"driver": "database", "url": url}
    queues = made(
        fresh,
        {"driver": "memory"},
        connections={"here": {"driver": "memory"}, "main": main},
        outbox={"connection": "main"},
    )
    queues.backend("main").migrate()
    outbox = queues.outbox()
    assert outbox is not None
    raw = envelope.encode(envelope.create(Ship(order=1)))
    outbox.add("here", [encoded(Step(None, Push("default", raw)))] * 30)
    deploy()
    for _ in range(2):
        (trouble,) = payloads.check(queues).troubles
        assert trouble.places == {"in the outbox for here": 30}


def test_payloads_are_found_however_they_are_kept() -> None:
    payload = '{"uuid":"a","job":"x","data":{"raw":"{}","job":"y"}}'
    for text in (
        payload,
        json.dumps({"raw": payload, "queue": "mail"}),
        json.dumps([[{"raw": payload}]]),
        json.dumps({"id": "m", "raw": base64.b64encode(payload.encode()).decode(), "notes": ""}),
        json.dumps({"is": "Push", "raw": {"is": "bytes", "text": payload}}),
        json.dumps({"is": "Set", "value": json.dumps({"links": [{"raw": payload}]})}),
    ):
        assert list(payloads_in(text)) == [payload.encode()], text


@pytest.mark.parametrize("text", ["", "x", "{", "null", "7", '{"raw": "not base64"}', '{"raw": 7}'])
def test_what_keeps_no_payload_has_none(text: str) -> None:
    assert list(payloads_in(text)) == []


# -- reading --------------------------------------------------------------------------------------


def test_only_a_part_is_read_and_that_is_said(queues: QueueManager) -> None:
    for number in range(7):
        dispatch(Ship(order=number)).send()
    dispatch(Ship(order=1)).on_queue("mail").send()
    found = payloads.check(queues, at_most=5)
    assert found.read == 6
    assert found.notes == ["ready in here:default: only the first 5 were read"]


@pytest.fixture(params=["database", "redis", "beanstalkd"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(request)


def test_nothing_is_reserved_or_changed(
    fresh: Path, settings: dict[str, Any], deploy: Callable[[], None]
) -> None:
    queues = made(fresh, settings)
    for number in range(3):
        dispatch(Ship(order=number)).send()
    dispatch(Ship(order=3)).delay(60).send()
    before = queues.connection().sizes("default")
    deploy()
    found = payloads.check(queues)
    assert queues.connection().sizes("default") == before
    assert [each.attempts() for each in queues.connection().reserve(["default"])] in ([0], [1])
    if settings["driver"] == "beanstalkd":
        assert found.read == 2
        (note,) = found.notes
        assert note.startswith("here shows only the first job of each queue")
    else:
        assert (found.read, found.notes) == (4, [])


def test_a_connection_that_does_not_answer_is_named_and_the_others_are_read(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"here": {"driver": "memory"}, "there": {"driver": "memory"}}
    queues = made(fresh, {}, connections=both)
    dispatch(Ship(order=1)).on_connection("there").send()

    def gone(*_: object) -> Iterator[Any]:
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(queues.backend("here"), "queues", gone)
    found = payloads.check(queues)
    assert (found.silent, found.read, found.is_good) == ({"here": "no answer"}, 1, False)


def test_what_a_connection_does_not_show_is_noted(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch(Ship(order=1)).send()
    connection = queues.connection()
    shows = connection.capabilities & ~Capability.BROWSE
    monkeypatch.setattr(connection, "capabilities", shows)
    found = payloads.check(queues)
    assert found.read == 0
    assert found.notes == ["here: what waits there cannot be looked at without taking it"]
