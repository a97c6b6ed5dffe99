"""What a worker with bounds says to its backend, and what it makes of the answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pytest

from qframe import Queueable
from qframe.config import QueueSettings
from qframe.contracts.step import Reservation, Result, Set, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.features.reserved import ReservedJob
from qframe.worker.attempt import Attempt
from qframe.worker.concurrency import ConcurrencyLimits
from qframe.worker.needs import BEGIN
from qframe.worker.slot_leases import ConcurrencyLimit
from tests.worker.bench import Bench

OTHER = "another worker's"
ran: list[str] = []


class Plain(Queueable):
    def handle(self) -> None:
        ran.append("plain")


class Few(Queueable):
    concurrency: ClassVar[int | None] = 1

    def handle(self) -> None:
        ran.append("few")


class Late(Few):
    pass


class Releases(Queueable):
    def handle(self) -> None:
        self.release(5)
        ran.append(",".join(key for key, _ in taken(self.bench())))

    def bench(self) -> Bench:
        return Benches.last


class Benches:
    last: Bench


def taken(bench: Bench) -> list[tuple[str, str]]:
    return MemoryBackend.scan(bench.backend, "permit:")


def bounded(
    *, most: int | None = None, here: dict[str, int] | None = None, late: bool = False
) -> Bench:
    """Give a bench whose queue `q` has a bound."""
    bench = Benches.last = Bench(Plain, Few, Releases, late=[Late] if late else [])
    configured = {} if most is None else {"q": QueueSettings(concurrency=most)}
    concurrency = bench.runner.concurrency = ConcurrencyLimits(
        bench.connection, here or {}, configured
    )
    if concurrency.of_queues:
        settler = bench.runner.settler
        settler.reserve_after = partial(_reserve, concurrency)  # as the loop does
    ran.clear()
    return bench


def _reserve(
    concurrency: ConcurrencyLimits,
    first: Sequence[Step],
    queues: Sequence[str],
    limit: int = 1,
) -> tuple[list[ReservedJob], list[Result]]:
    return concurrency.reserve_after(first, queues, limit, [])


def occupy(bench: Bench, *keys: str) -> None:
    """Let another worker have permits."""
    MemoryBackend.apply(bench.backend, Step(None, *(Set(key, OTHER, 60) for key in keys)))


def forget(bench: Bench) -> None:
    """Let what was read be too old to be believed."""
    assert bench.runner.concurrency is not None
    for each in bench.runner.concurrency._queues.values():
        if each.everywhere is not None:
            each.everywhere._known = each.everywhere._full_until = -1e9
    for limit in bench.runner.concurrency._classes.values():
        limit._known = limit._full_until = -1e9


def hold(bench: Bench, count: int = 1) -> list[ReservedJob]:
    return bench.runner.settler.reserve(["q"], count)


# -- how many exchanges ---------------------------------------------------------------------------


def test_a_job_without_a_bound_costs_what_it_did() -> None:
    plain, unbounded = Bench(Plain), bounded()
    said = []
    for bench in (plain, unbounded):
        bench.backend.timing.hold = 60.0  # sure of its leases, however slow the machine
        for _ in range(3):
            bench.push("Plain")
        bench.backend.said.clear()
        for job in hold(bench, 3):
            bench.runner.run(job)
        bench.runner.settler.flush()
        said.append(bench.backend.said)
    assert said[0] == said[1]
    assert said[0] == ["reserve", "apply_async Start", "apply_async Delete Start",
                       "apply_async Delete Start", "apply Delete"]  # fmt: skip


def test_a_runner_without_bounds_asks_nobody() -> None:
    """As `testing.run` has it."""
    bench = Bench(Few)
    occupy(bench, f"permit:class:{Few.own_name()}:0")
    assert bench.run("Few") == "done"
    assert bench.backend.said == ["reserve", "apply_async Start"]


def test_a_permit_is_taken_with_the_start_and_given_back_with_the_end() -> None:
    bench = bounded(most=2)
    for _ in range(3):
        bench.push("Plain")
    bench.backend.said.clear()
    for _ in range(3):
        (job,) = hold(bench)
        bench.runner.run(job)
    bench.runner.settler.flush()
    assert bench.backend.said == [
        "reserve", "apply Expect Set Start",
        "reserve Unset Delete", "apply Expect Set Start",
        "reserve Unset Delete", "apply Expect Set Start",
        "apply Unset Delete",
    ]  # fmt: skip
    assert not taken(bench)


def test_jobs_taken_ahead_are_no_more_than_may_run_and_cost_one_exchange_each() -> None:
    bench = bounded(most=2)
    for _ in range(5):
        bench.push("Plain")
    bench.backend.said.clear()
    jobs = hold(bench, 5)
    assert len(jobs) == 2
    for job in jobs:
        bench.runner.run(job)
    assert bench.backend.said[-2:] == [
        "apply Expect Set Start",
        "apply Unset Delete Expect Set Start",
    ]
    assert len(hold(bench, 5)) == 2


# -- the order of queues --------------------------------------------------------------------------


class Asked:
    """What is asked of a backend."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int, int]] = []
        original = bench.backend.reserve

        def reserve(
            queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
        ) -> tuple[list[Reservation], list[Result]]:
            self.asked.append((",".join(queues), limit, len(first)))
            return original(queues, limit, first=first)

        monkeypatch.setattr(bench.backend, "reserve", reserve)


