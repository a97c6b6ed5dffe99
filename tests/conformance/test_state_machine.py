"""Any order of moves, by several workers that may die, against a model of what must hold.

The model knows moments only as intervals, since the backend looked at its clock somewhere between
the call and its return: what surely was so must show, what may have been so may.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from qframe import project
from qframe.contracts import Capability, Job
from qframe.drivers.base import HOLD
from qframe.exceptions import JobAlreadySettled, LeaseLost
from tests.conformance.drivers import DRIVERS, RETRY_AFTER, Bench
from tests.conformance.steps import TICK, body

QUEUES = ("high", "low")
BLUR = 0.01
"""Backends round moments; never by more than this."""

any_handle = st.integers(0, 1000)
any_queue = st.sampled_from(QUEUES)
any_delay = st.sampled_from([0, 10, 45])


@dataclass(frozen=True)
class Moment:
    """A time of the backend's clock that is known within bounds."""

    first: float
    last: float

    def after(self, seconds: float) -> Moment:
        return Moment(self.first + seconds - BLUR, self.last + seconds + BLUR)

    def surely_before(self, other: Moment) -> bool:
        return self.last < other.first

    def maybe_before(self, other: Moment) -> bool:
        return self.first <= other.last


@dataclass
class Known:
    """What the model knows of one job. `place`: waiting, reserved, buried, failed or gone."""

    uuid: str
    queue: str
    due: Moment
    number: int = 0
    """Its place in the order of pushes."""
    place: str = "waiting"
    attempts: int = 0
    reservation: int = 0
    lease_until: Moment = Moment(math.inf, math.inf)

    def surely_free(self, now: Moment) -> bool:
        end = {"waiting": self.due, "reserved": self.lease_until}.get(self.place)
        return end is not None and end.surely_before(now)

    def maybe_free(self, now: Moment) -> bool:
        end = {"waiting": self.due, "reserved": self.lease_until}.get(self.place)
        return end is not None and end.maybe_before(now)


@dataclass
class Handle:
    """A reservation in the hands of a worker."""

    job: Job
    known: Known
    reservation: int
    settled: bool = False
    lost: bool = False

    @property
    def stale(self) -> bool:
        return self.known.place != "reserved" or self.known.reservation != self.reservation


@dataclass
class Before:
    """A moment before a call, of which only the end is still to come."""

    clock: Callable[[], float]
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def now(self) -> Moment:
        return Moment(self.began, self.clock())


