"""Jobs with an idempotency key, on the memory backend: who takes it, and what frees it: time."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import Mock

import pytest

from qframe.contracts.status import State
from qframe.contracts.step import Expect, Push, Set
from qframe.drivers import claims
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End, Plan
from qframe.features.once import OnceFeature
from qframe.features.unique import UniqueFeature
from tests.features.harness import Bench
from tests.features.test_pushes import UNIQUE, World, faults
from tests.support.breaking import Fault, Faulty

KEY = "once:app.Demo:1"
SAID = {"key": KEY, "for": 60}
ONCE: dict[str, Any] = {"once": SAID}


@pytest.fixture
def bench() -> Bench:
    return Bench([OnceFeature()])


def test_the_push_takes_the_key_in_its_own_step(bench: Bench) -> None:
    plan = Plan()
    pushing = bench.pushing("a", delay=5, **ONCE)
    bench.context.plan_push(pushing, plan)
    assert plan.operations == [Push("q", pushing.raw, 5), Expect(KEY, None), Set(KEY, "a", 60)]


@pytest.mark.parametrize("state", [State.COMPLETE, State.SKIPPED, State.FAILED, State.CANCELLED])
def test_the_key_outlives_its_job(bench: Bench, state: State) -> None:
    assert bench.push("a", **ONCE) == ""
    assert bench.push("b", **ONCE) == "a", "it waits"
    job = bench.started()
    assert bench.push("b", **ONCE) == "a", "it runs"
    job.settle(End(state, error=ValueError("boom")))
    assert bench.push("b", **ONCE) == "a", "it has ended"
    assert bench.reserve() is None
    bench.backend.timing.skew += 59
    assert bench.push("b", **ONCE) == "a"
    bench.backend.timing.skew += 2
    assert bench.push("b", **ONCE) == ""
    assert bench.push("c", **ONCE) == "b"


def test_what_was_pushed_before_is_pushed_no_second_time(bench: Bench) -> None:
    """A reply was lost, and the same dispatch is sent again."""
    assert bench.push("a", **ONCE) == bench.push("a", **ONCE) == ""
    bench.run()
    assert bench.push("a", **ONCE) == ""
    assert bench.reserve() is None


def test_a_retry_by_hand_needs_no_key(bench: Bench) -> None:
    for key_is_there in (True, False):
        bench.push("a", **ONCE)
        bench.run(state=State.FAILED)
        bench.backend.timing.skew += 0 if key_is_there else 61
        retried = dataclasses.replace(bench.pushing("a", **ONCE), retried=True)
        assert bench.context.push(retried) == ""
        assert bench.held().skip_reason() is None
        bench.backend.timing.skew += 61
        bench.run()


@pytest.mark.parametrize(
    "wrong",
    [None, 1, "x", [], {}, {"key": "status:a", "for": 60}, {"key": "once:" + "x" * 300, "for": 60},
     {"key": 7, "for": 60}, {"key": KEY, "for": -1}, {"key": KEY, "for": 0}, {"key": KEY}],
)  # fmt: skip
def test_what_it_could_not_have_written_is_ignored(bench: Bench, wrong: Any) -> None:
    assert bench.push("a", once=wrong) == ""
    assert bench.push("b", once=wrong) == ""
    bench.run()
    assert bench.backend.scan("") == []


# -- where steps are made in parts ----------------------------------------------------------------


def test_a_push_that_failed_leaves_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, facts = MemoryBackend(), MemoryBackend()
    bench = Bench([OnceFeature()], OrderedBackend(messages, facts, facts))
    with monkeypatch.context() as broken:
        broken.setattr(messages, "apply", Mock(side_effect=BackendUnavailable("gone")))
        with pytest.raises(BackendUnavailable):
            bench.push("a", **ONCE)
    assert bench.backend.read(KEY) == [None]
    assert bench.push("b", **ONCE) == ""
    assert bench.push("a", **ONCE) == "b"
    assert bench.backend.sizes("q").ready == 1


BOTH: dict[str, Any] = {**ONCE, "unique": {**UNIQUE["unique"], "for": 60}}
kinds = pytest.mark.parametrize("keys", [ONCE, BOTH], ids=["once", "unique and once"])


def broken_off(keys: dict[str, Any], fault: Fault) -> Any:
    """Break a dispatch off at each call in turn; gives the worlds, and whether it returned."""
    for place in range(40):
        world = World()
        with Faulty(world.parts, place, fault) as faulty:
            world.push("a", **keys)
        if fault.is_deadly or fault is Fault.DOWN:
            world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        yield world, faulty.raised is None
        if faulty.broken is None:
            return
    pytest.fail("it never ended")


@faults
@kinds
def test_no_dispatch_is_a_duplicate_of_a_job_that_never_was(
    keys: dict[str, Any], fault: Fault
) -> None:
    for world, accepted in broken_off(keys, fault):
        holder = world.push("b", **keys)
        ran = world.drain()
        assert ("a" in ran) == bool(holder), "a duplicate of what ran, or else alone"
        assert ("b" in ran) == (not holder)
        assert holder or not accepted
        assert list(world.facts("once:").values()) in ([], ["a"] if holder else ["b"])


@faults
@kinds
def test_nor_is_one_that_comes_after_the_workers(keys: dict[str, Any], fault: Fault) -> None:
    for world, accepted in broken_off(keys, fault):
        first = world.work()
        holder = world.push("b", **keys)
        second = world.work()
        assert ("a" in first) == bool(holder)
        assert ("b" in second) == (not holder)
        assert holder or not accepted


@faults
@kinds
def test_the_same_dispatch_may_be_sent_again(keys: dict[str, Any], fault: Fault) -> None:
    for world, accepted in broken_off(keys, fault):
        assert world.push("a", **keys) == ""
        ran = world.work()
        assert "a" in ran
        assert ran.count("a") == 1 or not accepted


def test_two_claims_of_ones_own_are_both_taken_again() -> None:
    """As if the dispatcher could not withdraw them, and tries again."""
    world = World()
    with Faulty(world.parts, 1, Fault.KILLED):
        world.push("a", **BOTH)
    assert claims.is_unproven(world.facts("once:")[KEY])
    assert len(world.facts("unique:")) == 1
    assert world.push("a", **BOTH) == ""
    assert world.facts("once:") == {KEY: "a"}
    assert world.work() == ["a"]


def test_the_key_of_a_job_whose_lock_was_withdrawn_is_freed_with_it() -> None:
    world = World()
    messages = world.ordered.messages
    apply = messages.apply

    def slow(*steps: Any) -> Any:
        del messages.apply
        results = apply(*steps)
        world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        assert world.push("b", **UNIQUE) == "", "which needs the lock, not the key"
        return results

    messages.apply = slow  # type: ignore[method-assign]
    assert world.push("a", **BOTH) == "b"
    assert world.work() == ["b"]
    assert world.facts("once:") == {}, "no job has run for it"
    assert world.push("c", **BOTH) == ""
    assert world.work() == ["c"]


def test_each_feature_tells_of_its_own_key() -> None:
    bench = Bench([UniqueFeature(), OnceFeature()])
    assert bench.push("a", **BOTH) == ""
    assert bench.push("b", **BOTH) == "a"
    bench.run()
    assert bench.push("b", **BOTH) == "a", "its lock is free, its key is not"
    other = {**BOTH, "once": {"key": "once:other", "for": 60}}
    assert bench.push("c", **other) == ""
    assert bench.push("d", **{**other, "once": {"key": "once:third", "for": 60}}) == "c"
    assert bench.backend.read("once:third") == [None]