def reserved(bench: Bench, queues: str, limit: int, *held: ReservedJob) -> list[str]:
    assert bench.runner.concurrency is not None
    found, _ = bench.runner.concurrency.reserve_after((), queues.split(","), limit, held)
    return [job.queue for job in found]


def fill(bench: Bench, **queues: int) -> None:
    for queue, count in queues.items():
        for _ in range(count):
            bench.connection.push_raw('{"job": "Plain"}', queue)


def test_a_queue_with_a_bound_is_asked_by_itself_and_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bounded(here={"b": 2})
    asked = Asked(bench, monkeypatch)
    fill(bench, a=3, b=5, c=5)
    assert reserved(bench, "a,b,c,d", 10) == ["a"] * 3 + ["b"] * 2 + ["c"] * 5
    assert asked.asked == [("a", 10, 0), ("b", 2, 0), ("c,d", 5, 0)]


def test_where_the_bound_is_no_hindrance_all_are_asked_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bounded(here={"b": 2})
    asked = Asked(bench, monkeypatch)
    fill(bench, a=1, b=5)
    assert reserved(bench, "a,b,c", 2) == ["a", "b"]
    assert asked.asked == [("a,b,c", 2, 0)]


def test_queues_with_bounds_are_asked_together_until_one_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bounded(here={"t-*": 2})
    asked = Asked(bench, monkeypatch)
    fill(bench, **{"t-1": 1, "t-2": 5, "t-3": 3})
    assert reserved(bench, "t-0,t-1,t-2,t-3,t-4", 9) == ["t-1"] + ["t-2"] * 2 + ["t-3"] * 2
    assert [queues for queues, *_ in asked.asked] == [
        "t-0,t-1,t-2,t-3,t-4", "t-2,t-3,t-4", "t-3,t-4", "t-4",
    ]  # fmt: skip


def test_a_full_queue_is_left_out_and_no_other() -> None:
    bench = bounded(here={"b": 1})
    fill(bench, b=2, c=1)
    assert bench.runner.concurrency is not None
    held = bench.connection.reserve(["b"])
    assert bench.runner.concurrency.open(["a", "b", "c"], held) == ("a", "c")
    assert reserved(bench, "a,b,c", 5, *held) == ["c"]


def test_the_steps_go_with_the_first_that_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bounded(here={"b": 1, "c": 1})
    asked = Asked(bench, monkeypatch)
    assert bench.runner.concurrency is not None
    step = Step(None, Set("fact", "there"))
    _, results = bench.runner.concurrency.reserve_after([step], ["a", "b"], 4, ())
    assert [result.applied for result in results] == [True]
    assert asked.asked == [("a", 4, 1), ("b", 1, 0)]
    held = [*bench.connection.reserve(["b"]), *bench.connection.reserve(["c"])]
    fill(bench, b=1, c=1)
    held = bench.connection.reserve(["b", "c"], 2)
    _, results = bench.runner.concurrency.reserve_after([step], ["b", "c"], 4, held)
    assert [result.applied for result in results] == [True], "also where none is asked"


