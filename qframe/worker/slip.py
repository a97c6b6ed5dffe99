"""Slip: a piece of shared memory in which one worker of a pool says what it is doing.

The worker writes it without a system call; the pool reads it while the worker lives, and when it
is dead. What it says of a job is complete whenever its state is not `IDLE`: the state is written
last, and taken back first.
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
from typing import Any

from qframe.contracts import Job
from qframe.queueable import Queueable

SIZE = 8 * 1024 * 1024
"""Bytes of a slip; only those that were written take memory. A larger job is not named."""

_STATE, _PHASE, _PAUSED = 0, 1, 2
_HEAD = struct.Struct("<QdddII")  # number, began, deadline, timeout, bytes of policy and ticket
_HEAD_AT = 8
_BODY_AT = 64


class State(IntEnum):
    """What there is to a job. `DONE`: its handler has ended well, its deletion may be unsent."""

    IDLE = 0
    RUNNING = 1
    SETTLING = 2
    DONE = 3


class _Phase(IntEnum):
    STARTING = 0
    READY = 1
    ENDED = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as a slip names it.

    `number` counts the jobs of this worker; `began` and `deadline` (0: none) are moments of the
    machine's monotonic clock; `ticket` is empty where the job could not be named. `policy` is what
    the job's class says of itself, in the payload's words.
    """

    state: State
    number: int
    began: float
    deadline: float
    timeout: float
    policy: Mapping[str, Any]
    ticket: bytes


class Slip:
    """One worker's slip; `descriptor` is what another process opens it by."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        self._number = 0
        self._job: Job | None = None
        self._policies: dict[type[Queueable] | None, bytes] = {None: b"{}"}

    @classmethod
    def create(cls) -> Slip:
        """Make an empty one, in memory only where the system can."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("qframe-slip")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, SIZE)
        return cls(descriptor)

    def close(self) -> None:
        """Give the descriptor back; what was written can still be read."""
        os.close(self.descriptor)

    # -- the worker writes ----------------------------------------------------------------------

    def ready(self) -> None:
        """Say that the worker hears signals and is about to work."""
        self._memory[_PHASE] = _Phase.READY

    def running(
        self, job: Job, job_class: type[Queueable] | None, timeout: float, limit: float
    ) -> None:
        """Name the job that runs from now on: it must have ended `limit` seconds from now."""
        memory = self._memory
        policy = self._policies.get(job_class) or self._policy(job_class)
        ticket = job.ticket() or b""
        body = policy + ticket
        if len(body) > SIZE - _BODY_AT:
            ticket, body = b"", policy
        now = time.monotonic()
        memory[_STATE] = 0
        if job is not self._job:  # else its class became known, and with it other limits
            self._job = job
            self._number += 1
        _HEAD.pack_into(
            memory, _HEAD_AT,
            self._number, now, now + limit if limit else 0.0, timeout, len(policy), len(ticket),
        )  # fmt: skip
        memory[_BODY_AT : _BODY_AT + len(body)] = body
        memory[_STATE] = 1

    def settling(self) -> None:
        """Say that the handler has ended: nothing is late any more."""
        self._memory[_STATE] = 2

    def settled(self, *, done: bool) -> None:
        """Say that the job is settled, or `done` and to be deleted with the next exchange."""
        self._memory[_STATE] = 3 if done else 0

    def farewell(self, reason: str, totals: Mapping[str, int]) -> None:
        """Say why the worker ends in order, and what became of its jobs."""
        body = json.dumps({"reason": reason, "totals": totals}).encode()
        self._memory[_STATE] = State.IDLE
        self._memory[_BODY_AT : _BODY_AT + len(body)] = body
        _HEAD.pack_into(self._memory, _HEAD_AT, self._number, 0.0, 0.0, 0.0, len(body), 0)
        self._memory[_PHASE] = _Phase.ENDED

    def _policy(self, job_class: type[Queueable] | None) -> bytes:
        """Put what a class says into the payload's words, which it goes before."""
        policy: dict[str, Any] = {}
        if job_class is not None:
            policy["failOnTimeout"] = job_class.fail_on_timeout
            if job_class.tries is not None:
                policy["maxTries"] = job_class.tries
            if (backoff := job_class.wire_backoff()) is not None:
                policy["backoff"] = backoff
        text = self._policies[job_class] = json.dumps(policy).encode()
        return text

    # -- the pool writes ------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether a worker that begins now is to take no jobs."""
        return bool(self._memory[_PAUSED])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._memory[_PAUSED] = value

    # -- the pool reads -------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the worker hears signals."""
        return self._memory[_PHASE] == _Phase.READY

    @property
    def was_ready(self) -> bool:
        """Whether it has got as far as to hear signals."""
        return self._memory[_PHASE] != _Phase.STARTING

    @property
    def jobs(self) -> int:
        """How many jobs the worker has started."""
        return int(_HEAD.unpack_from(self._memory, _HEAD_AT)[0])

    def deadline(self) -> tuple[int, float]:
        """Give number and deadline of the job that runs now, 0 where none does or need end."""
        if self._memory[_STATE] != State.RUNNING:
            return 0, 0.0
        number, _, deadline, *_ = _HEAD.unpack_from(self._memory, _HEAD_AT)
        again, *_ = _HEAD.unpack_from(self._memory, _HEAD_AT)
        if self._memory[_STATE] != State.RUNNING or again != number:
            return 0, 0.0
        return number, deadline

    def entry(self) -> Entry:
        """Give the last job named, once the worker is dead."""
        state = State(self._memory[_STATE])
        number, began, deadline, timeout, policy, ticket = _HEAD.unpack_from(self._memory, _HEAD_AT)
        start = _BODY_AT + policy
        return Entry(
            state, number, began, deadline, timeout,
            json.loads(self._memory[_BODY_AT:start] or b"{}") if state else {},
            self._memory[start : start + ticket] if state else b"",
        )  # fmt: skip

    def last_words(self) -> tuple[str, dict[str, int]]:
        """Give reason and totals of a worker that ended in order; else nothing."""
        if self._memory[_PHASE] != _Phase.ENDED:
            return "", {}
        length = _HEAD.unpack_from(self._memory, _HEAD_AT)[4]
        said = json.loads(self._memory[_BODY_AT : _BODY_AT + length])
        return said["reason"], said["totals"]
