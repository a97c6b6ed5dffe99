"""Slot leases: facts that limit how many jobs of a queue or class run at once over all workers.

A limit of N has N keys. A job takes one in the step that starts it, and gives it back in the step
that ends it. The heartbeat renews it as long as the handler runs, so the key of a killed worker is
free when its lease expires. Stored keys, messages and docs/concepts/permits.md call it a permit.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import secrets
import time
from collections.abc import Sequence
from typing import ClassVar

from qframe import forks
from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Result, Set, Step, Unset
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End, Plan
from qframe.features.reserved import Feature, ReservedJob

log = logging.getLogger("qframe")

QUEUE, CLASS = "queue", "class"
_LONGEST_LEASE = 30.0
_LONGEST_NAME = 200
_FRESH = 1.0
"""Seconds for which a read is believed."""
_FULL_FOR = 0.5
"""Seconds, about, after which a full limit is read again."""
_UNSAID = 2.0
"""Seconds within which a step that gives a slot lease back is sent, or never."""
_TRIES = 5
_SHORTEST_DELAY = 0.2
_LONGEST_DELAY = 10.0
_APART = 0.002
"""Seconds between the retries of two jobs of a class, as long as they may wait no longer."""


class ConcurrencyLimit:
    """One limit, as far as this worker knows how it stands. Thread-safe."""

    def __init__(self, kind: str, name: str, most: int) -> None:
        self.kind = kind
        self.shown = f"{kind} {name}"
        self.most = most
        self.keys = keys(kind, name, most)
        self._free: dict[str, str | None] = {}
        """The free keys, the last given back last; with the values they hold."""
        self._picked: set[str] = set()
        """The keys that jobs here have, or are about to take."""
        self._known = -math.inf
        self._full_until = 0.0
        self._full_since = 0.0
        self._put_off = 0.0
        self._holders: frozenset[str | None] = frozenset()
        self._mutex = forks.lock()

    @property
    def room(self) -> int:
        """How many slot leases are free, as far as is known."""
        return len(self._free)

    def looks_at(self) -> float:
        """Returns the moment from which the slot leases are worth reading again."""
        if self._free:
            return self._known + _FRESH
        return self._full_until if len(self._picked) < self.most else math.inf

    def learn(self, values: Sequence[str | None]) -> None:
        now, holders = time.monotonic(), frozenset(values)
        with self._mutex:
            before, self._free = self._free, {}
            pairs = list(zip(self.keys, values, strict=True))
            random.shuffle(pairs)  # so that two workers do not try the same key first
            for key, value in pairs:
                if key not in self._picked and (value is None or value == before.get(key)):
                    self._free[key] = value
            self._known = now
            if holders != self._holders:
                self._full_since = 0.0
            self._holders = holders
            if not self._free:
                self._full_until = now + _FULL_FOR * random.uniform(0.7, 1.3)  # noqa: S311 (jitter)

    def pick(self) -> tuple[str, str | None] | None:
        """Takes a free key; returns it with the value it holds."""
        with self._mutex:
            if not self._free:
                self._full_since = self._full_since or time.monotonic()
                return None
            key, holds = self._free.popitem()
            self._picked.add(key)
            self._full_since = 0.0
            return key, holds

    def unknown(self) -> None:
        """Assumes for a while that none is free, since the store does not answer."""
        with self._mutex:
            self._free.clear()
            self._full_until = time.monotonic() + _FULL_FOR

    def give(self, key: str, holds: str | None = None) -> None:
        with self._mutex:
            self._picked.discard(key)
            self._free[key] = holds
            self._known = time.monotonic()

    def lose(self, key: str) -> None:
        """Forgets a picked key: another worker has it, and perhaps others by now."""
        with self._mutex:
            self._picked.discard(key)
            self._free = {each: holds for each, holds in self._free.items() if holds is not None}
            self._full_until = 0.0

    def is_free(self, key: str) -> None:
        with self._mutex:
            if key not in self._picked:
                self._free[key] = None
                self._known = time.monotonic()

    def delay(self) -> float:
        """Returns the seconds until a job that found no slot lease is worth trying again.

        That is half of the time for which the same jobs have had all slot leases, so those of
        short jobs are soon in use again. Many waiting jobs are spread over moments.
        """
        now = time.monotonic()
        longest = max(_SHORTEST_DELAY, (now - (self._full_since or now)) / 2)
        self._put_off = max(now, self._put_off + _APART)
        wanted = max(longest * random.uniform(0.5, 1), self._put_off - now)  # noqa: S311 (jitter)
        return min(wanted, _LONGEST_DELAY * random.uniform(0.7, 1))  # noqa: S311


class SlotLease(Feature):
    """One slot lease of one job, which adds to the job's start and end."""

    key: ClassVar[str] = ""
    """No payload names it: the worker adds it."""
    runs = False
    """Whether the handler runs, so that the slot lease must be kept."""
    renew_at = math.inf
    _given = False

    def __init__(
        self, slot_leases: SlotLeases, limit: ConcurrencyLimit, fact: str, holds: str | None
    ) -> None:
        self.limit = limit
        self.fact = fact
        self.holds = holds
        self.token = f"{process.NAME}:{process.pid()}:{secrets.token_hex(8)}"
        self._slot_leases = slot_leases

    def taking(self) -> tuple[Expect, Set]:
        return Expect(self.fact, self.holds), Set(self.fact, self.token, self._slot_leases.lease)

    def giving(self) -> Unset:
        return Unset(self.fact, self.token)

    def start(self, job: ReservedJob, plan: Plan) -> None:  # noqa: ARG002 (a feature's)
        """Takes it; the start is refused if another job has it."""
        plan.add(*self.taking())
        plan.then(self.taken)

    def taken(self) -> None:
        self.runs = True
        self.renew_at = time.monotonic() + self._slot_leases.lease / 3

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:  # noqa: ARG002 (as above)
        """Gives it back, but not if the job settles itself and runs on."""
        if self.runs:
            return
        plan.add(self.giving())
        plan.then(self._was_given)
        if not self._given:
            self._given = True
            self.limit.give(self.fact)  # the next start is sent after this end, or with it

    @property
    def is_given(self) -> bool:
        """Whether a step was planned that gives it back."""
        return self._given

    def has_ended(self) -> bool:
        return not self.runs

    def _was_given(self) -> None:
        self._slot_leases.forget(self)
        self.limit.is_free(self.fact)


