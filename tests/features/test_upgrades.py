"""Data that an older version of a class has written is carried over at its start."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import JobDefinitionError, Queueable, QueueManager, dispatch, manager, queueable
from qframe.connection import Connection
from qframe.contracts.step import Push, Step
from qframe.exceptions import InvalidArguments
from qframe.failed.retry import retry
from qframe.jobs import upgrades
from qframe.payload import envelope
from qframe.payload.encryption import new_key
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.testing import drain

RAN: list[Any] = []


class Ship(Queueable):
    order: int
    carrier: str
    version = 3

    @classmethod
    def upgrade(cls, data: dict[str, Any], version: int) -> dict[str, Any]:
        assert cls is Ship
        RAN.append(version)
        if version < 2:
            data["carrier"] = data.pop("company", "post")
        if version < 3:
            data["order"] = int(data["order"])
        return data

    def handle(self) -> None:
        RAN.append((self.order, self.carrier))


class Hidden(Queueable):
    text: str
    encrypted = True
    version: ClassVar[int] = 2

    @staticmethod
    def upgrade(data: dict[str, Any], version: int) -> dict[str, Any]:
        return {"text": f"{data['word']} of {version}"}

    def handle(self) -> None:
        RAN.append(self.text)


def renamed(data: dict[str, Any], version: int) -> dict[str, Any]:
    return {"b": data["a"]} if version < 1 else data


@queueable(version=1, upgrade=renamed)
def double(b: int) -> None:
    RAN.append(2 * b)


class Plain(Queueable):
    number: int = 0

    def handle(self) -> None:
        RAN.append(self.number)


@pytest.fixture
def connection(fresh: Path) -> Connection:
    RAN.clear()
    queues = QueueManager(
        {
            "root": fresh,
            "default": "memory",
            "connections": {"memory": {"driver": "memory"}},
            "encryption_keys": [new_key()],
            "jobs": [__name__],
        }
    )
    manager.use(queues)
    return queues.connection()


def queues() -> QueueManager:
    found = manager.current()
    assert found is not None
    return found


def push(connection: Connection, job: Queueable, **changes: Any) -> None:
    """Push a job as an older version of its class would have."""
    message = envelope.create(job, connection.context.keyring)
    message.update(changes)
    raw = envelope.encode({key: value for key, value in message.items() if value is not ...})
    connection.backend.apply(Step(None, Push("default", raw)))


def failure(connection: Connection) -> str:
    (record,) = connection.failed.page(10)
    return record.exception


def test_a_payload_says_the_version_of_its_class_and_only_if_there_is_one() -> None:
    assert envelope.create(Ship(order=1, carrier="post"))["dataVersion"] == 3
    assert "dataVersion" not in envelope.create(Plain())


@pytest.mark.parametrize(
    ("version", "data", "found"),
    [
        (..., {"order": "7", "company": "ups"}, [0, (7, "ups")]),
        (1, {"order": "7"}, [1, (7, "post")]),
        (2, {"order": "7", "carrier": "dhl"}, [2, (7, "dhl")]),
        (3, {"order": 7, "carrier": "dhl"}, [(7, "dhl")]),
    ],
)
def test_an_old_payload_is_upgraded_once_with_the_version_that_wrote_it(
    connection: Connection, version: object, data: dict[str, Any], found: list[object]
) -> None:
    push(connection, Ship(order=1, carrier=""), dataVersion=version, data=data)
    assert drain(raises=True).done == 1
    assert found == RAN


def test_a_function_is_upgraded(connection: Connection) -> None:
    push(connection, double.job(1), dataVersion=..., data={"a": 4})
    double.dispatch(5).send()
    assert drain(raises=True).done == 2
    assert RAN == [8, 10]


def test_what_is_encrypted_is_opened_before(connection: Connection) -> None:
    inside = envelope.encode({"job": Hidden.own_name(), "data": {"word": "a"}})
    sealed = connection.context.keyring.sealed(Hidden.own_name(), inside)
    push(connection, Hidden(text=""), dataVersion=1, data=sealed)
    assert drain(raises=True).done == 1
    assert RAN == ["a of 1"]


@pytest.mark.parametrize(
    "foreign",
    [
        {"id": "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"},
        {"id": ...},
        dict.fromkeys(["uuid", "id"], "1b4e28ba-2fa1-4fd2-a833-6ba7b810be11"),
    ],
)
def test_another_programs_payload_is_left_alone(
    connection: Connection, foreign: dict[str, Any]
) -> None:
    """Laravel's ids are not its uuids; others leave keys out."""
    push(connection, Ship(order=7, carrier="php"), dataVersion=..., **foreign)
    assert drain(raises=True).done == 1
    assert RAN == [(7, "php")]


@pytest.mark.parametrize("version", ["2", -1, 1.0, True, 10**30, [], {}])
def test_what_is_no_version_is_left_alone(connection: Connection, version: object) -> None:
    push(connection, Ship(order=7, carrier="x"), dataVersion=version)
    assert drain(raises=True).done == 1
    assert RAN == [(7, "x")]


@pytest.mark.parametrize("job", [Ship(order=1, carrier=""), Plain()])
def test_a_newer_payload_is_refused_saying_both_versions(
    connection: Connection, job: Queueable
) -> None:
    push(connection, job, dataVersion=4)
    assert drain().failed == 1
    here = "version 3" if isinstance(job, Ship) else "without versions"
    said = f"the payload has version 4, and the class here is {here}"
    assert said in failure(connection)
    assert RAN == []


