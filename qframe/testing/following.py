"""What an assertion looks for among chains and batches, and how these are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Union

from qframe.dispatch.batch import PendingBatch
from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.queueable import Queueable
from qframe.payload import timing
from qframe.payload.text import one_line
from qframe.payload.timing import When
from qframe.testing.recording import DispatchedBatch, DispatchedChain, LinkJob, MemberJob
from qframe.testing.wanted import Kind, Target, shown_job

ChainTarget = Target | type[PendingBatch] | Callable[[DispatchedBatch], object]
"""What names a link: what names a job; `PendingBatch`, any batch; a function, one it accepts."""
Members = Sequence[Target | Sequence[ChainTarget]]
"""What names the members of a batch; a list is a chain."""

_LONGEST = 600
_FEW = 5


class _BatchKind:
    """Which batches a link's target names."""

    def __init__(self, where: Callable[[DispatchedBatch], object] | None) -> None:
        self._where = where

    def fits(self, batch: DispatchedBatch) -> bool:
        return self._where is None or bool(self._where(batch))


Checked = Union[Kind, _BatchKind, list["Checked"]]  # noqa: UP007 (it names itself)


def checked_jobs(jobs: Iterable[Any]) -> list[Checked]:
    """Read what names jobs; raises `TypeError` for what names none."""
    if isinstance(jobs, str | type | Queueable):
        raise TypeError("give a list of jobs: [Pack, Ship]")
    return [_checked(each) for each in jobs]


def _checked(target: Any) -> Checked:  # noqa: ANN401 (looked at here)
    if isinstance(target, list | tuple):
        return checked_jobs(target)
    if isinstance(target, type) and issubclass(target, PendingBatch):
        return _BatchKind(None)
    plain = isinstance(target, type | QueueableFunction | Queueable)
    return _BatchKind(target) if callable(target) and not plain else Kind(target)


def fits_chain(
    chain: DispatchedChain,
    wanted: Sequence[Checked],
    queue: str | None,
    connection: str | None,
    delay: When | None,
) -> bool:
    """Whether a chain is one of those that are looked for."""
    return (
        _fit_all(chain.jobs, wanted)
        and queue in {None, chain.queue}
        and connection in {None, chain.connection}
        and (delay is None or abs(timing.seconds_until(delay) - chain.delay) < _slack(delay))
    )


def fits_batch(
    batch: DispatchedBatch,
    where: Callable[[DispatchedBatch], object] | None,
    name: str | None,
    wanted: Sequence[Checked] | None,
    queue: str | None,
    connection: str | None,
) -> bool:
    """Whether a batch is one of those that are looked for."""
    return (
        name in {None, batch.name}
        and (wanted is None or _fit_all(batch.jobs, wanted))
        and queue in {None, batch.queue}
        and connection in {None, batch.connection}
        and (where is None or bool(where(batch)))
    )


def _fit_all(jobs: Sequence[MemberJob | LinkJob], wanted: Sequence[Checked]) -> bool:
    return len(jobs) == len(wanted) and all(map(fits_one, jobs, wanted))


def fits_one(job: MemberJob | LinkJob, wanted: Checked) -> bool:
    """Whether a link or a member is what is looked for."""
    if isinstance(job, list):
        return isinstance(wanted, list) and _fit_all(job, wanted)
    if isinstance(job, DispatchedBatch):
        return isinstance(wanted, _BatchKind) and wanted.fits(job)
    return isinstance(wanted, Kind) and wanted.fits(job, _name_of(job))


def _name_of(job: Any) -> str:  # noqa: ANN401 (a job of either kind)
    if job is None:
        return ""
    return job.own_name() if isinstance(job, Queueable) else str(job.name)


def _slack(delay: When) -> float:
    return 1e-6 if isinstance(delay, int | float | timedelta) else 1.0


def shown_targets(jobs: Iterable[Any], between: str = " -> ") -> str:
    """Show what names jobs."""
    return one_line(between.join(_shown_target(each) for each in jobs), _LONGEST) or "no jobs"


def _shown_target(target: Any) -> str:  # noqa: ANN401 (whatever names a job)
    if isinstance(target, list | tuple):
        return f"[{shown_targets(target)}]"
    kind = _checked(target)
    return str(kind) if isinstance(kind, Kind) else "a batch"


def chain_line(chain: DispatchedChain) -> str:
    """Show a chain in a line."""
    delay = f", delayed by {chain.delay:g} s" if chain.delay else ""
    links = _shown_links(chain.jobs)
    return f"{links} on {chain.connection}:{chain.queue}{delay}"


def batch_line(batch: DispatchedBatch) -> str:
    """Show a batch in a line."""
    where = f"{batch.connection}:{batch.queue}" if batch.queue else batch.connection
    return f"{_shown_batch(batch)} on {where}"


def _shown_links(jobs: Iterable[LinkJob]) -> str:
    return one_line(" -> ".join(shown_member(each) for each in jobs), _LONGEST)


def _shown_batch(batch: DispatchedBatch) -> str:
    name = f"{batch.name!r} of " if batch.name else ""
    few = [shown_member(each) for each in batch.jobs[:_FEW]]
    if len(batch.jobs) > _FEW:
        few.append(f"and {len(batch.jobs) - _FEW} more")
    return one_line(f"{name}[{', '.join(few)}]", _LONGEST)


def shown_member(job: MemberJob | LinkJob) -> str:
    """Show a link or a member."""
    if isinstance(job, list):
        return f"[{_shown_links(job)}]"
    if isinstance(job, DispatchedBatch):
        return f"a batch {_shown_batch(job)}"
    return "(a job that cannot be made here)" if job is None else shown_job(job)
