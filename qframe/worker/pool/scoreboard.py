"""Scoreboard: shared memory for each worker of a pool, in which it writes what it is doing.

The worker writes without a system call; the pool reads while the worker lives, and when it is dead.
There is a part for each job that runs at once; a worker that is scaled up appends some. A job's
data is complete whenever its state is not `IDLE`: the state is written last, and reset first.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from qframe.worker.health import Vitals
from qframe.worker.recorder.memory import RING, JobRing, memory_file

_BODY = 8 * 1024 * 1024 - RING
SIZE = _BODY + RING
"""Bytes of memory for a job, and for the rest; the system allocates only pages in use."""
DUMP_AT = 1024 * 1024
"""Where `faulthandler` of the worker writes in the first part; its last words are shorter."""

_PHASE, _PAUSED = 0, 1
_SLOTS = struct.Struct("@I")  # in native byte order: it is written at once
_SLOTS_AT = 4
_LENGTH = struct.Struct("<I")
_LENGTH_AT = 8
_STATE = 0
_DEADLINE = struct.Struct("<d")
_HEAD = struct.Struct("<QddII")  # number, began, deadline, lengths of the fence and the slot leases
_HEAD_AT = 8
_DEADLINE_AT = _HEAD_AT + 16
_ENDED = struct.Struct("<Qd")  # number of ended jobs, and their total run time
_ENDED_AT = 40
_TOGETHER = struct.Struct("<I")  # of how many jobs the call is; 0: of one that has no chunk
_TOGETHER_AT = 56
_BODY_AT = 64
_VITALS = struct.Struct("<ddd?")  # last sign of life, within how long another, until when, ready
_VITALS_AT = 16
_DUMP_NUMBER_AT = 48


HeldLeases = Sequence[tuple[str, str]]
"""Keys of a job's slot leases, and the values they hold."""
ChunkMembers = Sequence[tuple[bytes, HeldLeases]]
"""The fence and the slot leases of each job of a chunk."""


class JobPhase(IntEnum):
    """The state of a slot.

    `STARTED`: nothing of the job has run so far. `DEFERRED`: it is done, its deletion may be
    unsent.
    """

    IDLE = 0
    RUNNING = 1
    SETTLING = 2
    DEFERRED = 3
    STARTED = 4


class _Phase(IntEnum):
    STARTING = 0
    READY = 1
    ENDED = 2


@dataclass(frozen=True, slots=True)
class LastJob:
    """The job a worker was in last, or is in.

    `number` counts the jobs of this worker; `began` and `deadline` (0: none) are moments of the
    machine's monotonic clock; `fence` is empty if it was too long.
    """

    state: JobPhase
    number: int
    began: float
    deadline: float
    fence: bytes
    slot_leases: HeldLeases = ()
    place: int = 0
    """The number of its slot."""
    together: int = 1
    """How many jobs the call was about."""


class JobTally(NamedTuple):
    """Jobs begun and ended, their total run seconds, and when the running one began (0: none)."""

    begun: int
    ended: int
    seconds: float
    since: float


