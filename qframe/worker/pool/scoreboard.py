"""The scoreboard of a pool: a piece of memory for each worker in which it says what it is doing.

The worker writes without a system call; the pool reads while the worker lives, and when it is dead.
What is said of a job is complete whenever its state is not `IDLE`: the state is written last, and
taken back first.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

SIZE = 8 * 1024 * 1024
"""Bytes of memory for a worker; only those that were written are taken."""

_STATE, _PHASE, _PAUSED = 0, 1, 2
_HEAD = struct.Struct("<QddI")  # number, began, deadline, length of what follows
_HEAD_AT = 8
_BODY_AT = 64


class JobState(IntEnum):
    """What there is to a job. `DEFERRED`: it is done, its deletion may be unsent."""

    IDLE = 0
    RUNNING = 1
    SETTLING = 2
    DEFERRED = 3


class _Phase(IntEnum):
    STARTING = 0
    READY = 1
    ENDED = 2


@dataclass(frozen=True, slots=True)
class LastJob:
    """The job a worker was in last, or is in.

    `number` counts the jobs of this worker; `began` and `deadline` (0: none) are moments of the
    machine's monotonic clock; `fence` is empty where it was too long.
    """

    state: JobState
    number: int
    began: float
    deadline: float
    fence: bytes


class WorkerScore:
    """What one worker says; `descriptor` is what another process opens it by."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        self._number = 0

    @classmethod
    def create(cls) -> WorkerScore:
        """Make an empty one, in memory only where the system can."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("qframe-scoreboard")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, SIZE)
        return cls(descriptor)

    def close(self) -> None:
        """Give the descriptor back; what was written can still be read."""
        os.close(self.descriptor)

    # -- the worker writes ------------------------------------------------------------------------

    def ready(self) -> None:
        """Say that the worker hears signals and is about to work."""
        self._memory[_PHASE] = _Phase.READY

    def running(self, fence: bytes, limit: float) -> None:
        """Say which reservation runs: it must have ended `limit` seconds from now; 0: no limit."""
        if self._memory[_STATE] != JobState.RUNNING:  # else its limits became known
            self._number += 1
        now = time.monotonic()
        self._write(now, now + limit if limit else 0.0, fence)
        self._memory[_STATE] = JobState.RUNNING

    def settling(self) -> None:
        """Say that the handler has ended: nothing is late any more."""
        self._memory[_STATE] = JobState.SETTLING

    def settled(self, *, deferred: bool) -> None:
        """Say that the job is settled; `deferred`: it is done, and deleted with what comes next."""
        self._memory[_STATE] = JobState.DEFERRED if deferred else JobState.IDLE

    def farewell(self, reason: str, totals: Mapping[str, int]) -> None:
        """Say why the worker ends in order, and what became of its jobs."""
        self._write(0.0, 0.0, json.dumps({"reason": reason, "totals": totals}).encode())
        self._memory[_PHASE] = _Phase.ENDED

    def _write(self, began: float, deadline: float, body: bytes) -> None:
        self._memory[_STATE] = JobState.IDLE
        if len(body) > SIZE - _BODY_AT:
            body = b""
        _HEAD.pack_into(self._memory, _HEAD_AT, self._number, began, deadline, len(body))
        self._memory[_BODY_AT : _BODY_AT + len(body)] = body

    # -- the pool writes --------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether a worker that begins now is to take no jobs."""
        return bool(self._memory[_PAUSED])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._memory[_PAUSED] = value

    # -- the pool reads ---------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the worker has got as far as to hear signals."""
        return self._memory[_PHASE] != _Phase.STARTING

    def deadline(self) -> float:
        """Give the deadline of the job that runs now; 0 where none does or need end."""
        if self._memory[_STATE] != JobState.RUNNING:
            return 0.0
        number, _, deadline, _ = _HEAD.unpack_from(self._memory, _HEAD_AT)
        again, *_ = _HEAD.unpack_from(self._memory, _HEAD_AT)
        still = self._memory[_STATE] == JobState.RUNNING and again == number
        return float(deadline) if still else 0.0

    def last_job(self) -> LastJob:
        """Give the last job, once the worker is dead."""
        state = JobState(self._memory[_STATE])
        number, began, deadline, _ = _HEAD.unpack_from(self._memory, _HEAD_AT)
        return LastJob(state, number, began, deadline, self._body() if state else b"")

    def last_words(self) -> tuple[str, dict[str, int]]:
        """Give reason and totals of a worker that ended in order; else nothing."""
        if self._memory[_PHASE] != _Phase.ENDED:
            return "", {}
        said = json.loads(self._body())
        return said["reason"], said["totals"]

    def _body(self) -> bytes:
        length = _HEAD.unpack_from(self._memory, _HEAD_AT)[3]
        return self._memory[_BODY_AT : _BODY_AT + length]
