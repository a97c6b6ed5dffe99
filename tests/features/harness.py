"""A connection on the memory backend, and jobs that are pushed, started and ended on it by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qframe.contracts.backend import Backend
from qframe.contracts.status import State
from qframe.drivers.memory.backend import MemoryBackend
from qframe.features.base import End, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope
from qframe.payload.encryption import Keyring
from qframe.payload.signature import Signer


class Bench:
    """One context, and what tests do with it."""

    def __init__(
        self,
        features: Sequence[Feature],
        backend: Backend | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.backend = backend or MemoryBackend()
        self.context = Context("memory", self.backend, features, Keyring(), signer, 60, 1 << 20)

    def push(self, uuid: str, queue: str = "q", delay: float = 0.0, **keys: Any) -> str:
        """Push a job with these keys in its payload; gives who is there instead, or ""."""
        pushing = self.pushing(uuid, queue, delay, **keys)
        return self.context.push(pushing)

    def pushing(self, uuid: str, queue: str = "q", delay: float = 0.0, **keys: Any) -> Pushing:
        """Give a job about to be pushed."""
        message = {"uuid": uuid, "displayName": "Demo", "job": "app.Demo", "data": {}, **keys}
        raw = envelope.encode(message)
        if self.context.signer is not None:
            raw = self.context.signer.signed(raw, queue)
        return Pushing(message, raw, uuid, queue, delay)

    def reserve(self, queue: str = "q") -> ReservedJob | None:
        """Hold the next job."""
        found, _ = self.backend.reserve([queue])
        return ReservedJob(self.context, found[0]) if found else None

    def held(self, queue: str = "q") -> ReservedJob:
        """Hold the next job, which is there."""
        job = self.reserve(queue)
        assert job is not None
        return job

    def started(self, queue: str = "q") -> ReservedJob:
        """Hold and start the next job."""
        job = self.held(queue)
        (result,) = self.backend.apply(job.start_plan())
        assert result.applied
        return job

    def run(self, queue: str = "q", state: State = State.COMPLETE) -> ReservedJob:
        """Hold, start and end the next job."""
        job = self.started(queue)
        job.settle(End(state, error=ValueError("boom") if state is State.FAILED else None))
        return job