class JobScore:
    """The jobs that run in one of a worker's slots, one after the other."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        self._number = 0
        self.ring = JobRing(memory, start + _BODY)

    # -- the worker writes ------------------------------------------------------------------------

    def started(self, fence: bytes, slot_leases: HeldLeases = ()) -> None:
        """Notes the reservation that was started, and is about to run."""
        self._write(JobPhase.STARTED, fence, 0.0, slot_leases, 1)

    def running(self, fence: bytes, limit: float, slot_leases: HeldLeases = ()) -> None:
        """Notes the running reservation: it must end in `limit` seconds; 0: no limit."""
        self._write(JobPhase.RUNNING, fence, limit, slot_leases, 1)

    def running_together(self, members: ChunkMembers, limit: float) -> None:
        """Notes a call for several jobs, as `running`; `settled_together` follows.

        It has no fences if they take too much room.
        """
        parts = [fence for fence, _ in members]
        parts += [json.dumps(held).encode() if held else b"" for _, held in members]
        body = b"".join([struct.pack(f"<{len(parts)}I", *map(len, parts)), *parts])
        self._write(JobPhase.RUNNING, body, limit, (), len(members), together=True)

    def _write(
        self,
        state: JobPhase,
        fence: bytes,
        limit: float,
        slot_leases: HeldLeases,
        jobs: int,
        *,
        together: bool = False,
    ) -> None:
        if self._state not in {JobPhase.STARTED, JobPhase.RUNNING}:  # else its limits became known
            self._number += jobs
        now = time.monotonic()
        self._state = JobPhase.IDLE
        held = json.dumps(slot_leases).encode() if slot_leases else b""
        if together:
            _TOGETHER.pack_into(self._memory, self._start + _TOGETHER_AT, jobs)
        fence = fence if len(fence) + len(held) <= _BODY - _BODY_AT else b""
        ends, at, body = now + limit if limit else 0.0, self._start, fence + held
        _HEAD.pack_into(self._memory, at + _HEAD_AT, self._number, now, ends, len(fence), len(held))
        self._memory[at + _BODY_AT : at + _BODY_AT + len(body)] = body
        self._state = state

    def extend(self, limit: float) -> None:
        """What runs must have ended `limit` seconds from now, and not before."""
        at = self._start + _DEADLINE_AT
        _DEADLINE.pack_into(self._memory, at, time.monotonic() + limit)

    def settling(self, jobs: int = 1) -> None:
        """The handler has ended, for so many jobs: nothing is late any more."""
        if self.is_busy():
            at = self._start + _ENDED_AT
            count, seconds = _ENDED.unpack_from(self._memory, at)
            _, began, *_ = self._head()
            _ENDED.pack_into(self._memory, at, count + jobs, seconds + time.monotonic() - began)
        self._state = JobPhase.SETTLING

    def settled(self, *, deferred: bool) -> None:
        """The job is settled; `deferred`: it is done, and deleted with the next request."""
        self._state = JobPhase.DEFERRED if deferred else JobPhase.IDLE

    def settled_together(self, jobs: int) -> None:
        """The call for so many jobs has ended; their ends are not the pool's."""
        self.settling(jobs)
        self._state = JobPhase.IDLE
        _TOGETHER.pack_into(self._memory, self._start + _TOGETHER_AT, 0)

    # -- the pool reads ---------------------------------------------------------------------------

    def is_busy(self) -> bool:
        """Whether a job runs now, or is about to."""
        return self._state in {JobPhase.STARTED, JobPhase.RUNNING}

    def deadline(self) -> float:
        """Returns the deadline of the running job; 0 if there is none."""
        if self._state != JobPhase.RUNNING:
            return 0.0
        number, _, deadline, *_ = self._head()
        again, *_ = self._head()
        return deadline if self._state == JobPhase.RUNNING and again == number else 0.0

    def tally(self) -> JobTally:
        begun, began, *_ = self._head()
        ended, seconds = _ENDED.unpack_from(self._memory, self._start + _ENDED_AT)
        return JobTally(begun, ended, seconds, began if self.is_busy() else 0.0)

    def last_job(self, place: int = 0) -> LastJob:
        state = JobPhase(self._state)
        number, began, deadline, length, more = self._head()
        if not state:
            return LastJob(state, number, began, deadline, b"", place=place)
        middle = self._start + _BODY_AT + length
        fence, held = self._memory[middle - length : middle], self._memory[middle : middle + more]
        return LastJob(state, number, began, deadline, fence, _decoded(held), place)

    def last_jobs(self, place: int = 0) -> list[LastJob]:
        """Returns the jobs that the worker was in last, or is in: several if they are a chunk."""
        last = self.last_job(place)
        (count,) = _TOGETHER.unpack_from(self._memory, self._start + _TOGETHER_AT)
        if not (count and last.state):
            return [last]
        last = replace(last, together=count)
        if not last.fence:
            return [last]
        members = _members(last.fence, count)
        return [replace(last, fence=fence, slot_leases=held) for fence, held in members]

    @property
    def _state(self) -> int:
        return self._memory[self._start + _STATE]

    @_state.setter
    def _state(self, value: int) -> None:
        self._memory[self._start + _STATE] = value

    def _head(self) -> tuple[int, float, float, int, int]:
        number, began, deadline, *lengths = _HEAD.unpack_from(self._memory, self._start + _HEAD_AT)
        return number, began, deadline, lengths[0], lengths[1]


def _decoded(held: bytes) -> HeldLeases:
    return [(key, value) for key, value in json.loads(held or b"[]")]


def _members(body: bytes, count: int) -> Iterator[tuple[bytes, HeldLeases]]:
    """Iterates over the jobs of a chunk, whose lengths come first: of the fences, of the others."""
    lengths = struct.Struct(f"<{2 * count}I")
    ends = [*accumulate(lengths.unpack_from(body), initial=lengths.size)]
    parts = [body[start:end] for start, end in pairwise(ends)]
    for fence, held in zip(parts[:count], parts[count:], strict=True):
        yield fence, _decoded(held)