def test_of_several_bounds_the_least_counts() -> None:
    bench = bounded(here={"mail": 4, "m*": 3, "*": 5})
    fill(bench, mail=9, other=9)
    assert reserved(bench, "mail", 9) == ["mail"] * 3
    assert reserved(bench, "other", 9) == ["other"] * 5


def test_no_more_bytes_are_held_than_in_one_reservation() -> None:
    bench = bounded(here={"b": 2})
    bench.backend.timing.most_bytes = 1000
    for queue in "abc":
        bench.connection.push_raw('{"job": "Plain", "data": "' + "x" * 1000 + '"}', queue)
    assert reserved(bench, "a,b,c", 9) == ["a"]


# -- permits that others have ---------------------------------------------------------------------


def test_what_others_have_is_not_reserved_for() -> None:
    bench = bounded(most=2)
    occupy(bench, "permit:queue:memory:q:0", "permit:queue:memory:q:1")
    bench.push("Plain")
    assert hold(bench) == []
    assert bench.left == bench.backend.sizes("q").ready == 1
    MemoryBackend.apply(bench.backend, Step(None, Set("permit:queue:memory:q:1", "", 0)))
    forget(bench)
    (job,) = hold(bench)
    assert bench.runner.run(job).outcome == "done"
    bench.runner.settler.flush()
    assert taken(bench) == [("permit:queue:memory:q:0", OTHER)]


def test_whoever_comes_second_tries_another_permit() -> None:
    bench = bounded(most=3)
    bench.push("Plain")
    (job,) = hold(bench)
    occupy(bench, "permit:queue:memory:q:0", "permit:queue:memory:q:2")
    assert bench.runner.run(job).outcome == "done"
    assert ran == ["plain"]


def test_a_start_that_is_refused_is_tried_with_what_is_free_by_then() -> None:
    """Of many permits that were free a while ago: one is refused, one read says which still are."""
    bench = bounded(most=100)
    bench.push("Plain")
    (job,) = hold(bench)
    occupy(bench, *(f"permit:queue:memory:q:{number}" for number in range(100) if number != 42))
    assert bench.runner.run(job).outcome == "done"
    starts = [said for said in bench.backend.said if "Start" in said]
    assert len(starts) <= 2, "or one, by chance"


def test_a_job_that_finds_none_goes_back_uncounted_and_first() -> None:
    bench = bounded(most=2)
    for _ in range(2):
        bench.push("Plain")
    jobs = hold(bench, 2)
    uuids = [job.id for job in jobs]
    occupy(bench, "permit:queue:memory:q:0", "permit:queue:memory:q:1")
    for job in jobs:
        assert bench.runner.run(job).outcome == "lost"
    bench.runner.settler.flush()
    assert ran == []
    again = bench.connection.reserve(["q"], 2)
    assert [job.id for job in again] == uuids
    assert [job.attempts() for job in again] == [0, 0]
    assert not [value for _, value in taken(bench) if value != OTHER]


def test_a_class_that_is_full_waits_and_others_run() -> None:
    bench = bounded()
    bench.push("Few")
    bench.push("Plain")
    occupy(bench, "permit:class:tests.worker.test_slot_leases.Few:0")
    few, plain = hold(bench, 2)
    assert bench.runner.run(few).outcome == "lost"
    assert bench.runner.run(plain).outcome == "done"
    assert ran == ["plain"]
    bench.runner.settler.flush()
    assert bench.backend.sizes("q").delayed == 1
    bench.backend.timing.skew += 1000
    (few,) = hold(bench)
    assert few.attempts() == 0
    forget(bench)
    assert bench.runner.run(few).outcome == "done"
    bench.runner.settler.flush()
    assert not taken(bench)


def test_a_job_of_two_bounds_takes_both_or_none() -> None:
    bench = bounded(most=1)
    bench.push("Few")
    (few,) = hold(bench)
    occupy(bench, "permit:class:tests.worker.test_slot_leases.Few:0")
    assert bench.runner.run(few).outcome == "lost"
    bench.runner.settler.flush()
    assert taken(bench) == [("permit:class:tests.worker.test_slot_leases.Few:0", OTHER)]
    bench.push("Plain")
    (plain,) = hold(bench)
    assert bench.runner.run(plain).outcome == "done"