def test_an_upgrade_that_raises_is_the_cause_of_the_failure(connection: Connection) -> None:
    push(connection, Ship(order=1, carrier=""), dataVersion=1, data={"order": "x"})
    assert drain().failed == 1
    said = failure(connection)
    assert "Ship.upgrade of version 1 raised ValueError: invalid literal" in said
    assert "test_upgrades.py" in said


def test_the_cause_shows_nothing_of_an_encrypted_job() -> None:
    with pytest.raises(InvalidArguments) as raised:
        upgrades.carried_over(Hidden, {"secret-key": 1}, 1)
    assert "Hidden.upgrade of version 1 raised KeyError (" in str(raised.value)
    assert raised.value.__cause__ is None


def test_an_upgrade_that_ends_the_process_or_gets_too_deep_data_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ship, "upgrade", lambda _data, _version: sys.exit(0))
    with pytest.raises(InvalidArguments, match=r"upgrade of version 1 raised SystemExit: 0"):
        upgrades.carried_over(Ship, {}, 1)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArguments, match=r"upgrade of version 1 raised RecursionError"):
        upgrades.carried_over(Ship, {"deep": deep}, 1)


def test_an_upgrade_must_return_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ship, "upgrade", lambda _data, _version: None)
    with pytest.raises(InvalidArguments, match="returned a NoneType, not the data"):
        upgrades.carried_over(Ship, {}, 1)
    monkeypatch.setattr(Ship, "upgrade", lambda _data, _version: {1: "a\nb"})
    with pytest.raises(InvalidArguments, match="returned a key that is a int, not a name"):
        upgrades.carried_over(Ship, {}, 1)


def test_a_failed_job_that_is_retried_is_upgraded_at_its_start(connection: Connection) -> None:
    push(connection, Ship(order=1, carrier=""), dataVersion=1, data={"order": "x"})
    assert drain().failed == 1
    (record,) = connection.failed.page(10)
    changed = json.loads(record.payload) | {"data": {"order": "8"}}
    kept = replace(record, payload=json.dumps(changed).encode())
    RAN.clear()
    assert retry(queues(), connection.failed, kept)
    assert drain(raises=True).done == 1
    assert RAN == [1, (8, "post")]


def test_the_payload_itself_stays_as_it_was() -> None:
    data = {"order": "7", "company": "ups"}
    before = json.dumps(data)
    upgrades.carried_over(Ship, data, 0)
    assert json.dumps(data) == before


def test_a_plain_job_is_never_looked_at(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "current", lambda *_: pytest.fail("it was"))
    dispatch(Plain(number=3)).send()
    assert drain(raises=True).done == 1


# -- declarations ---------------------------------------------------------------------------------


def test_an_upgrade_needs_a_version() -> None:
    with pytest.raises(JobDefinitionError, match="never called, as it has no version"):

        class A(Queueable):
            @staticmethod
            def upgrade(data: dict[str, Any], version: int) -> dict[str, Any]:
                return data

            def handle(self) -> None: ...


def test_an_upgrade_is_no_method_of_a_job() -> None:
    with pytest.raises(JobDefinitionError, match="make it a @staticmethod"):

        class A(Queueable):
            version = 2

            def upgrade(self, data: Any, version: int) -> Any: ...

            def handle(self) -> None: ...


@pytest.mark.parametrize("arguments", ["", "data", "data, version, more"])
def test_an_upgrade_takes_data_and_version(arguments: str) -> None:
    with pytest.raises(JobDefinitionError, match=r"called with \(data, version\)"):
        queueable(version=1, upgrade=eval(f"lambda {arguments}: {{}}"))(lambda: None)


def test_an_upgrade_is_not_async() -> None:
    async def upgrade(data: Any, version: int) -> Any: ...

    with pytest.raises(JobDefinitionError, match="cannot be async"):
        queueable(version=1, upgrade=upgrade)(lambda: None)  # type: ignore[arg-type]


def test_a_field_may_be_called_version_and_a_method_upgrade() -> None:
    class Publish(Queueable):
        document: int
        version: int = 1

        def upgrade(self) -> None: ...

        def handle(self) -> None: ...

    assert Publish(document=1, version=4).version == 4
    assert "dataVersion" not in envelope.create(Publish(document=1, version=4))


def test_an_argument_may_be_called_version_unless_the_option_is_set() -> None:
    def publish(document: int, version: int) -> None: ...

    assert queueable(publish).job(1, 2).to_data() == {"document": 1, "version": 2}
    with pytest.raises(JobDefinitionError, match="an argument has that name"):
        queueable(version=2)(publish)


# -- schedules at run time ------------------------------------------------------------------------


def test_the_row_of_a_schedule_is_upgraded_as_well(connection: Connection) -> None:
    rows = ScheduleRows(queues())
    row = ScheduleRow(job=Ship.own_name(), data={"order": 7, "carrier": "ups"}, when="every 5m")
    rows.add(connection, "new", row)
    ((_, text),) = connection.backend.scan(keys_of(queues(), connection).row(""))
    assert json.loads(text)["version"] == 3
    old = row.model_copy(update={"data": {"order": "8", "company": "dhl"}})
    assert vars(rows.schedule("old", old).job)["carrier"] == "dhl"
    rows.change(connection, "new", when="every 6m")
    assert RAN == [0]
    rows.add(connection, "plain", ScheduleRow(job=Plain.own_name(), when="every 5m"))
    (kept,) = connection.store.get(keys_of(queues(), connection).row("plain"))
    assert "version" not in json.loads(kept or "")
