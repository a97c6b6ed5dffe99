"""What an assertion looks for among dispatches, and how jobs are shown when it is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.queueable import Queueable
from qframe.features.chain import KEY as CHAIN
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.payload import timing
from qframe.payload.text import one_line
from qframe.payload.timing import When
from qframe.testing.recording import Dispatched

J = TypeVar("J", bound=Queueable)
Target = type[Queueable] | QueueableFunction[..., Any] | Queueable | Foreign | str
"""What names jobs: a class (its subclasses too), a function under `@queueable`, a job (those
equal to it), or a name on the wire."""

_LONGEST_VALUE = 60
_LONGEST_JOB = 300
_MOST = 20
_SAME_MOMENT = 1.0


@dataclass
class _Plain:
    """A class whose repr is the one that dataclasses make."""


_MADE_BY_DATACLASS = _Plain.__repr__.__code__


class Kind:
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

    def fits(self, job: Dispatchable | None, name: str) -> bool:
        """Whether a job, or a raw payload of that name, is one of them."""
        target = self._target
        if isinstance(target, type) and issubclass(target, Queueable):
            return isinstance(job, target) or (job is None and name == target.own_name())
        if isinstance(target, str):
            return target in {name, name.partition("@")[0]}
        if isinstance(target, Foreign):
            return isinstance(job, Foreign) and (job.name, job.data) == (target.name, target.data)
        return type(job) is type(target) and bool(job == target)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What dispatches are to be found."""

    kind: Kind | None
    where: Callable[[Any], object] | None = None
    queue: str | None = None
    connection: str | None = None
    delay: When | None = None

    def __post_init__(self) -> None:
        """Check the delay: an assertion that is wrong itself must not pass."""
        if self.delay is not None:
            timing.seconds_until(self.delay)

    def fits(self, each: Dispatched) -> bool:
        """Whether a dispatch is one of them."""
        return (
            (self.kind is None or self.kind.fits(each.job, each.name))
            and self.queue in {None, each.queue}
            and self.connection in {None, each.connection}
            and self._fits_delay(each)
            and (self.where is None or (each.job is not None and bool(self.where(each.job))))
        )

    def _fits_delay(self, each: Dispatched) -> bool:
        if self.delay is None:
            return True
        if isinstance(self.delay, datetime):  # a moment: the delay was counted from then
            due = timing.moment(self.delay, "delay")
            return abs(each.at + each.delay - due) < _SAME_MOMENT
        return each.delay == timing.seconds_until(self.delay)

    def __str__(self) -> str:
        text = str(self.kind)
        if self.queue is not None:
            text += f" on the queue {self.queue!r}"
        if self.connection is not None:
            text += f" on the connection {self.connection!r}"
        if self.delay is not None:
            seconds = isinstance(self.delay, int | float)
            text += f" with a delay of {f'{self.delay:g} s' if seconds else self.delay}"
        return text + (" that `where` accepts" if self.where is not None else "")


def shown_job(job: Dispatchable) -> str:
    """Show a job as its class and fields, each value shortened, or as its own repr has it."""
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


def shown(dispatched: Iterable[tuple[bool, Dispatched]]) -> str:
    """List dispatches, a line each, those that fit marked with a star."""
    there = list(dispatched)
    return listed([fits for fits, _ in there], [_line(each) for _, each in there])


def listed(fits: Sequence[bool], lines: Sequence[str]) -> str:
    """Put lines below each other, those that fit marked with a star."""
    shown = [f"  {'*' if fit else '-'} {line}" for fit, line in zip(fits, lines, strict=True)]
    if len(shown) > _MOST:
        shown[_MOST:] = [f"  and {len(shown) - _MOST} more"]
    return "\n".join(shown)


def _line(each: Dispatched) -> str:
    if each.job is not None:
        job = shown_job(each.job)
    else:
        job = f"{one_line(each.name or '(no name)', 100)} (a raw payload)"
    delay = f", delayed by {each.delay:g} s" if each.delay else ""
    begins = ", the first of a chain" if CHAIN in each.payload else ""
    return f"{job} on {each.connection}:{each.queue}{delay}{begins}"


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 (a value's own repr may do anything)
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}>"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