class SlotLeases:
    """The slot leases of one worker's jobs. Raises `BackendUnavailable`."""

    def __init__(self, backend: Backend, retry_after: float) -> None:
        self.lease = min(retry_after, _LONGEST_LEASE)
        self.every = min(1.0, self.lease / 6)
        self._backend = backend
        self._taken: dict[ReservedJob, list[SlotLease]] = {}
        self._left: dict[SlotLease, float] = {}
        """Slot leases whose jobs are over, and from when on they are to be given back."""
        self._silent = False

    def __contains__(self, job: ReservedJob) -> bool:
        return job in self._taken

    def of(self, job: ReservedJob) -> Sequence[tuple[str, str]]:
        """Returns the slot leases of a job: their keys, and the values they hold."""
        return [(each.fact, each.token) for each in self._taken.get(job, ())]

    def look(self, limits: Sequence[ConcurrencyLimit]) -> None:
        """Refreshes stale limits with one read."""
        now = time.monotonic()
        due = [limit for limit in limits if limit.looks_at() <= now]
        if due:
            values = iter(self._backend.read(*(key for limit in due for key in limit.keys)))
            for limit in due:
                limit.learn([next(values) for _ in limit.keys])

    # -- taking -----------------------------------------------------------------------------------

    def pick(self, job: ReservedJob, limits: Sequence[ConcurrencyLimit]) -> ConcurrencyLimit | None:
        """Makes the start of a job take a slot lease of each limit.

        Returns the limit that has none; then nothing is taken.
        """
        self.undo(job)
        picked: list[SlotLease] = []
        for limit in limits:
            found = limit.pick()
            if found is None:
                self.look([limit])
                found = limit.pick()
            if found is None:
                for each in picked:
                    each.limit.give(each.fact, each.holds)
                return limit
            picked.append(SlotLease(self, limit, *found))
        self._taken[job] = picked
        job.features = [*job.features, *picked]
        return None

    def undo(self, job: ReservedJob) -> None:
        """Returns the slot leases of a start that was never sent."""
        for each in self._detach(job):
            each.limit.give(each.fact, each.holds)

    def refused(self, job: ReservedJob, result: Result) -> ConcurrencyLimit | None:
        """Returns the limit whose slot lease another job has, after a refused start."""
        found = None
        for each in self._detach(job):
            if each.fact != result.key:
                each.limit.give(each.fact, each.holds)
                continue
            found = each.limit
            found.lose(each.fact)
            if result.holds is None:
                found.is_free(each.fact)
        return found

    def take(self, job: ReservedJob, limit: ConcurrencyLimit) -> bool:
        """Takes a slot lease for a job that was started; returns whether it has one."""
        if any(each.limit.keys[0] == limit.keys[0] for each in self._taken.get(job, ())):
            return True
        for _ in range(_TRIES):
            self.look([limit])
            found = limit.pick()
            if found is None:
                break
            slot_lease = SlotLease(self, limit, *found)
            (result,) = self._backend.apply(Step(None, *slot_lease.taking()))
            if result.applied:
                slot_lease.taken()
                self._taken[job] = [*self._taken.get(job, ()), slot_lease]
                job.features = [*job.features, slot_lease]
                return True
            limit.lose(slot_lease.fact)
        return False

    # -- giving back ------------------------------------------------------------------------------

    def ended(self, job: ReservedJob) -> None:
        """Notes that a handler has ended: settling the job gives its slot leases back."""
        for each in self._taken.get(job, ()):
            each.runs = False

    def over(self, job: ReservedJob) -> None:
        for each in self._detach(job):
            each.runs = False
            self._left[each] = time.monotonic() + (_UNSAID if each.is_given else 0)
            if not each.is_given:
                each.limit.give(each.fact, each.token)

    def forget(self, slot_lease: SlotLease) -> None:
        self._left.pop(slot_lease, None)

    def _detach(self, job: ReservedJob) -> Sequence[SlotLease]:
        slot_leases = self._taken.pop(job, ())
        if slot_leases:
            job.features = [each for each in job.features if each not in slot_leases]
        return slot_leases

    # -- while jobs run ---------------------------------------------------------------------------

    def beat(self) -> None:
        """Renews those of running handlers, and gives back leftovers; for the heartbeat."""
        now = time.monotonic()
        running = [each for several in [*self._taken.values()] for each in several]
        due = [each for each in running if each.runs and now >= each.renew_at - self.every / 2]
        left = [each for each, moment in [*self._left.items()] if now >= moment]
        if not due and not left:
            return
        steps = [Step(None, Expect(e.fact, e.token), Set(e.fact, e.token, self.lease)) for e in due]
        steps += [Step(None, each.giving()) for each in left]
        try:
            results = self._backend.apply(*steps)
            self._silent = False
            for each, result in zip(due, results, strict=False):
                if result.applied:
                    each.renew_at = now + self.lease / 3
                else:
                    self._ran_out(each, result)
        except BackendUnavailable as error:  # the next beat tries again
            if not self._silent:
                log.warning("the permits of running jobs could not be renewed: %s", error)
            self._silent = True
            return
        for each in left:
            self._left.pop(each, None)
            each.limit.is_free(each.fact)

    def _ran_out(self, slot_lease: SlotLease, result: Result) -> None:
        """Takes a slot lease again that expired while its job ran, unless another job has it."""
        if slot_lease.has_ended():  # it was given back meanwhile
            return
        slot_lease.holds = None
        if (
            result.holds is None
            and self._backend.apply(Step(None, *slot_lease.taking()))[0].applied
        ):
            slot_lease.renew_at = time.monotonic() + self.lease / 3
            log.warning(
                "a permit of the %s had run out, and was taken again", slot_lease.limit.shown
            )
            if slot_lease.has_ended():
                self._left[slot_lease] = 0.0
            return
        slot_lease.renew_at = math.inf
        log.error(
            "a permit of the %s ran out while its job ran: one more than %d may run meanwhile",
            slot_lease.limit.shown,
            slot_lease.limit.most,
        )

    def close(self) -> None:
        """Gives back the slot leases of jobs that are over."""
        left = [*self._left]
        if left:
            self._backend.apply(*(Step(None, each.giving()) for each in left))
            self._left.clear()


def queue_name(connection: str, queue: str) -> str:
    return f"{connection}:{queue}"


def keys(kind: str, name: str, most: int) -> list[str]:
    if len(name) > _LONGEST_NAME or not (name.isascii() and name.isprintable()):
        name = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return [f"permit:{kind}:{name}:{number}" for number in range(most)]
