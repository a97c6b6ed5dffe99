"""What an assertion looks for among the dispatches, and how both are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Union, Unpack

from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.pending_batch import PendingBatch
from qframe.dispatch.queueable import Queueable
from qframe.features.chain import KEY as CHAIN
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.payload import timing
from qframe.payload.text import one_line
from qframe.payload.timing import When
from qframe.testing.recording import (
    Dispatched,
    DispatchedBatch,
    DispatchedChain,
    DispatchedFlow,
    LinkJob,
    MemberJob,
)

J = TypeVar("J", bound=Queueable)
Target = type[Queueable] | QueueableFunction[..., Any] | Queueable | Foreign | str
"""What names jobs: a class (its subclasses too), a function under `@queueable`, a job (or an equal
one), or a name on the wire."""
ChainTarget = Target | type[PendingBatch] | Callable[[DispatchedBatch], object]
"""What names a link: what names a job; `PendingBatch`, any batch; a function, what it accepts."""
Members = Sequence[Target | Sequence[ChainTarget]]
"""What names the members of a batch; a list is a chain."""

_LONGEST_VALUE = 60
_LONGEST_JOB = 300
_LONGEST = 600
_FEW = 5
_MOST = 20
_SAME_MOMENT = 1.0


class JobTarget:
    """Which jobs a target names."""

    def __init__(self, target: Target) -> None:
        given: object = target.job_class if isinstance(target, QueueableFunction) else target
        if isinstance(given, type):
            known = issubclass(given, Queueable)
        else:
            known = isinstance(given, Queueable | Foreign | str)
        if not known:
            raise TypeError(
                "name a job class, a function under @queueable, a job or a name on the wire, not "
                f"{one_line(repr(target), 80)}"
            )
        self._target: Any = given

    def __str__(self) -> str:
        if isinstance(self._target, type):
            return self._target.__name__
        return str(self._target) if isinstance(self._target, str) else shown_job(self._target)

    def fits(self, job: Dispatchable | None, name: str = "") -> bool:
        """Whether a job, or a raw payload of that name, is named by the target."""
        target = self._target
        if job is not None:
            name = job.name if isinstance(job, Foreign) else job.own_name()
        if isinstance(target, type) and issubclass(target, Queueable):
            return isinstance(job, target) or (job is None and name == target.own_name())
        if isinstance(target, str):
            return target in {name, name.partition("@")[0]}
        if isinstance(target, Foreign):
            return isinstance(job, Foreign) and (job.name, job.data) == (target.name, target.data)
        return type(job) is type(target) and bool(job == target)


Checked = Union[JobTarget, Callable[[DispatchedBatch], object], list["Checked"]]  # noqa: UP007 (it names itself)
"""A target that was read: jobs, batches, or a chain."""


def checked_jobs(jobs: Iterable[Any]) -> list[Checked]:
    """Reads what names jobs. Raises `TypeError` for anything else."""
    if isinstance(jobs, str | type | Queueable):
        raise TypeError("give a list of jobs: [Pack, Ship]")
    return [_checked(each) for each in jobs]


def _checked(target: Any) -> Checked:  # noqa: ANN401 (looked at here)
    if isinstance(target, list | tuple):
        return checked_jobs(target)
    if isinstance(target, type) and issubclass(target, PendingBatch):
        return lambda _: True
    if callable(target) and not isinstance(target, type | QueueableFunction | Queueable):
        accepts: Callable[[DispatchedBatch], object] = target
        return accepts
    return JobTarget(target)


def fit_all(jobs: Sequence[MemberJob | LinkJob], wanted: Sequence[Checked]) -> bool:
    """Whether links or members are those looked for, in order."""
    return len(jobs) == len(wanted) and all(map(_fits, jobs, wanted))


def _fits(job: MemberJob | LinkJob, wanted: Checked) -> bool:
    if isinstance(job, list):
        return isinstance(wanted, list) and fit_all(job, wanted)
    if isinstance(job, DispatchedBatch):
        return callable(wanted) and bool(wanted(job))
    return isinstance(wanted, JobTarget) and wanted.fits(job)


class Which(TypedDict, total=False):
    """Conditions on a dispatch besides its job: `where` is called with the job."""

    where: Callable[[Any], object] | None
    queue: str | None
    connection: str | None
    delay: When | None


@dataclass(frozen=True, slots=True)
class WantedJobs:
    """Which dispatches an assertion is about."""

    name: str
    is_it: Callable[[Any], bool]
    where: Callable[[Any], object] | None = None
    queue: str | None = None
    connection: str | None = None
    delay: When | None = None

    def __post_init__(self) -> None:
        """Checks the delay: a wrong assertion must not pass."""
        if self.delay is not None:
            timing.seconds_until(self.delay)

    @classmethod
    def jobs(cls, kind: JobTarget | None, **which: Unpack[Which]) -> WantedJobs:
        """Returns what looks for jobs of a kind, or of any."""
        return cls(str(kind), lambda it: kind is None or kind.fits(it.job, it.name), **which)

    def fits(self, each: Dispatched | DispatchedChain | DispatchedBatch | DispatchedFlow) -> bool:
        """Whether a dispatch meets all conditions."""
        shown = each.job if isinstance(each, Dispatched) else each
        return (
            self.is_it(each)
            and self.queue in {None, each.queue}
            and self.connection in {None, each.connection}
            and (
                isinstance(each, DispatchedBatch | DispatchedFlow)
                or is_delay(self.delay, each.delay, each.at)
            )
            and (self.where is None or (shown is not None and bool(self.where(shown))))
        )

    def __str__(self) -> str:
        text = self.name
        if self.queue is not None:
            text += f" on the queue {self.queue!r}"
        if self.connection is not None:
            text += f" on the connection {self.connection!r}"
        if self.delay is not None:
            seconds = isinstance(self.delay, int | float)
            text += f" with a delay of {f'{self.delay:g} s' if seconds else self.delay}"
        return text + (" that `where` accepts" if self.where is not None else "")


def is_delay(wanted: When | None, seconds: float, since: float) -> bool:
    """Whether a delay, counted from an epoch time, is the wanted one; None: any is."""
    if wanted is None:
        return True
    if isinstance(wanted, datetime):
        return abs(since + seconds - timing.moment(wanted, "delay")) < _SAME_MOMENT
    return seconds == timing.seconds_until(wanted)


# -- how it is shown ------------------------------------------------------------------------------


def shown_targets(jobs: Iterable[Checked], between: str = " -> ") -> str:
    """Returns the targets as text."""
    return one_line(between.join(map(_shown_target, jobs)), _LONGEST) or "no jobs"


def _shown_target(target: Checked) -> str:
    if isinstance(target, list):
        return f"[{shown_targets(target)}]"
    return str(target) if isinstance(target, JobTarget) else "a batch"


def listed(fits: Iterable[bool], lines: Iterable[str]) -> str:
    """Lists lines, those that fit marked with a star."""
    shown = [f"  {'*' if fit else '-'} {line}" for fit, line in zip(fits, lines, strict=False)]
    if len(shown) > _MOST:
        shown[_MOST:] = [f"  and {len(shown) - _MOST} more"]
    return "\n".join(shown)


def line_of(each: Dispatched | DispatchedChain | DispatchedBatch | DispatchedFlow) -> str:
    """Returns a line about a dispatch."""
    if isinstance(each, DispatchedBatch | DispatchedFlow):
        where = f"{each.connection}:{each.queue}" if each.queue else each.connection
        return f"{_shown_batch(each)} on {where}"
    begins = ""
    if isinstance(each, DispatchedChain):
        shown = _shown_links(each.jobs)
    elif each.job is None:
        shown = f"{one_line(each.name or '(no name)', 100)} (a raw payload)"
    else:
        shown = shown_job(each.job)
    if isinstance(each, Dispatched) and CHAIN in each.payload:
        begins = ", the first of a chain"
    delay = f", delayed by {each.delay:g} s" if each.delay else ""
    return f"{shown} on {each.connection}:{each.queue}{delay}{begins}"


def _shown_links(jobs: Iterable[LinkJob]) -> str:
    return one_line(" -> ".join(map(shown_member, jobs)), _LONGEST)


def _shown_batch(batch: DispatchedBatch | DispatchedFlow) -> str:
    name = f"{batch.name!r} of " if batch.name else ""
    few = [shown_member(each) for each in batch.jobs[:_FEW]]
    if len(batch.jobs) > _FEW:
        few.append(f"and {len(batch.jobs) - _FEW} more")
    return one_line(f"{name}[{', '.join(few)}]", _LONGEST)


def shown_member(job: MemberJob | LinkJob) -> str:
    """Returns a link or a member as text."""
    if isinstance(job, list):
        return f"[{_shown_links(job)}]"
    if isinstance(job, DispatchedBatch):
        return f"a batch {_shown_batch(job)}"
    return "(a job that cannot be made here)" if job is None else shown_job(job)


@dataclass
class _Plain:
    """A class whose repr is the one that dataclasses make."""


_MADE_BY_DATACLASS = _Plain.__repr__.__code__


def shown_job(job: Dispatchable) -> str:
    """Returns a job as its class and fields, each value shortened, or as its own repr."""
    if isinstance(job, Foreign):
        return one_line(f"{job.name}({_shortened(repr(job.data))})", _LONGEST_JOB)
    if getattr(type(job).__repr__, "__code__", None) is not _MADE_BY_DATACLASS:
        return one_line(_repr(job), _LONGEST_JOB)
    made: Any = job  # a dataclass, which mypy cannot know
    values = ", ".join(
        f"{field.name}={_shortened(_repr(getattr(job, field.name, None)))}"
        for field in dataclasses.fields(made)
        if field.repr
    )
    return one_line(f"{type(job).__name__}({values})", _LONGEST_JOB)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 (a value's own repr may do anything)
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}>"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
