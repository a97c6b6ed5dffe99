"""What travels between a job's process and its worker, where no process is needed."""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from qframe import exceptions
from qframe.contracts.status import State
from qframe.exceptions import (
    JobInterrupted,
    JobTimedOut,
    LeaseLost,
    MaxAttemptsExceeded,
    QframeError,
)
from qframe.features import status
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.jobs.registry import Registry
from qframe.payload import tracebacks
from qframe.worker import process_tree
from qframe.worker.isolation import sidecar, supervision
from qframe.worker.isolation.job import ChildChannel
from qframe.worker.isolation.messages import (
    ElsewhereError,
    packed,
    packed_end,
    unpacked,
    unpacked_end,
)
from qframe.worker.isolation.runner import IsolatingRunner
from qframe.worker.isolation.signals import IsolatingSignals
from qframe.worker.isolation.spawn import ChildExit
from qframe.worker.isolation.supervision import SupervisedChild
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import Exhausted, Unrunnable
from tests.worker.bench import Bench


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class LeaseLostToo(Exception):
    """Of the application."""


def sent(error: BaseException) -> BaseException:
    made = unpacked(packed(error))
    assert made is not None
    assert type(made).__name__ == type(error).__name__
    assert type(made).__module__ == type(error).__module__
    return made


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    "error", [ValueError("no"), OddError(1, 2), KeyError("x"), OSError(2, "x")]
)
def test_an_error_keeps_its_name_its_words_and_its_traceback(error: Exception) -> None:
    made = sent(raised(error))
    assert str(made) == str(error)
    assert tracebacks.full(made) == tracebacks.full(error)
    assert "in raised" in tracebacks.full(made)
    assert isinstance(made, ElsewhereError)