class Machine(RuleBasedStateMachine):
    """The moves. No rule has a condition, so that what is drawn never depends on the clock."""

    kind: type[Bench]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.bench = self.kind(Path(self.folder.name))
        self.workers = [self.bench.queue, self.bench.another()]
        self.can = self.bench.queue.capabilities
        self.jobs: dict[str, Known] = {}
        self.handles: list[Handle] = []
        self.passed = 0.0
        self.pushes = 0

    def teardown(self) -> None:
        try:
            self.everything_is_where_the_model_has_it()
        finally:
            self.bench.close()
            self.folder.cleanup()
            project._root = None

    # -- moments --------------------------------------------------------------------------------

    def clock(self) -> float:
        return time.time() + self.passed

    def before(self) -> Before:
        return Before(self.clock)

    def tick(self) -> None:
        """Keep the moments that order jobs apart."""
        self.bench.forward(TICK)
        self.passed += TICK

    # -- pushing --------------------------------------------------------------------------------

    @initialize()
    def there_are_some(self) -> None:
        for queue in ("low", "high", "low", "high"):
            self._push(queue, 0)

    @rule(queue=any_queue)
    def push(self, queue: str) -> None:
        self._push(queue, 0)

    @rule(queue=any_queue, delay=any_delay)
    def later(self, queue: str, delay: int) -> None:
        self._push(queue, delay if Capability.DELAY in self.can else 0)

    def _push(self, queue: str, delay: int) -> None:
        self.tick()
        uuid = f"job-{len(self.jobs)}"
        before = self.before()
        assert self.bench.queue.push_raw(body(uuid), queue, delay) == uuid
        self.pushes += 1
        self.jobs[uuid] = Known(uuid, queue, before.now().after(delay), self.pushes)

    # -- reserving ------------------------------------------------------------------------------

    @rule(
        queues=st.sampled_from([("high",), ("low",), ("high", "low"), ("low", "high")]),
        limit=st.integers(1, 4),
        worker=st.integers(0, 1),
        starts=st.integers(0, 3),
    )
    def reserve(self, queues: tuple[str, ...], limit: int, worker: int, starts: int) -> None:
        before = self.before()
        jobs = self.workers[worker].reserve(queues, limit)
        self._reserved(queues, limit, jobs, before.now())
        for handle in self.handles[len(self.handles) - len(jobs) :][:starts]:
            self._start(handle, None)

    @rule(queues=st.just(QUEUES), limit=st.integers(1, 3), number=any_handle)
    def reserve_and_delete_the_finished(
        self, queues: tuple[str, ...], limit: int, number: int
    ) -> None:
        done = self._handle(number, running=True)
        if done is None:
            return
        before = self.before()
        jobs = self.bench.queue.reserve(queues, limit, finished=done.job)
        now = before.now()
        self._finished(done, now)
        self._reserved(queues, limit, jobs, now)

    def _reserved(self, queues: tuple[str, ...], limit: int, jobs: list[Job], now: Moment) -> None:
        ahead = Capability.AHEAD in self.can
        limit = limit if ahead else 1
        assert len(jobs) <= limit
        taken = [self.jobs[job.uuid] for job in jobs]
        assert len({known.uuid for known in taken}) == len(taken), "given twice"
        for job, known in zip(jobs, taken, strict=True):
            assert known.queue in queues
            assert job.queue == known.queue
            assert known.maybe_free(now), f"{known} was not free at {now}"
            assert job.raw_body == body(known.uuid).encode()
        self._check_order(queues, limit, taken, now)
        for job, known in zip(jobs, taken, strict=True):
            known.attempts += not ahead
            assert job.attempts() == known.attempts - self.bench.unstarted
            known.place = "reserved"
            if not self.bench.keeps_places:
                known.due = Moment(-math.inf, math.inf)  # from here on, until it is released
            known.reservation += 1
            known.lease_until = now.after(HOLD if ahead else RETRY_AFTER)
            self.handles.append(Handle(job, known, known.reservation))

    def _check_order(
        self, queues: tuple[str, ...], limit: int, taken: list[Known], now: Moment
    ) -> None:
        left = [
            known
            for known in self.jobs.values()
            if known.queue in queues and known not in taken and known.surely_free(now)
        ]
        assert len(taken) == limit or not left, f"left behind: {left}"
        for index, known in enumerate(taken):
            for other in (*left, *taken[index + 1 :]):
                ahead = queues.index(other.queue) - queues.index(known.queue)
                surely = other.surely_free(now)
                assert not (surely and ahead < 0), f"{known} came before {other}"
                earlier = (
                    other.due.surely_before(known.due)
                    if self.bench.by_readiness
                    else other.number < known.number
                )
                late = ahead == 0 and surely and earlier
                assert not late, f"{known} came before {other}"

    # -- the life of a reservation --------------------------------------------------------------

    def _handle(self, number: int, *, running: bool = False) -> Handle | None:
        """Pick a reservation: mostly one that is open, sometimes one that was settled before."""
        handles = self.handles
        if running or number % 4:
            handles = [handle for handle in handles if not handle.settled]
        if running:
            handles = [handle for handle in handles if getattr(handle.job, "started", False)]
        return handles[number % len(handles)] if handles else None

    @rule(number=any_handle)
    def start(self, number: int) -> None:
        handle = self._held(number)
        if handle is not None:
            self._start(handle, None)

    @rule(number=any_handle, finished=any_handle)
    def start_and_delete_the_finished(self, number: int, finished: int) -> None:
        handle = self._held(number)
        if handle is not None:
            self._start(handle, self._handle(finished, running=True))

    def _held(self, number: int) -> Handle | None:
        held = [
            handle
            for handle in self.handles
            if not getattr(handle.job, "started", False) and not handle.settled
        ]
        return held[number % len(held)] if held else None

    def _start(self, handle: Handle, done: Handle | None) -> None:
        known = handle.known
        before = self.before()
        started = self.bench.queue.start(handle.job, finished=done.job if done else None)
        now = before.now()
        if done is not None:
            self._finished(done, now)
        if handle.stale:
            assert not started
        elif not known.maybe_free(now):
            assert started
        if started:
            known.attempts += Capability.AHEAD in self.can
            lease = now.after(RETRY_AFTER)
            known.lease_until = Moment(lease.first, lease.last + self.bench.longer)
            assert handle.job.attempts() == known.attempts
        else:
            self._lose(handle)

    def _finished(self, done: Handle, now: Moment) -> None:
        if done.stale:
            assert not done.job.is_deleted
        elif not done.known.maybe_free(now):
            assert done.job.is_deleted
        if done.job.is_deleted:
            done.known.place = "gone"
            done.settled = True
        else:
            self._lose(done)

    def _lose(self, handle: Handle) -> None:
        handle.settled = handle.lost = True
        if not handle.stale:  # it expired, and somebody looked: now it waits in its old place
            handle.known.place = "waiting"
            handle.known.reservation += 1

    def _settle(self, number: int, act: Callable[[Job], object]) -> Handle | None:
        """Settle some reservation; gives it if that had to be, and has been, applied."""
        handle = self._handle(number)
        if handle is None:
            return None
        before = self.before()
        try:
            act(handle.job)
        except JobAlreadySettled:
            assert handle.settled
            assert not handle.lost
            return None
        except LeaseLost:
            now = before.now()
            assert handle.lost or not handle.settled, "it was settled, not lost"
            assert handle.lost or handle.stale or handle.known.maybe_free(now), "lost for nothing"
            if not handle.settled:
                self._lose(handle)
            return None
        assert not handle.settled, "settled twice"
        assert not handle.stale, "a stale reservation changed something"
        self.now = before.now()
        return handle

    @rule(number=any_handle)
    def renew(self, number: int) -> None:
        if Capability.RENEW not in self.can:
            return
        handle = self._settle(number, lambda job: job.renew())
        if handle is not None:
            handle.known.lease_until = self.now.after(RETRY_AFTER)

    @rule(number=any_handle)
    def delete(self, number: int) -> None:
        handle = self._settle(number, lambda job: job.delete())
        if handle is not None:
            handle.settled = True
            handle.known.place = "gone"

    @rule(number=any_handle, delay=any_delay)
    def release(self, number: int, delay: int) -> None:
        self._back(number, delay, lambda job, after: job.release(after))

    @rule(number=any_handle, delay=any_delay)
    def retry(self, number: int, delay: int) -> None:
        self._back(number, delay, lambda job, after: job.retry(after, "error", "no"))

    def _back(self, number: int, delay: int, act: Callable[[Job, int], object]) -> None:
        self.tick()
        after = delay if Capability.DELAY in self.can else 0
        handle = self._settle(number, lambda job: act(job, after))
        if handle is not None:
            handle.settled = True
            handle.known.place = "waiting"
            handle.known.due = self.now.after(after)
            self._was_no_attempt(handle)

    @rule(number=any_handle, delay=any_delay)
    def give_back(self, number: int, delay: int) -> None:
        if Capability.UNCOUNTED not in self.can:
            return
        self.tick()
        handle = self._settle(number, lambda job: job.give_back(delay))
        if handle is not None:
            handle.settled = True
            handle.known.place = "waiting"
            counted = Capability.AHEAD not in self.can or getattr(handle.job, "started", False)
            handle.known.attempts -= counted
            if delay:
                handle.known.due = self.now.after(delay)

    @rule(number=any_handle)
    def bury(self, number: int) -> None:
        if Capability.BURY not in self.can:
            return
        handle = self._settle(number, lambda job: job.bury())
        if handle is not None:
            handle.settled = True
            handle.known.place = "buried"
            self._was_no_attempt(handle)

    def _was_no_attempt(self, handle: Handle) -> None:
        """One that was settled without having been started may have been counted only till then."""
        if not getattr(handle.job, "started", False):
            handle.known.attempts -= self.bench.unstarted

    @rule(number=any_handle, ran=st.booleans())
    def fail(self, number: int, ran: bool) -> None:
        if Capability.ATOMIC_FAIL not in self.can:
            handle = self._handle(number)
            now = self.before().now()
            if handle is not None and (
                handle.settled or handle.stale or handle.known.maybe_free(now)
            ):
                return  # it may leave a record, since that is written first
        handle = self._settle(number, lambda job: job.fail(ValueError("no"), ran=ran))
        if handle is not None:
            handle.settled = True
            handle.known.place = "failed"
            record = self.bench.failed.find(handle.known.uuid)
            assert record is not None
            started = getattr(handle.job, "started", False)
            uncounted = not ran if started else self.bench.unstarted
            assert record.attempts == handle.known.attempts - uncounted
            assert record.payload == handle.job.raw_body

    # -- around them ----------------------------------------------------------------------------

    @rule(queue=any_queue)
    def kick(self, queue: str) -> None:
        if Capability.BURY not in self.can:
            return
        self.tick()
        before = self.before()
        count = self.bench.queue.kick(queue)
        now = before.now()
        buried = [
            known
            for known in self.jobs.values()
            if known.place == "buried" and known.queue == queue
        ]
        assert count == len(buried)
        for known in buried:
            known.place, known.due = "waiting", now

    @rule(number=any_handle)
    def requeue(self, number: int) -> None:
        failed = [known for known in self.jobs.values() if known.place == "failed"]
        if not failed:
            return
        self.tick()
        known = failed[number % len(failed)]
        record = self.bench.failed.find(known.uuid)
        assert record is not None
        before = self.before()
        assert self.bench.queue.requeue(record, record.payload, self.bench.failed)
        known.place, known.due, known.attempts = "waiting", before.now(), 0
        self.pushes += 1
        known.number = self.pushes

    @rule(seconds=st.sampled_from([0.3, 1.5, 20, RETRY_AFTER + 5]))
    def time_passes(self, seconds: float) -> None:
        self.bench.forward(seconds)
        self.passed += seconds

    @rule(worker=st.integers(0, 1), limit=st.integers(1, 4), seconds=st.sampled_from([20, 65]))
    def time_passes_and_another_takes_over(self, worker: int, limit: int, seconds: int) -> None:
        self.time_passes(seconds)
        self.reserve(QUEUES, limit, worker, limit - 1)

    @rule(number=any_handle)
    def a_job_takes_long(self, number: int) -> None:
        """Its lease is renewed in time, so nobody else gets it."""
        self.time_passes(RETRY_AFTER - 15)
        self.renew(number)
        self.time_passes(RETRY_AFTER - 15)
        self.reserve(QUEUES, 4, 1, 0)

    @rule()
    def a_worker_dies(self) -> None:
        """Its reservations are in nobody's hands; their leases go on."""
        self.handles = self.handles[::2]

    # -- what must always hold ------------------------------------------------------------------

    def _count(self, *places: str, queue: str | None = None) -> int:
        return sum(
            known.place in places and queue in (None, known.queue) for known in self.jobs.values()
        )

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        assert self.bench.failed.count() == self._count("failed")
        if Capability.SIZE not in self.can:
            return
        for queue in QUEUES:
            before = self.before()
            sizes = self.bench.queue.sizes(queue)
            now = before.now()
            assert sizes.total == self._count("waiting", "reserved", queue=queue)
            assert sizes.buried == self._count("buried", queue=queue)
            here = [known for known in self.jobs.values() if known.queue == queue]
            leased = [known for known in here if known.place == "reserved"]
            live = sum(not known.maybe_free(now) for known in leased)
            assert live <= sizes.reserved <= len(leased)
            late = [known for known in here if known.place == "waiting"]
            surely = sum(not known.maybe_free(now) for known in late)
            maybe = sum(not known.surely_free(now) for known in late)
            assert surely <= sizes.delayed <= maybe

    def everything_is_where_the_model_has_it(self) -> None:
        """Let all delays and leases end, and look at each job that is left."""
        self.time_passes(100 * RETRY_AFTER)
        if Capability.BURY in self.can:
            assert sum(map(self.bench.queue.kick, QUEUES)) == self._count("buried")
        found: dict[str, int] = {}
        while jobs := self.bench.queue.reserve(QUEUES, 10):
            for job in jobs:
                assert job.uuid not in found
                found[job.uuid] = job.attempts()
                job.delete()
        ahead = Capability.AHEAD in self.can
        assert found == {
            known.uuid: known.attempts + (not ahead) - self.bench.unstarted
            for known in self.jobs.values()
            if known.place in {"waiting", "reserved", "buried"}
        }
        assert {record.uuid for record in self.bench.failed.page(1000)} == {
            known.uuid for known in self.jobs.values() if known.place == "failed"
        }


@pytest.mark.timeout(400)  # only what fails takes long: it is made shorter
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name)
        for name, kind in DRIVERS.items()
        if Capability.RESERVE in kind.kind.capabilities
    ],
)
def test_whatever_happens_every_job_is_in_one_place(
    kind: type[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "_root", None)
    machine = type("MachineOf" + kind.__name__, (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=75,
            stateful_step_count=45,
            deadline=None,
            derandomize="CI" in os.environ,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