class WorkerScore:
    """What one worker writes; another process opens it by its `descriptor`.

    `jobs` has a part for each job that it runs at once.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.jobs: list[JobScore] = []
        about = os.fstat(descriptor)
        self._size, self._inode = about.st_size, about.st_ino
        self._memory = mmap.mmap(descriptor, self._size)
        self._add_parts(self._memory, SIZE)

    @classmethod
    def create(cls, jobs: int = 1) -> WorkerScore:
        """Makes an empty one, in a file if the system has no memory files."""
        descriptor = memory_file("qframe-scoreboard")
        os.ftruncate(descriptor, SIZE * (1 + jobs))
        return cls(descriptor)

    def close(self) -> None:
        """Closes the descriptor; what was written so far can still be read."""
        os.close(self.descriptor)

    def _add_parts(self, memory: mmap.mmap, start: int) -> None:
        self.jobs += [JobScore(memory, at) for at in range(start, len(memory), SIZE)]

    def _look_for_more(self) -> None:
        size = os.fstat(self.descriptor).st_size
        if size > self._size:
            memory = mmap.mmap(self.descriptor, size - self._size, offset=self._size)
            self._size = size
            self._add_parts(memory, 0)

    # -- the worker writes ------------------------------------------------------------------------

    def grow(self, jobs: int) -> None:
        """Has parts for at least so many jobs. Raises `OSError` if there is no room."""
        if jobs <= len(self.jobs):
            return
        # A job may have closed every descriptor, and opened its own under this number.
        if os.fstat(self.descriptor).st_ino != self._inode:
            raise OSError("a job has closed the scoreboard")
        os.ftruncate(self.descriptor, SIZE * (1 + jobs))
        self._look_for_more()

    def ready(self) -> None:
        self._memory[_PHASE] = _Phase.READY

    def write_health(self, vitals: Vitals, within: float) -> None:
        """Notes how the worker stands."""
        fields = time.monotonic(), within, vitals.until, vitals.ready
        _VITALS.pack_into(self._memory, _VITALS_AT, *fields)

    def farewell(self, reason: str, totals: Mapping[str, int]) -> None:
        """Notes why the worker ends, and the outcomes of its jobs."""
        body = json.dumps({"reason": reason, "totals": totals}).encode()
        _LENGTH.pack_into(self._memory, _LENGTH_AT, len(body))
        self._memory[_BODY_AT : _BODY_AT + len(body)] = body
        self._memory[_PHASE] = _Phase.ENDED

    @property
    def dump_number(self) -> int:
        """The worker's descriptor for the stacks it writes; 0: it records no jobs."""
        (number,) = _SLOTS.unpack_from(self._memory, _DUMP_NUMBER_AT)
        return int(number)

    @dump_number.setter
    def dump_number(self, value: int) -> None:
        _SLOTS.pack_into(self._memory, _DUMP_NUMBER_AT, value)

    # -- the pool writes --------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether a worker that begins now is to take no jobs."""
        return bool(self._memory[_PAUSED])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._memory[_PAUSED] = value

    @property
    def slots(self) -> int:
        """How many jobs the worker is to run at once; 0: as many as at its start."""
        (number,) = _SLOTS.unpack_from(self._memory, _SLOTS_AT)
        return int(number)

    @slots.setter
    def slots(self, value: int) -> None:
        _SLOTS.pack_into(self._memory, _SLOTS_AT, value)

    # -- the pool reads ---------------------------------------------------------------------------

    def is_alive(self, now: float) -> bool:
        """Whether its last sign of life is new enough; true if it has given none yet."""
        beat, within, until, _ = _VITALS.unpack_from(self._memory, _VITALS_AT)
        return not beat or (now - beat <= within and now <= until)

    def takes_jobs(self) -> bool:
        """Whether it was connected, and took jobs or was paused, when it wrote last."""
        return bool(_VITALS.unpack_from(self._memory, _VITALS_AT)[3])

    @property
    def is_ready(self) -> bool:
        return self._memory[_PHASE] != _Phase.STARTING

    def deadline(self) -> float:
        """Returns the earliest deadline of the running jobs; 0 if there is none."""
        self._look_for_more()
        return min(filter(None, (job.deadline() for job in self.jobs)), default=0.0)

    def running(self) -> int:
        self._look_for_more()
        return sum(job.is_busy() for job in self.jobs)

    def tallies(self) -> list[JobTally]:
        self._look_for_more()
        return [job.tally() for job in self.jobs]

    def last_jobs(self) -> list[LastJob]:
        self._look_for_more()
        return [last for place, job in enumerate(self.jobs) for last in job.last_jobs(place)]

    def last_words(self) -> tuple[str, dict[str, int]]:
        """Returns reason and outcomes of a worker that ended in order; else empty."""
        if self._memory[_PHASE] != _Phase.ENDED:
            return "", {}
        (length,) = _LENGTH.unpack_from(self._memory, _LENGTH_AT)
        kept = json.loads(self._memory[_BODY_AT : _BODY_AT + length])
        return kept["reason"], kept["totals"]