def test_what_is_known_here_is_of_its_class() -> None:
    assert isinstance(sent(KeyError("x")), KeyError)
    assert type(sent(JobTimedOut("late"))) is JobTimedOut
    assert type(sent(MaxAttemptsExceeded("enough"))) is MaxAttemptsExceeded
    assert type(sent(UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"))) is not UnicodeDecodeError
    other = type("LeaseLost", (Exception,), {})
    assert not isinstance(sent(other("mine")), LeaseLost), "the application's, not ours"
    assert not isinstance(sent(SystemExit(3)), SystemExit), "which would end the worker"


def test_every_error_of_ours_can_be_made_again() -> None:
    for name, kind in vars(exceptions).items():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            message = {"class": name, "module": kind.__module__, "text": "t", "traceback": "T"}
            assert str(unpacked(message)) == "t"


def test_what_ended_an_attempt_early_is_known_as_that() -> None:
    assert type(sent(Exhausted("no"))) is Exhausted
    assert type(sent(Unrunnable())) is Unrunnable


@pytest.mark.parametrize(
    "end",
    [
        End(State.COMPLETE),
        End(State.RELEASED, 2.5, how="released", priority=7),
        End(State.CANCELLED, remark="so"),
        End(State.WAITING, 5, refused=True),
        End(State.COMPLETE, result=status.as_json({"answer": 42})),
    ],
)
def test_an_end_travels_whole(end: End) -> None:
    assert unpacked_end(packed_end(end)) == end


def test_an_end_keeps_its_error() -> None:
    made = unpacked_end(packed_end(End(State.FAILED, error=KeyError("x"), ran=False)))
    assert (made.state, made.ran) == (State.FAILED, False)
    assert isinstance(made.error, KeyError)


def test_no_error_stays_none() -> None:
    assert packed(None) is None
    assert unpacked(None) is None


def test_an_error_without_end_is_cut() -> None:
    made = sent(raised(ValueError("a" * 2_000_000 + "b" * 2_000_000)))
    assert 1_000_000 < len(str(made)) < 1_100_000
    assert tracebacks.full(made).strip().endswith("bbb")


def test_an_error_that_comes_back_is_the_same() -> None:
    own = [None, raised(OddError(1, 2)), raised(KeyError("x"))]
    there = unpacked_end(packed_end(End(State.FAILED, error=own[1])))
    assert there.error is not own[1]
    assert unpacked_end(packed_end(there), own).error is own[1]


def channels() -> tuple[socket.socket, ChildChannel, SupervisedChild]:
    """Give both ends of a channel whose process has ended."""
    ours, theirs = socket.socketpair()
    return theirs, ChildChannel(theirs), supervised(ours, lambda _: ChildExit(0, 0))


def supervised(sock: socket.socket, ended: Callable[[int], ChildExit | None]) -> SupervisedChild:
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    return SupervisedChild(0, sock, ended, selector, None)


def dismiss(worker: SupervisedChild) -> None:
    assert list(worker.ending(0)) == []


def test_messages_come_in_order_and_whole() -> None:
    theirs, job, worker = channels()
    assert worker.receive() == []
    job.send({"n": 1})
    job.send({"n": 2, "text": "ü\udc80\n"})
    assert worker.receive() == [{"n": 1}, {"n": 2, "text": "ü\udc80\n"}]
    theirs.send(b"{")
    assert worker.receive() == []
    theirs.send(b'"n":3}')
    assert worker.receive() == []
    theirs.send(b"\n")
    assert worker.receive() == [{"n": 3}]
    theirs.close()
    assert worker.receive() == []
    dismiss(worker)


def test_the_job_is_asked_until_there_is_nothing_more() -> None:
    theirs, job, worker = channels()
    worker.send({"n": 1, "text": "x" * 10_000})
    worker.send({"n": 2})
    assert job.receive() == {"n": 1, "text": "x" * 10_000}
    assert job.receive() == {"n": 2}
    dismiss(worker)
    assert job.receive() is None
    worker.send({"n": 3})
    theirs.close()


@pytest.mark.parametrize("rubbish", [b"\xff\n", b"[1]\n", b"7\n", b"\n", b"{}\nabc\n"])
def test_what_is_no_message_closes_the_channel(rubbish: bytes) -> None:
    theirs, _, worker = channels()
    theirs.send(rubbish)
    assert worker.receive() == []
    dismiss(worker)
    theirs.close()


def test_of_what_is_said_again_and_again_the_last_is_heard() -> None:
    theirs, job, worker = channels()
    for message in (
        {"kind": "progress", "done": 0.1},
        {"kind": "progress", "done": 0.2},
        {"kind": "renew"},
        {"kind": "progress", "done": 0.3},
        {"kind": "renew"},
        {"kind": "intent", "n": 1},
        {"kind": "intent", "n": 2},
        {"kind": "progress", "done": 0.4},
    ):
        job.send(message)
    heard = [(each["kind"], each.get("done", each.get("n"))) for each in worker.receive()]
    assert heard == [
        ("progress", 0.3),
        ("renew", None),
        ("intent", 1),
        ("intent", 2),
        ("progress", 0.4),
    ]
    dismiss(worker)
    theirs.close()


def test_a_message_that_is_not_taken_at_once_is_told_bit_by_bit() -> None:
    theirs, job, worker = channels()
    steps = worker.sending({"text": "x" * 500_000})
    assert next(steps) > time.monotonic(), "it waits for room"
    told = ThreadPoolExecutor(1).submit(job.receive)
    for _ in steps:
        assert worker.selector.select(20), "there is room"
    assert told.result(20) == {"text": "x" * 500_000}
    assert not worker.selector.select(0), "it is listened to again"
    job.send({"n": 1})
    assert worker.selector.select(20)
    dismiss(worker)
    theirs.close()


def test_a_message_without_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_LONGEST", 100_000)
    theirs, _, worker = channels()
    theirs.send(b"x" * 150_000)
    assert worker.receive() == []
    assert worker.is_closed
    dismiss(worker)
    theirs.close()


def test_a_process_that_not_even_a_kill_ends_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is stuck in the system, that is; its signals, and the clock, are made up."""
    now, sent = 1000.0, []
    monkeypatch.setattr(f"{supervision.__name__}.time.monotonic", lambda: now)
    monkeypatch.setattr(process_tree, "send", lambda *what: sent.append(what[1]))
    monkeypatch.setattr(process_tree, "kill_group", lambda _: sent.append("group"))
    ours, theirs = socket.socketpair()
    ends: list[ChildExit] = []
    worker = supervised(ours, lambda _: ends[0] if ends else None)
    worker.allow(5)
    steps = worker.waiting(lambda _: False)
    assert next(steps) == 1005
    now = 1005.0
    assert next(steps) == 1005 + supervision.STACKS
    assert (worker.was_late, sent) == (True, [signal.SIGQUIT])
    now += supervision.STACKS
    assert next(steps) == now + supervision.KILLED
    assert sent == [signal.SIGQUIT, "group", signal.SIGKILL]
    now += supervision.KILLED
    assert next(steps) == now
    with pytest.raises(StopIteration) as over:
        next(steps)
    assert over.value.value is False
    assert worker.is_stuck
    rest = worker.ending(5)
    assert next(rest) == math.inf, "its slot is taken until it is gone"
    ends.append(ChildExit(0, signal.SIGKILL))
    assert list(rest) == []
    assert len(sent) == 3
    theirs.close()


def test_one_that_was_told_to_end_gets_no_more_time_by_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its class, and so its timeout, may be known only then."""
    monkeypatch.setattr(process_tree, "send", lambda *_: None)
    theirs, _, worker = channels()
    began = time.monotonic()
    worker.end_by(JobInterrupted("the worker got SIGUSR1"), 30)
    for timeout in (600, 0):
        worker.allow(timeout)
        assert began + 30 <= worker.deadline() < began + 90
    dismiss(worker)
    theirs.close()


def test_a_descriptor_that_is_something_else_now_is_not_written_to() -> None:
    theirs, job, worker = channels()
    other, end = socket.socketpair()
    os.dup2(other.fileno(), theirs.fileno())
    with pytest.raises(QframeError, match="closed the connection"):
        job.send({"n": 1})
    end.setblocking(False)
    with pytest.raises(BlockingIOError):
        end.recv(1)
    for each in (theirs, other, end):
        each.close()
    dismiss(worker)


def test_an_end_is_put_into_words() -> None:
    assert ChildExit(7, 3 << 8, 12.4, 0.5).words() == (
        "exited with code 3 (pid 7, at most 12 MB, 0.50 s of CPU)"
    )
    assert ChildExit(7, signal.SIGSEGV).words().startswith("was killed by SIGSEGV (pid 7")
    assert "SIGKILL, possibly out of memory" in ChildExit(7, signal.SIGKILL).words()
    assert "SIGABRT, core dumped" in ChildExit(7, signal.SIGABRT | 0x80).words()
    assert "signal 63" in ChildExit(7, 63).words()
    assert "nobody knows how" in ChildExit(7, None).words()
    assert ChildExit(7, 0).is_clean
    assert not ChildExit(7, None).is_clean


# -- slots ----------------------------------------------------------------------------------------


@pytest.fixture
def runner() -> Iterator[IsolatingRunner]:
    options = WorkerOptions(concurrency=2)
    with IsolatingSignals(handled=False) as signals:
        made = IsolatingRunner(Bench().connection, Registry(), options, signals)
        yield made
        made.close()


def test_slots_may_become_more_and_fewer_while_jobs_run(runner: IsolatingRunner) -> None:
    slots = [runner.slot(cast("ReservedJob", Mock(message=None))) for _ in range(4)]
    for slot in slots[:2]:
        runner.enter(slot)
    assert (runner.busy, runner.free) == (2, 0)
    runner.slots = 4
    for slot in slots[2:]:
        runner.enter(slot)
    assert (runner.busy, runner.free) == (4, 0)
    assert [slot.number for slot in slots] == [0, 1, 2, 3]
    runner.slots = 2
    runner.leave(slots[1])
    assert (runner.busy, runner.free) == (3, 0)
    runner.leave(slots[3])
    runner.leave(slots[2])
    assert (runner.busy, runner.free) == (1, 1)
    runner.enter(slots[3])
    assert slots[3].number == 1


class ChildrenThatLeave:
    """Stands in for the runner and its spawner: each child ends with nothing to do."""

    def __init__(self) -> None:
        self.spawner = self
        self.started = 0

    def fork(self, _: object) -> int:
        self.started += 1
        return 1

    def ended(self, pid: int) -> ChildExit:
        return ChildExit(pid, 0)


def test_no_sidecar_is_started_before_there_is_a_fact_that_all_tasks_wait_for() -> None:
    waits = [True]
    tasks: Any = SimpleNamespace(
        facts=lambda: [None], names="retries", all_wait=lambda _: waits.pop()
    )
    runner: Any = ChildrenThatLeave()
    beside = sidecar._Sidecar(tasks, runner)
    beside.look()
    assert runner.started == 0
    waits.append(False)
    beside.look()
    assert runner.started == 1
    beside.end()


def test_a_sidecar_that_left_is_started_for_a_fact_that_changed_since_it_began() -> None:
    facts: list[str | None] = [None]
    tasks: Any = SimpleNamespace(facts=facts.copy, names="schedules", all_wait=lambda _: False)
    runner: Any = ChildrenThatLeave()
    beside = sidecar._Sidecar(tasks, runner)
    beside.look()
    facts[:] = ["1"]  # after the child has read it
    for _ in range(3):
        os.write(beside._said, b"n")
        beside.look()
    assert runner.started == 2
    beside.end()
