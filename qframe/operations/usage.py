"""Usage: which classes and tags use the workers: run, processor and waiting time, and memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel

from qframe.metrics.kept import added_up
from qframe.metrics.series import MEASURED, MEMORY, PROCESSOR, RUN, WAIT, Fields, add
from qframe.operations.activity import Activity

LONGEST = 14 * 24.0
"""Hours for which metrics are kept."""
By = Literal["class", "tag"]


class UsageState(BaseModel):
    """What the jobs of one class, or with one tag, have used in a period."""

    connection: str
    name: str
    """The class or the tag."""
    attempts: int
    """How many ran to their end."""
    run_seconds: float
    """How long they held a worker, in all."""
    share: float
    """The part of the run time of all, 0 to 1; several tags of a job count for each."""
    processor_seconds: float | None
    """None if it is known of no attempt."""
    measured: int
    """Of how many attempts the processor time is known."""
    memory_mb: int | None
    """The highest resident size of a process while one of them ran in it, as far as is known."""
    wait_seconds: float
    """How long those waited, in all, that started for the first time."""
    wait_mean: float | None
    wait_p95: float | None
    wait_longest: float | None


def states(found: Activity, connection: str) -> list[UsageState]:
    """Returns the usage of each class or tag of a connection, without shares."""
    by_name: dict[str, dict[str, int]] = {}
    for pair, slots in found.series.items():
        if pair.job:
            add(by_name.setdefault(pair.job, {}), added_up(slots))
    every = [_state(connection, name, fields) for name, fields in by_name.items()]
    return [each for each in every if each.attempts or each.wait_mean is not None]


def _state(connection: str, name: str, fields: Fields) -> UsageState:
    measured = fields.get(MEASURED, 0)
    return UsageState(
        connection=connection,
        name=name,
        attempts=sum(RUN.counts(fields)),
        run_seconds=fields.get(RUN.total, 0) / 1e6,
        share=0.0,
        processor_seconds=fields.get(PROCESSOR, 0) / 1e6 if measured else None,
        measured=measured,
        memory_mb=fields.get(MEMORY) or None,
        wait_seconds=fields.get(WAIT.total, 0) / 1e6,
        wait_mean=WAIT.mean(fields),
        wait_p95=WAIT.quantile(fields, 0.95),
        wait_longest=WAIT.longest(fields),
    )


def with_shares(states: Iterable[UsageState], of: float) -> list[UsageState]:
    """Returns the states with their shares of so many seconds, the largest first."""
    shared = [
        each.model_copy(update={"share": min(1.0, each.run_seconds / of) if of else 0.0})
        for each in states
    ]
    return sorted(shared, key=lambda each: (-each.run_seconds, each.name, each.connection))
