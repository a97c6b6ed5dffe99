"""The balance by itself: what each queue is to have, of what is seen of it."""

from __future__ import annotations

import pytest

from benchmarks.balancing import Horizon, Ours
from benchmarks.groups import balance as scenes
from qframe.worker.balance import (
    BalancePlan,
    Decision,
    Known,
    Mean,
    QueueReading,
    begin,
    decide,
    share,
)

PLAN = BalancePlan(queues=("a", "b"), most=10, shift=3, clear_within=10)
RUNS_A_SECOND = Known(Mean(1.0, 10.0), ready=0)


def decided(plan: BalancePlan, known: Known = RUNS_A_SECOND, **seen: QueueReading) -> Decision:
    """Decide where both queues are known as said, and of which one that is not named is empty."""
    there = {queue: seen.get(queue, QueueReading(0, plan.least)) for queue in plan.queues}
    return decide(plan, there, dict.fromkeys(plan.queues, known), 3.0)


def test_it_begins_with_the_least_or_with_even_shares() -> None:
    assert begin(PLAN) == {"a": 1, "b": 1}
    assert begin(BalancePlan(queues=("a", "b", "c"), balance="simple", most=8)) == {
        "a": 3,
        "b": 3,
        "c": 2,
    }


def test_simple_gives_even_shares_whatever_waits() -> None:
    plan = BalancePlan(queues=("a", "b", "c"), balance="simple", most=8, shift=1)
    known = Known(Mean(5.0, 10.0), ready=0)
    decision = decided(plan, known, a=QueueReading(10_000, 1), b=QueueReading(0, 7))
    assert decision.targets == {"a": 3, "b": 3, "c": 2}, "at once, not by the shift"
    assert decision.needs["a"] > 3, "what it would need is shown all the same"
    assert set(decision.why.values()) == {"an even share"}
    assert decision.known["a"].ready == 10_000


def test_a_backlog_is_to_be_gone_in_time_and_growth_is_by_the_shift() -> None:
    waiting = decided(PLAN, Known(Mean(1.0, 10.0), ready=40), a=QueueReading(40, 1))
    assert waiting.needs == {"a": 4, "b": 0}
    assert waiting.targets == {"a": 4, "b": 1}
    more = decided(PLAN, Known(Mean(1.0, 10.0), ready=70), a=QueueReading(70, 1))
    assert more.targets == {"a": 4, "b": 1}
    assert more.why["a"] == "70 ready, 0/s arrive, 1 s each: needs 7"


def test_what_arrives_keeps_as_many_busy() -> None:
    known = Known(Mean(2.0, 100.0), arrivals=2.0, ready=0)
    decision = decided(PLAN, known, a=QueueReading(0, 4, begun=6, ended=6, seconds=12.0))
    assert decision.needs["a"] == 4
    assert decision.targets["a"] == 4


def test_no_more_than_there_are_jobs() -> None:
    hours = Known(Mean(3600.0, 10.0), ready=2)
    assert decided(PLAN, hours, a=QueueReading(2, 1)).needs["a"] == 2


def test_a_queue_whose_processes_are_long_in_their_jobs_gets_others_for_what_waits() -> None:
    long = Known(Mean(600.0, 5.0), ready=2)
    decision = decided(PLAN, long, a=QueueReading(2, 3, running=(5.0, 6.0, 7.0)))
    assert decision.needs["a"] == 5


def test_jobs_that_have_not_ended_yet_say_how_long_they_run() -> None:
    decision = decided(PLAN, Known(ready=20), a=QueueReading(20, 1, running=(30.0,)))
    assert "30 s each" in decision.why["a"]
    assert decision.needs["a"] == 21


def test_one_job_that_runs_longer_than_all_before_keeps_nobody_waiting() -> None:
    short = Known(Mean(0.5, 100.0), ready=1)
    assert decided(PLAN, short, a=QueueReading(1, 1, running=(1.0,))).needs["a"] == 1
    assert decided(PLAN, short, a=QueueReading(1, 1, running=(12.0,))).needs["a"] == 2
    assert decided(PLAN, short, a=QueueReading(0, 1, running=(12.0,))).needs["a"] == 1


def test_it_shrinks_slowly_but_by_the_shift_for_another_that_needs_more() -> None:
    alone = decided(PLAN, a=QueueReading(0, 9))
    assert alone.targets == {"a": 7, "b": 1}
    needed = decided(
        PLAN, Known(Mean(1.0, 10.0), ready=90), a=QueueReading(0, 9), b=QueueReading(90, 1)
    )
    assert needed.targets == {"a": 6, "b": 4}


def test_while_something_waits_a_queue_needs_no_less_than_before() -> None:
    known = Known(Mean(1.0, 10.0), ready=60, need=6)
    assert decided(PLAN, known, a=QueueReading(12, 6, begun=48, running=(0.1,) * 6)).needs["a"] >= 6


