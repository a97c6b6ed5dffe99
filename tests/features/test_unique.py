"""Unique jobs, on the memory backend: which step takes the lock, and which one frees it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from qframe.contracts.status import State
from qframe.contracts.step import Delete, Expect, Push, Set, Unset
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End, Plan
from qframe.features.reserved import ReservedJob
from qframe.features.unique import UniqueFeature
from tests.features.harness import Bench
from tests.support.breaking import Breaking

LOCK = "unique:app.Demo:1"


def said(until: str = "handled", **keys: Any) -> dict[str, Any]:
    return {"key": LOCK, "for": 60, "until": until, **keys}


@pytest.fixture
def bench() -> Bench:
    return Bench([UniqueFeature()])


def test_the_push_takes_the_lock_in_its_own_step(bench: Bench) -> None:
    plan = Plan()
    pushing = bench.pushing("a", delay=5, unique=said())
    bench.context.plan_push(pushing, plan)
    assert plan.operations == [
        Push("q", pushing.raw, 5), Expect(LOCK, None), Set(LOCK, "a", 65),
    ]  # fmt: skip


def test_a_second_dispatch_is_told_who_is_there(bench: Bench) -> None:
    assert bench.push("a", unique=said()) == ""
    assert bench.push("b", unique=said()) == "a"
    assert bench.backend.sizes("q").ready == 1


def test_one_whose_push_failed_behind_its_lock_is_pushed_when_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a step is made in parts, the lock comes first."""
    messages, facts = MemoryBackend(), MemoryBackend()
    bench = Bench([UniqueFeature()], OrderedBackend(messages, facts, facts))
    with monkeypatch.context() as broken:
        broken.setattr(messages, "apply", Mock(side_effect=BackendUnavailable("gone")))
        with pytest.raises(BackendUnavailable):
            bench.push("a", unique=said())
    assert bench.push("a", unique=said()) == ""
    assert bench.push("b", unique=said()) == "a"
    assert bench.backend.sizes("q").ready == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", range(3))
def test_so_are_many_whose_locks_are_taken_together(place: int, *, after: bool) -> None:
    messages, facts = MemoryBackend(), MemoryBackend()
    bench = Bench([UniqueFeature()], OrderedBackend(messages, facts, facts))
    locks = {f"{LOCK}{name}": name for name in "abc"}
    jobs = [bench.pushing(name, unique={**said(), "key": key}) for key, name in locks.items()]

    def push() -> None:
        plans = [Plan() for _ in jobs]
        for job, plan in zip(jobs, plans, strict=True):
            bench.context.plan_push(job, plan)
        results = bench.backend.apply(*plans)
        for job, plan, result in zip(jobs, plans, results, strict=True):
            assert bench.context.pushed(job, plan, result) == ""

    with Breaking((messages, facts), place, after=after) as breaking:
        push()
    assert breaking.broke  # at the claims, the pushes, or what proves the claims
    if breaking.broke:
        push()
    reserved, _ = messages.reserve(["q"], 9)
    assert {job.raw_body for job in reserved} == {job.raw for job in jobs}
    assert facts.read(*locks) == [*locks.values()]


@pytest.mark.parametrize("state", [State.COMPLETE, State.SKIPPED, State.FAILED, State.CANCELLED])
def test_a_final_end_frees_the_lock_in_the_step_that_removes_the_job(
    bench: Bench, state: State
) -> None:
    bench.push("a", unique=said())
    job = bench.started()
    plan = job.plan(End(state, error=ValueError("boom")))
    assert Unset(LOCK, "a") in plan.operations
    assert plan.operations[-1] == Delete()
    job.settle(End(state, error=ValueError("boom")))
    assert bench.backend.read(LOCK) == [None]
    assert bench.push("b", unique=said()) == ""


def test_a_release_keeps_the_lock(bench: Bench) -> None:
    bench.push("a", unique=said())
    bench.started().settle(End(State.RELEASED, how="released"))
    assert bench.backend.read(LOCK) == ["a"]


def test_a_lock_until_the_start_is_freed_by_the_start(bench: Bench) -> None:
    bench.push("a", unique=said("started"))
    bench.held().settle(End(State.WAITING))
    assert bench.backend.read(LOCK) == ["a"]
    bench.started()
    assert bench.backend.read(LOCK) == [None]


def test_a_lock_that_another_job_has_by_now_is_left(bench: Bench) -> None:
    bench.push("a", unique=said())
    job = bench.started()
    bench.backend.timing.skew += 61  # the lock has ended, the job has not
    assert bench.push("b", unique=said()) == ""
    job.settle(End(State.COMPLETE))
    assert bench.backend.read(LOCK) == ["b"]


def test_a_job_that_runs_on_keeps_its_lock_and_never_takes_anothers(bench: Bench) -> None:
    bench.push("a", unique=said())
    job = bench.started()
    bench.backend.timing.skew += 50
    job.look()
    bench.backend.timing.skew += 50
    assert bench.backend.read(LOCK) == ["a"]
    bench.backend.timing.skew += 61
    bench.push("b", unique=said())
    ReservedJob(job.context, job.reservation).look()  # it has not looked a moment ago
    assert bench.backend.read(LOCK) == ["b"]


@pytest.mark.parametrize(
    "wrong",
    [None, 1, "x", [], {}, said(key="status:a"), said(key="unique:" + "x" * 300), said(key=7),
     said(until="never"), {"key": LOCK, "for": -1, "until": "handled"}],
)  # fmt: skip
def test_what_it_could_not_have_written_is_ignored(bench: Bench, wrong: Any) -> None:
    assert bench.push("a", unique=wrong) == ""
    assert bench.push("b", unique=wrong) == ""
    bench.run()
    assert bench.backend.scan("") == []
