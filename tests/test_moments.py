"""When a dispatch is pushed: at once, in an open transaction, at a commit, or once awaited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from qframe import InvalidJob, InvalidQueueName, Queueable, QueueManager, dispatch, manager
from qframe.connection import Connection
from qframe.dispatch.draft import flush
from qframe.hooks import of_process

Acts = list[Callable[[], None]]


class Job(Queueable):
    def handle(self) -> None: ...


@pytest.fixture
def queue(fresh: Path) -> Connection:
    manager.use(QueueManager({"root": str(fresh)}))
    return manager.default().connection()


@pytest.fixture
def commit(queue: Connection, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A transaction is open, as a framework says; what commits it is given."""
    acts: Acts = []
    opened = SimpleNamespace(within=lambda: None, on_commit=acts.append)
    monkeypatch.setattr(of_process, "find_open", lambda _: opened)

    def commit() -> None:
        monkeypatch.setattr(of_process, "find_open", lambda _: None)
        for act in acts:
            act()
        flush()

    return commit


def count(queue: Connection) -> int:
    flush()
    return queue.size()


def test_what_is_dropped_in_an_open_transaction_is_pushed_once_by_its_commit(
    queue: Connection, commit: Callable[[], None]
) -> None:
    dispatch(Job())
    assert count(queue) == 0
    commit()
    assert count(queue) == 1


def test_what_is_sent_there_has_its_id_at_once(
    queue: Connection, commit: Callable[[], None]
) -> None:
    identity = dispatch(Job()).send()
    assert count(queue) == 0
    commit()
    assert [job.uuid for job in queue.reserve(["default"], 9)] == [identity]


def test_before_commit_pushes_at_once_also_what_is_dropped(
    queue: Connection, commit: Callable[[], None]
) -> None:
    dispatch(Job()).before_commit()
    assert count(queue) == 1
    dispatch(Job()).before_commit().send()
    assert count(queue) == 2
    commit()
    assert count(queue) == 2


def test_a_transaction_that_is_named_counts_and_no_other(
    queue: Connection, commit: Callable[[], None]
) -> None:
    named: Acts = []
    dispatch(Job()).after_commit(named.append)
    commit()
    assert count(queue) == 0
    (act,) = named
    act()
    assert count(queue) == 1


def test_a_call_that_raised_disarms_it_for_the_commit_until_it_is_sent(
    queue: Connection, commit: Callable[[], None]
) -> None:
    never, later = dispatch(Job()), dispatch(Job())
    for each in (never, later):
        with pytest.raises(InvalidQueueName):
            each.on_queue("no name")
    later.send()
    commit()
    assert [job.uuid for job in queue.reserve(["default"], 9)] == [later.id]


def test_so_it_is_for_a_transaction_that_is_named(queue: Connection) -> None:
    named: Acts = []
    never, later = (dispatch(Job()).after_commit(named.append) for _ in range(2))
    for each in (never, later):
        with pytest.raises(InvalidQueueName):
            each.on_queue("no name")
    later.send()
    for act in named:
        act()
    flush()
    assert [job.uuid for job in queue.reserve(["default"], 9)] == [later.id]


def test_one_way_is_chosen_once(queue: Connection) -> None:
    session = SimpleNamespace(run_sync=print)
    waits = dispatch(Job()).after_commit([].append)
    awaited = dispatch(Job()).within(session)
    sent = dispatch(Job())
    sent.send()
    again: list[Callable[[], object]] = [
        lambda: waits.within(session),
        lambda: awaited.within(session),
        lambda: awaited.after_commit([].append),
        lambda: sent.within(session),
    ]
    for call in again:
        with pytest.raises(InvalidJob, match="within"):
            call()
    with pytest.raises(InvalidJob, match="by awaiting it"):
        awaited.send()
    assert count(queue) == 1