def test_the_most_is_never_passed_and_the_least_always_kept() -> None:
    crowd = QueueReading(10_000, 2)
    plan = BalancePlan(queues=("a", "b", "c"), least=2, most=7, shift=50)
    known = Known(Mean(5.0, 10.0), ready=10_000)
    targets = decide(
        plan, dict.fromkeys(plan.queues, crowd), dict.fromkeys("abc", known), 3
    ).targets
    assert sum(targets.values()) == 7
    assert min(targets.values()) >= 2
    fewer = decide(
        plan, {q: QueueReading(10_000, 9) for q in "abc"}, dict.fromkeys("abc", known), 3
    ).targets
    assert sum(fewer.values()) == 7


def test_too_few_are_filled_up_to_the_least_at_once() -> None:
    plan = BalancePlan(queues=("a",), least=5, most=9, shift=1)
    assert decide(plan, {"a": QueueReading(0, 0)}, {"a": Known()}, 3.0).targets == {"a": 5}


@pytest.mark.parametrize(
    ("order", "weights", "given"),
    [
        ("weighted", {}, {"a": 4, "b": 4, "c": 2}),
        ("weighted", {"a": 3}, {"a": 6, "b": 2, "c": 2}),
        ("strict", {}, {"a": 8, "b": 1, "c": 1}),
    ],
)
def test_where_all_need_more_the_order_decides(
    order: str, weights: dict[str, float], given: dict[str, int]
) -> None:
    plan = BalancePlan(queues=("a", "b", "c"), most=10, order=order, weights=weights)  # type: ignore[arg-type]
    assert share(plan, {"a": 50, "b": 50, "c": 2}) == given


@pytest.mark.parametrize(
    ("order", "weights", "targets"),
    [
        ("weighted", {}, {"a": 3, "b": 3, "c": 2}),
        ("weighted", {"c": 4}, {"a": 2, "b": 2, "c": 4}),
        ("strict", {}, {"a": 5, "b": 1, "c": 1}),
        ("strict", {"c": 4}, {"a": 5, "b": 1, "c": 1}),
    ],
)
def test_what_there_is_goes_to_queues_in_their_order(
    order: str, weights: dict[str, float], targets: dict[str, int]
) -> None:
    queues = ("a", "b", "c")
    plan = BalancePlan(queues=queues, most=8, shift=4, order=order, weights=weights)  # type: ignore[arg-type]
    known = Known(Mean(1.0, 10.0), ready=90)
    assert decided(plan, known, **dict.fromkeys(queues, QueueReading(90, 1))).targets == targets


def test_by_size_all_jobs_are_taken_to_run_equally_long() -> None:
    seen = {"a": QueueReading(30, 1), "b": QueueReading(30, 1)}
    known = {"a": Known(Mean(9.0, 10.0), ready=30), "b": Known(Mean(1.0, 10.0), ready=30)}
    by_time = decide(PLAN, seen, known, 3.0).needs
    assert by_time["a"] > by_time["b"]
    plan = BalancePlan(queues=("a", "b"), most=10, strategy="size", clear_within=10)
    by_size = decide(plan, seen, known, 3.0).needs
    assert by_size["a"] == by_size["b"] == 15


def test_a_mean_is_kept_while_nothing_ends_and_goes_with_what_does() -> None:
    mean = Mean().after(3.0, 10, 20.0)
    assert mean.seconds == 2.0
    night = mean.after(8 * 3600.0, 0, 0.0)
    assert night.seconds == 2.0
    assert 0 < night.weight <= 1
    assert night.after(3.0, 10, 100.0).seconds == pytest.approx(9.27, abs=0.1)


def test_processes_of_several_slots_are_fewer() -> None:
    plan = BalancePlan(queues=("a", "b"), most=10, shift=9, clear_within=10, slots=20)
    assert decided(plan, Known(Mean(1.0, 10.0), ready=400), a=QueueReading(400, 1)).needs["a"] == 2


def test_short_jobs_do_not_wait_for_long_ones_where_horizons_formula_lets_them() -> None:
    scene = next(each for each in scenes.scenes() if each.name == "long and short")
    ours, theirs = scenes.outcome(scene, Ours), scenes.outcome(scene, Horizon)
    assert ours.longest["short"] < 15 < theirs.longest["short"]
    assert ours.empty <= theirs.empty + 5


def test_on_the_recorded_load_a_queue_waits_no_longer_than_with_horizons_formula() -> None:
    scene = next(each for each in scenes.scenes() if each.name == "commits")
    assert len(scene.load) > 1000
    ours, theirs = scenes.outcome(scene, Ours), scenes.outcome(scene, Horizon)
    assert max(ours.longest.values()) < max(theirs.longest.values())
    assert sum(ours.longest.values()) < 0.8 * sum(theirs.longest.values())
    assert ours.used < 1.05 * theirs.used
