"""Statuses of tracked jobs, on the memory backend."""

from __future__ import annotations

from typing import Any

import pytest

from qframe.contracts.status import JobStatus, State
from qframe.contracts.step import Raise, Step
from qframe.features import status
from qframe.features.base import End
from qframe.features.status import StatusFeature
from tests.features.harness import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench([StatusFeature()])


def seen(bench: Bench, uuid: str = "a") -> JobStatus:
    found = status.read(bench.backend, uuid)
    assert found is not None
    return found


def test_it_is_written_at_each_move(bench: Bench) -> None:
    bench.push("a", track=60, trackedSince=5.5)
    first = seen(bench)
    assert (first.state, first.attempt, first.queued_at) == (State.WAITING, 0, 5.5)
    job = bench.started()
    job.look()
    running = seen(bench)
    assert (running.state, running.attempt, running.pid is not None) == (State.RUNNING, 1, True)
    job.settle(End(State.RELEASED, 10, error=ValueError("boom"), how="error"))
    released = seen(bench)
    assert (released.state, released.exception) == (State.RELEASED, ("ValueError", "boom"))
    bench.backend.timing.skew += 11
    job = bench.started()
    job.settle(End(State.COMPLETE, result={"x": 1}))
    done = seen(bench)
    assert (done.state, done.attempt, done.result) == (State.COMPLETE, 2, {"x": 1})


def test_what_comes_late_does_not_overwrite_what_is_newer(bench: Bench) -> None:
    bench.push("a", track=60)
    job = bench.started()
    late = job.plan(End(State.RELEASED))
    job.settle(End(State.COMPLETE))
    (raised,) = [each for each in late.operations if isinstance(each, Raise)]
    bench.backend.apply(Step(None, raised))
    assert seen(bench).state is State.COMPLETE


def test_a_retry_begins_a_new_life(bench: Bench) -> None:
    bench.push("a", track=60)
    bench.run(state=State.FAILED)
    assert seen(bench).exception == ("ValueError", "boom")
    bench.push("a", track=60, retried=1)
    assert (seen(bench).state, seen(bench).retries, seen(bench).exception) == (
        State.WAITING, 1, None,
    )  # fmt: skip


def test_an_uncounted_attempt_is_left_out(bench: Bench) -> None:
    bench.push("a", track=60)
    bench.started().settle(End(State.WAITING, remark="given back"))
    back = seen(bench)
    assert (back.state, back.attempt, back.remark) == (State.WAITING, 0, "given back")
    bench.started().look()
    assert (seen(bench).state, seen(bench).attempt) == (State.RUNNING, 1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ((1.5,), ValueError),
        ((float("nan"),), ValueError),
        (("x",), TypeError),
        ((0.5, 1), TypeError),
    ],
)
def test_what_is_no_progress_is_refused(
    bench: Bench, wrong: tuple[Any, ...], error: type[Exception]
) -> None:
    bench.push("a", track=60)
    with pytest.raises(error):
        bench.started().progress(*wrong)


def test_progress_is_written_and_kept_to_the_end(bench: Bench) -> None:
    bench.push("a", track=60)
    job = bench.started()
    job.progress(0.5, "half")
    assert (seen(bench).progress, seen(bench).message) == (0.5, "half")
    job.progress(0.7)  # a moment later: written with what follows
    assert seen(bench).progress == 0.5
    job.settle(End(State.COMPLETE))
    assert seen(bench).progress == 0.7


def test_a_start_is_written_by_the_first_look(bench: Bench) -> None:
    bench.push("a", track=60)
    job = bench.started()
    assert seen(bench).state is State.WAITING
    job.look()
    assert seen(bench).state is State.RUNNING


@pytest.mark.parametrize("wrong", [None, True, "x", -1, float("inf"), [], {}])
def test_what_it_could_not_have_written_is_ignored(bench: Bench, wrong: object) -> None:
    bench.push("a", track=wrong if wrong != float("inf") else 10**12)
    bench.run()
    assert bench.backend.scan("") == []
