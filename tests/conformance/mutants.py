"""The memory backend broken on purpose, each class in one way that the suite must see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe.contracts import step as op
from qframe.contracts.backend import Backend
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.testing.conformance import Bench


class WholeBench(Bench):
    """The memory backend as it is."""

    shared = False
    kind: ClassVar[type[MemoryBackend]] = MemoryBackend

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.backend = self.kind(timing=self.timing)

    def make(self) -> Backend:
        return self.backend


def _without(step: Step, *kinds: type) -> Step:
    return Step(step.reservation, *(each for each in step.operations if type(each) not in kinds))


class _Unfenced(MemoryBackend):
    def apply(self, *steps: Step) -> list[Result]:
        for step in steps:
            if step.reservation is not None and step.reservation.message.fence:  # type: ignore[attr-defined]
                step.reservation.message.fence = step.reservation.fence  # type: ignore[attr-defined]
        return super().apply(*steps)


class _Unexpecting(MemoryBackend):
    def apply(self, *steps: Step) -> list[Result]:
        return super().apply(*(_without(step, op.Expect) for step in steps))


class _Undelayed(MemoryBackend):
    def apply(self, *steps: Step) -> list[Result]:
        return super().apply(
            *(
                Step(
                    step.reservation,
                    *(
                        replace(each, delay=0.0) if isinstance(each, op.Push) else each
                        for each in step.operations
                    ),
                )
                for step in steps
            )
        )


class _Unrenewing(MemoryBackend):
    def apply(self, *steps: Step) -> list[Result]:
        return super().apply(*(_without(step, op.Renew) for step in steps))


class _Forgetful(MemoryBackend):
    """Loses what is pushed beside the end of a job."""

    def apply(self, *steps: Step) -> list[Result]:
        return super().apply(
            *(_without(step, op.Push) if step.reservation is not None else step for step in steps)
        )


class _Counting(MemoryBackend):
    """Counts deliveries, though it says that it counts starts."""

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        jobs, results = super().reserve(queues, limit, first=first)
        for job in jobs:
            job.attempts += 1
            job.message.attempts += 1  # type: ignore[attr-defined]
        return jobs, results


class _Greedy(MemoryBackend):
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        return super().reserve(queues, limit + 1, first=first)


class _Unsorted(MemoryBackend):
    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        return super().reserve(queues[::-1], limit, first=first)


class _Miscounting(MemoryBackend):
    def sizes(self, queue: str) -> Sizes:
        return replace(super().sizes(queue), delayed=0)


class _Kicking(MemoryBackend):
    """Makes buried messages ready by itself."""

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        for queue in queues:
            self.kick(queue)
        return super().reserve(queues, limit, first=first)


MUTANTS: dict[str, type[MemoryBackend]] = {
    kind.__name__.strip("_").lower(): kind
    for kind in (
        _Unfenced,
        _Unexpecting,
        _Undelayed,
        _Unrenewing,
        _Forgetful,
        _Counting,
        _Greedy,
        _Unsorted,
        _Miscounting,
        _Kicking,
    )
}


def __getattr__(name: str) -> Any:
    """Give the bench of a mutant by its name."""
    if name not in MUTANTS:
        raise AttributeError(name)
    return type(name, (WholeBench,), {"kind": MUTANTS[name]})