def test_a_class_that_is_known_late_is_asked_for_then() -> None:
    bench = bounded(late=True)
    name = f"permit:class:{Late.own_name()}:0"
    bench.push("Late")
    occupy(bench, name)
    (late,) = hold(bench)
    assert bench.runner.run(late).outcome == "given back"
    assert ran == []
    assert bench.backend.sizes("q").delayed == 1
    bench.backend.timing.skew += 1000
    (late,) = hold(bench)
    assert late.attempts() == 0
    forget(bench)
    bench.backend.said.clear()
    assert bench.runner.run(late).outcome == "done"
    bench.runner.settler.flush()
    assert bench.backend.said[0] == "apply Expect Set Start", "by its name it is known now"
    assert not taken(bench)


# -- answers that are lost, leases that are -------------------------------------------------------


def test_a_start_whose_answer_is_lost_leaves_no_permit_behind() -> None:
    bench = bounded(most=1)
    bench.push("Plain")
    (job,) = hold(bench)
    bench.backend.cut = 1
    with pytest.raises(BackendUnavailable):
        bench.runner.run(job)
    assert len(taken(bench)) == 1
    job.reservation.started = False  # nobody was told
    job.reservation.attempts = 0
    assert bench.runner.run(job).outcome == "done", "its permit is its own"
    bench.runner.settler.flush()
    assert not taken(bench)
    assert bench.left == 0


def test_a_start_that_did_not_arrive_takes_its_permit_later() -> None:
    bench = bounded(most=1)
    bench.push("Plain")
    (job,) = hold(bench)
    bench.backend.down = 1
    with pytest.raises(BackendUnavailable):
        bench.runner.run(job)
    assert bench.runner.run(job).outcome == "done"
    bench.runner.settler.flush()
    assert not taken(bench)


def test_the_permit_of_a_job_that_was_lost_is_given_back_by_the_heartbeat() -> None:
    bench = bounded(most=1)
    bench.push("Plain")
    (job,) = hold(bench)
    original = job.plan

    def lost_before(end: Any) -> Any:
        bench.backend.lose(job)
        return original(end)

    job.plan = lost_before  # type: ignore[method-assign] # another takes it as it ends
    bench.runner.run(job)
    bench.runner.settler.flush()
    assert len(taken(bench)) == 1
    assert bench.runner.concurrency is not None
    for slot_lease in bench.runner.concurrency.slot_leases._left:
        bench.runner.concurrency.slot_leases._left[slot_lease] = 0
    bench.runner.concurrency.slot_leases.beat()
    assert not taken(bench)


def test_a_job_that_settles_itself_keeps_its_permit_until_it_ends() -> None:
    bench = bounded(most=1)
    bench.push("Releases")
    (job,) = hold(bench)
    assert bench.runner.run(job).outcome == "released"
    assert ran == ["permit:queue:memory:q:0"]
    bench.push("Plain")
    (plain,) = hold(bench)
    assert bench.runner.run(plain).outcome == "done", "its permit is handed on"
    bench.runner.settler.flush()
    assert not taken(bench)


@pytest.mark.parametrize("then", ["given back", "close"])
def test_what_a_job_that_settled_itself_leaves_is_given_back(then: str) -> None:
    bench = bounded(most=1)
    bench.push("Releases")
    bench.runner.run(hold(bench)[0])
    assert len(taken(bench)) == 1
    assert bench.runner.concurrency is not None
    slot_leases = bench.runner.concurrency.slot_leases
    if then == "close":
        slot_leases.close()
    else:
        slot_leases.beat()
    assert not taken(bench)


class Running:
    """A job with a permit whose handler runs."""

    def __init__(self) -> None:
        self.bench = bounded(most=1)
        self.bench.push("Plain")
        (job,) = hold(self.bench)
        runner = self.bench.runner
        assert runner.concurrency is not None
        self.slot_leases = runner.concurrency.slot_leases
        assert runner.start(Attempt(runner, job), BEGIN)
        (self.slot_lease,) = self.slot_leases._taken[job]
        self.job = job

    def pass_by(self, seconds: float) -> None:
        self.bench.backend.timing.skew += seconds
        self.slot_lease.renew_at -= seconds

    @property
    def held(self) -> list[str]:
        return [value for _, value in taken(self.bench)]


def test_a_permit_is_renewed_as_long_as_its_job_runs() -> None:
    running = Running()
    for _ in range(20):
        running.pass_by(10)
        running.slot_leases.beat()
        assert running.held == [running.slot_lease.token]
    running.pass_by(31)
    assert running.held == []


