"""The bin and undo: what is removed, what comes back, once, and what does not."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    Queueable,
    Worker,
    WorkerOptions,
    batch,
    chain,
    dispatch,
    find_batch,
    job_status,
    manager,
)
from qframe.connection import Connection
from qframe.contracts.browsing import Found, Place
from qframe.contracts.step import Set, Step
from qframe.features import binned
from qframe.operations import undo as undoing
from qframe.operations.bin import BinAction
from qframe.operations.bin_forecast import BinForecast
from qframe.testing import drain
from qframe.worker import shared
from tests.conftest import settings_of
from tests.support import here
from tests.support.process import wait_for

RAN: list[Any] = []


class Send(Queueable):
    number: int = 0
    queue = "mail"

    def handle(self) -> None:
        RAN.append(self.number)


class Ordered(Send):
    group = "g"


class Only(Send):
    unique = True
    unique_for = 600


class Fails(Send):
    def handle(self) -> None:
        raise ValueError(self.number)


@pytest.fixture(params=["memory", "database", "redis"])
def connection(request: pytest.FixtureRequest, fresh: Path) -> Connection:
    return connected(fresh, settings_of(request))


@pytest.fixture
def memory(fresh: Path) -> Connection:
    return connected(fresh, {"driver": "memory"})


def connected(fresh: Path, backend: dict[str, Any], **more: Any) -> Connection:
    RAN.clear()
    return here.connected(fresh, backend, __name__, **more)


def action(*, is_on: bool = True) -> BinAction:
    return BinAction(manager.default(), "clear", "here:mail", "ops", is_on=is_on)


def clear(connection: Connection, *, is_on: bool = True) -> BinAction:
    act = action(is_on=is_on)
    act.at(connection).clear("mail")
    act.close()
    assert connection.sizes("mail").total == 0
    return act


def undo(connection: Connection, act: BinAction) -> undoing.Undone:
    done = undoing.Undone()
    undoing.undo(connection, act.id, done)
    return done


def ran() -> list[Any]:
    drain(queues="mail")
    return RAN


def left(connection: Connection) -> list[str]:
    return [key for key, _ in connection.backend.scan("bin")]


def test_a_cleared_queue_comes_back_in_its_order(connection: Connection) -> None:
    for number in range(5):
        dispatch(Send(number=number)).send()
    dispatch(Send(number=9)).delay(3600).send()
    act = clear(connection)
    (listed,) = undoing.listed([connection])
    assert (listed.action, listed.of, listed.who, listed.jobs) == ("clear", "here:mail", "ops", 6)
    assert undo(connection, act).back == 6
    assert (left(connection), undoing.listed([connection])) == ([], [])
    sizes = connection.sizes("mail")
    assert (sizes.ready, sizes.delayed) == (5, 1)
    (late,) = connection.backend.browse("mail", Place.DELAYED).found
    assert late.at is not None
    assert 3500 < late.at - time.time() <= 3600
    assert ran() == [0, 1, 2, 3, 4]
    assert undo(connection, act).back == 0


def test_attempts_and_their_history_come_back(connection: Connection) -> None:
    dispatch(Send()).send()
    (job,) = connection.reserve(["mail"])
    connection.backend.apply(job.start_plan())
    job.release(0.0)
    act = clear(connection)
    undo(connection, act)
    (job,) = connection.reserve(["mail"])
    assert (job.attempts(), job.history.releases, len(job.history.attempts)) == (1, 1, 1)


def test_a_lock_and_a_status_come_back(connection: Connection) -> None:
    uuid = dispatch(Only(number=1)).track().send()
    act = clear(connection)
    known = job_status(uuid)
    assert known is not None
    assert known.state.value == "CANCELLED"
    undo(connection, act)
    known = job_status(uuid)
    assert known is not None
    assert known.state.value == "WAITING"
    assert dispatch(Only(number=1)).send() == uuid
    assert ran() == [1]
    known = job_status(uuid)
    assert known is not None
    assert known.state.value == "COMPLETE"


def test_a_job_whose_lock_another_has_meanwhile_stays_in_the_bin(memory: Connection) -> None:
    dispatch(Only(number=1)).send()
    dispatch(Only(number=2)).send()
    act = clear(memory)
    other = dispatch(Only(number=1)).send()
    done = undo(memory, act)
    assert (done.back, done.left) == (1, 1)
    assert f"{other}, dispatched meanwhile, has unique:" in done.troubles[0]
    assert undoing.listed([memory])[0].jobs == 1
    assert ran() == [1, 2]
    done = undo(memory, act)  # the other has ended
    assert (done.back, done.left, ran()) == (1, 0, [1, 2, 1])


def test_a_chain_goes_on(connection: Connection) -> None:
    chain([Send(number=1), Send(number=2)]).dispatch()
    act = clear(connection)
    assert not connection.backend.scan("chain:")
    undo(connection, act)
    assert ran() == [1, 2]


def test_a_batch_goes_on(memory: Connection) -> None:
    made = batch([Send(number=number) for number in range(3)]).dispatch()
    act = clear(memory)
    undo(memory, act)
    assert sorted(ran()) == [0, 1, 2]
    found = find_batch(made.id)
    assert found is not None
    assert (found.done, found.failed, found.is_cancelled) == (3, 0, False)


def test_the_line_of_a_group_comes_back(connection: Connection) -> None:
    for number in range(4):
        dispatch(Ordered(number=number)).send()
    act = clear(connection)
    assert undo(connection, act).back == 4
    assert ran() == [0, 1, 2, 3]


def test_failed_jobs_come_back(connection: Connection) -> None:
    for number in range(3):
        dispatch(Fails(number=number)).send()
    drain(queues="mail")
    before = {each.uuid: each for each in connection.failed.all()}
    act = BinAction(manager.default(), "flush", "all", "ops")
    assert all(act.forget(connection.failed, each) for each in before.values())
    act.close()
    assert connection.failed.count() == 0
    assert undo(connection, act).back == 3
    after = {each.uuid: each for each in connection.failed.all()}
    assert after.keys() == before.keys()
    for uuid, each in after.items():
        assert (each.payload, each.exception) == (before[uuid].payload, before[uuid].exception)
        assert each.history.attempts == before[uuid].history.attempts


def test_a_record_that_is_still_there_is_not_doubled(memory: Connection) -> None:
    """As after a command that was killed between the entry and the removal."""
    dispatch(Fails()).send()
    drain(queues="mail")
    (record,) = memory.failed.all()
    act = BinAction(manager.default(), "flush", "all", "ops")
    act.forget(memory.failed, record)
    memory.failed.add(record)
    done = undo(memory, act)
    assert (done.back, done.there) == (0, 1)
    assert (memory.failed.count(), left(memory)) == (1, [])


def test_an_act_that_was_killed_can_be_taken_back(memory: Connection) -> None:
    for number in range(3):
        dispatch(Send(number=number)).send()
    act = action()
    (first, *_) = memory.backend.browse("mail", Place.READY).found
    act.at(memory).remove(first)  # and no more, and nothing is noted
    (listed,) = undoing.listed([memory])
    assert (listed.id, listed.jobs) == (act.id, 0)
    assert undo(memory, act).back == 1
    assert sorted(ran()) == [0, 1, 2]


def test_what_another_undo_has_pushed_is_counted_apart_where_steps_are_not_atomic(
    memory: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.context, "joint", False)
    for number in range(2):
        dispatch(Send(number=number)).send()
    act = clear(memory)
    (key, text), *_ = memory.backend.scan(binned.entry_key("here", act.id))
    first = undo(memory, act)
    memory.backend.apply(Step(None, Set(key, text, 60)))  # as if it was killed before its removal
    second = undo(memory, act)
    assert (first.back, first.there, second.back, second.there) == (2, 0, 0, 1)
    assert second.said == "brought back 0 jobs, 1 there already"
    assert ran() == [0, 1]


def test_an_act_that_removed_nothing_is_not_listed(memory: Connection) -> None:
    dispatch(Fails()).send()
    drain(queues="mail")
    (record,) = memory.failed.all()
    memory.failed.forget(record)
    act = action()
    assert not act.forget(memory.failed, record)
    act.close()
    assert (left(memory), act.told()) == ([], "")


def test_two_at_once_bring_each_back_once(memory: Connection, monkeypatch: Any) -> None:
    dispatch(Send(number=1)).send()
    act = clear(memory)
    apply: Callable[..., Any] = memory.backend.apply
    others: list[undoing.Undone] = []

    def overtaken(*steps: Step) -> Any:
        monkeypatch.setattr(memory.backend, "apply", apply)
        others.append(undo(memory, act))
        return apply(*steps)

    monkeypatch.setattr(memory.backend, "apply", overtaken)
    done = undo(memory, act)
    assert (done.back, others[0].back, ran()) == (0, 1, [1])


def test_a_full_bin_says_so_before_and_after(fresh: Path) -> None:
    memory = connected(fresh, {"driver": "memory"}, bin={"jobs": 2})
    for number in range(5):
        dispatch(Send(number=number)).send()
    forecast = BinForecast(manager.default())
    forecast.add_queue(memory, "mail")
    assert forecast.words() == (
        " (undo brings back 2 within 60 min; 3 jobs for good: the bin is full)"
    )
    act = clear(memory)
    assert act.told() == (
        f"qframe undo {act.id} takes it back within 60 min; 3 for good: the bin is full"
    )
    assert undoing.listed([memory])[0].lost == 3
    assert (undo(memory, act).back, ran()) == (2, [0, 1])


def test_a_job_that_moved_meanwhile_is_not_told_as_removed(fresh: Path, monkeypatch: Any) -> None:
    memory = connected(fresh, {"driver": "memory"}, bin={"bytes": 1})
    dispatch(Send()).send()
    (found,) = memory.backend.browse("mail", Place.READY).found
    take = memory.backend.take

    def taken_for_too_long(found: Found) -> Any:
        reservation = take(found)
        memory.backend.timing.skew += 3601
        assert len(memory.reserve_after((), ["mail"], 1)[0]) == 1
        return reservation

    monkeypatch.setattr(memory.backend, "take", taken_for_too_long)
    act = action()
    assert not act.at(memory).remove(found)
    assert act.told() == ""


def test_bytes_are_bounded_too(fresh: Path) -> None:
    memory = connected(fresh, {"driver": "memory"}, bin={"bytes": 700})
    for number in range(5):
        dispatch(Send(number=number)).send()
    forecast = BinForecast(manager.default())
    forecast.add_queue(memory, "mail")
    act = clear(memory)
    assert act.kept == forecast.kept
    assert 0 < act.kept < 5


def test_nothing_is_kept_without_a_bin(fresh: Path) -> None:
    memory = connected(fresh, {"driver": "memory"})
    dispatch(Send()).send()
    act = clear(memory, is_on=False)
    assert (left(memory), act.told()) == ([], "")
    memory = connected(fresh, {"driver": "memory"}, bin={"seconds": 0})
    dispatch(Send()).send()
    act = clear(memory)
    assert (left(memory), act.told(), undoing.listed([memory])) == ([], "", [])


def test_nothing_is_kept_longer(memory: Connection) -> None:
    dispatch(Send()).send()
    act = clear(memory)
    memory.backend.timing.skew += 3601
    assert left(memory) == []
    assert undo(memory, act).back == 0


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        found = raw.execute("SELECT count(*) FROM qframe_facts WHERE key LIKE 'binned:%'")
        return int(found.fetchone()[0])


@pytest.fixture
def expired(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Connection, Path]:
    """A database with three expired entries, which its own sweep does not come to."""
    monkeypatch.setattr(random, "randrange", lambda every: every - 1)
    connection = connected(fresh, {"driver": "database"})
    path = connection.backend.path()
    assert path is not None
    for number in range(3):
        key = binned.entry_key("here", "0123abcd", str(number))
        connection.backend.apply(Step(None, Set(key, "secret", -1)))
    assert rows(path) == 3
    return connection, path


def test_a_purge_removes_what_has_expired(expired: tuple[Connection, Path]) -> None:
    connection, path = expired
    undoing.purge(connection)
    assert rows(path) == 0


def test_the_next_act_removes_what_has_expired(expired: tuple[Connection, Path]) -> None:
    connection, path = expired
    dispatch(Send()).send()
    clear(connection)
    assert rows(path) == 1


def test_an_act_is_done_even_if_what_has_expired_cannot_be_removed(
    expired: tuple[Connection, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, path = expired
    dispatch(Send()).send()

    def unavailable(prefix: str) -> None:
        raise BackendUnavailable("gone")

    monkeypatch.setattr(connection.backend, "remove_expired", unavailable)
    clear(connection)
    assert [each.jobs for each in undoing.acts_of(connection)] == [1]
    assert rows(path) == 4


class WaitsForRemoval(Queueable):
    path: str
    timeout = 60

    def handle(self) -> None:
        wait_for(lambda: rows(Path(self.path)) == 0, "the expired entries to be removed")
        RAN.append("removed")


def test_a_worker_removes_what_has_expired(
    expired: tuple[Connection, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_BIN_FIRST", 0.1)
    dispatch(WaitsForRemoval(path=str(expired[1]))).send()
    Worker(manager.default(), WorkerOptions(stop_when_empty=True, memory=0)).run()
    assert RAN == ["removed"]


def test_the_bin_can_be_emptied(memory: Connection) -> None:
    dispatch(Send()).send()
    clear(memory)
    assert undoing.purge(memory) == 1
    assert left(memory) == []


def test_what_no_act_names_any_more_is_purged_too(memory: Connection) -> None:
    for name in ("here:x", "here"):
        memory.backend.apply(Step(None, Set(binned.entry_key(name, "0123abcd", "1"), "x", 60)))
    undoing.purge(memory)
    assert left(memory) == [binned.entry_key("here:x", "0123abcd", "1")]


@pytest.mark.parametrize("text", ["", "{}", '[{"id": 1}]', '[{"at": "x"}]', "[[]]", "[NaN]"])
def test_acts_that_cannot_be_read_are_none(memory: Connection, text: str) -> None:
    memory.backend.apply(Step(None, Set(binned.acts_key("here"), text, 60)))
    assert undoing.listed([memory]) == []
    dispatch(Send()).send()
    assert undo(memory, clear(memory)).back == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"queue": "q", "raw": "%"}'])
def test_what_cannot_be_read_stays_and_is_told(memory: Connection, text: str) -> None:
    dispatch(Send()).send()
    act = clear(memory)
    key = binned.entry_key("here", act.id, "099999999")
    memory.backend.apply(Step(None, Set(key, text, 60)))
    done = undo(memory, act)
    assert (done.back, done.left) == (1, 1)
    assert "cannot be read" in done.troubles[0]