def test_a_permit_that_ran_out_is_taken_again(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.pass_by(31)
    running.slot_leases.beat()
    assert running.held == [running.slot_lease.token]
    assert "had run out, and was taken again" in caplog.text


def test_a_permit_that_another_took_is_the_others(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.pass_by(31)
    occupy(running.bench, running.slot_lease.fact)
    running.slot_leases.beat()
    assert "one more than 1 may run meanwhile" in caplog.text
    caplog.clear()
    running.slot_leases.beat()
    assert not caplog.records
    running.slot_leases.ended(running.job)
    running.job.delete()
    running.slot_leases.over(running.job)
    running.slot_leases.close()
    assert running.held == [OTHER]


def test_a_renewal_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        running.pass_by(10)
        running.bench.backend.down = 1
        running.slot_leases.beat()
    assert len(caplog.records) == 1
    running.slot_leases.beat()
    running.pass_by(25)
    assert running.held == [running.slot_lease.token]


# -- steps that are made in parts -----------------------------------------------------------------


def test_in_parts_a_permit_that_another_took_meanwhile_costs_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bounded(most=1)
    facts = MemoryBackend()
    ordered = OrderedBackend(bench.backend, facts, facts)
    bench.context.backend = ordered
    bench.connection.backend = ordered
    bench.runner.settler._backend = ordered
    assert bench.runner.concurrency is not None
    bench.runner.concurrency.slot_leases._backend = ordered
    bench.push("Plain")
    (job,) = hold(bench)
    read = facts.read

    def read_before_another(*keys: str) -> list[str | None]:
        found = read(*keys)
        facts.apply(Step(None, Set("permit:queue:memory:q:0", OTHER, 60)))
        return found

    monkeypatch.setattr(facts, "read", read_before_another)
    assert bench.runner.run(job).outcome == "lost"
    bench.runner.settler.flush()
    assert ran == []
    (again,) = bench.connection.reserve(["q"])
    assert again.attempts() == 0
    assert facts.read("permit:queue:memory:q:0") == [OTHER]


# -- how long a job of a full class waits ---------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("qframe.worker.slot_leases.time.monotonic", lambda: now[0])
    return now


def test_a_job_waits_longer_the_longer_the_same_ones_run(clock: list[float]) -> None:
    limit = ConcurrencyLimit("class", "a", 1)
    limit.learn([OTHER])
    delays = []
    for _ in range(7):
        assert limit.pick() is None
        delays.append(limit.delay())
        clock[0] += 2 ** len(delays)
        limit.learn([OTHER])
    assert 0.1 <= delays[0] <= 0.2
    assert all(delay <= 10 for delay in delays)
    assert delays[-1] >= 7
    limit.learn(["yet another"])
    assert limit.pick() is None
    assert limit.delay() <= 0.2, "they are short, after all"


def test_many_jobs_come_again_one_after_the_other(clock: list[float]) -> None:
    limit = ConcurrencyLimit("class", "a", 1)
    limit.learn([OTHER])
    assert limit.pick() is None
    delays = [limit.delay() for _ in range(10_000)]
    assert max(delays) <= 10
    assert sum(1 <= delay < 2 for delay in delays) == pytest.approx(500, abs=2)
    assert sum(delay < 0.2 for delay in delays) < 110


def test_it_is_looked_only_where_there_may_be_something_new(clock: list[float]) -> None:
    limit = ConcurrencyLimit("queue", "a", 2)
    assert limit.looks_at() <= clock[0], "nothing is known"
    limit.learn([None, None])
    assert limit.looks_at() == clock[0] + 1
    assert limit.room == 2
    assert limit.pick() is not None
    assert limit.pick() is not None
    assert limit.looks_at() == float("inf"), "all are here"
    limit.learn([OTHER, OTHER])
    assert limit.room == 0
    for key in limit.keys:
        limit.lose(key)
    limit.learn([OTHER, OTHER])
    assert 0.3 < limit.looks_at() - clock[0] < 0.7


def test_long_names_have_keys_as_well() -> None:
    limit = ConcurrencyLimit("class", "x" * 500, 3)
    assert all(len(key) <= 250 for key in limit.keys)
    assert limit.keys != ConcurrencyLimit("class", "x" * 501, 3).keys
