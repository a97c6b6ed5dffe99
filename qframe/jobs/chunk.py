"""Chunk: how many jobs of a class one call handles, and how long the first waits for others."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from qframe.exceptions import JobDefinitionError, QframeError
from qframe.jobs.hooks import ran, refuse_generator
from qframe.payload import timing
from qframe.payload.text import one_line

MOST = 1000
_LONGEST = 60.0


@dataclass(frozen=True)
class Chunk:
    """Up to `size` jobs of a class are handled by one call of its `handle_many`.

    The worker calls it when so many are ready, or the oldest has waited `within` seconds.

    - `size`: from 2 to 1,000.
    - `within`: seconds or a timedelta, at most 60; default 1. 0 waits for no more.

    Raises `JobDefinitionError` for other arguments.
    """

    size: int
    within: float = 1.0

    def __init__(self, size: int, within: float | timedelta = 1.0) -> None:
        if type(size) is not int or not 2 <= size <= MOST:  # noqa: PLR2004 (one would be no chunk)
            shown = one_line(repr(size), 40)
            raise JobDefinitionError(
                f"Chunk: size is a whole number from 2 to {MOST:,}, not {shown}"
            )
        try:
            seconds = timing.seconds_until(within, "within")
        except (QframeError, TypeError, ValueError) as error:
            raise JobDefinitionError(f"Chunk: {error}") from None
        if seconds > _LONGEST:
            raise JobDefinitionError(f"Chunk: within is at most {_LONGEST:g} seconds, not {within}")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "within", seconds)


class ChunkCall:
    """The jobs that one call of `handle_many` is about."""

    def __init__(self, jobs: Sequence[Any]) -> None:
        self.jobs = jobs
        self.was_made = False
        """Whether `handle_many` was called: a middleware or `set_up` may keep it from that."""


def check_chunk(cls: Any) -> None:  # noqa: ANN401 (a job class, from `definition`)
    """Give a class with a `chunk` its `handle`. Raises `JobDefinitionError` for a wrong one."""
    name = cls.__name__
    function = getattr(cls, "handle_many", None)
    if not callable(function):
        raise JobDefinitionError(
            f"{name}.chunk needs a classmethod `handle_many(cls, jobs)`, which handles the jobs"
        )
    refuse_generator(f"{name}.handle_many", function)
    held = inspect.getattr_static(cls, "handle_many")
    if not isinstance(held, classmethod | staticmethod):
        raise JobDefinitionError(f"{name}.handle_many must be a classmethod: it has many jobs")
    own = getattr(cls, "handle", None)
    if own is not None and own is not handle:
        raise JobDefinitionError(f"{name} has a chunk: `handle_many` takes the place of `handle`")
    for option in ("middleware", "concurrency"):
        if getattr(cls, option):
            raise JobDefinitionError(f"{name} has a chunk, and cannot have {option} besides")
    cls.handle = handle


def handle(job: Any) -> Any:  # noqa: ANN401 (a job, and what `handle_many` returns)
    """Handle the jobs of a chunk, or this one alone, where nothing gathers a chunk."""
    call: ChunkCall | None = job._chunk  # noqa: SLF001 (set by the worker)
    if call is not None:
        call.was_made = True
        return _handled(type(job), call.jobs)
    result = _handled(type(job), [job])
    if inspect.isawaitable(result):
        return _awaited_alone(result)
    return results_of(result, 1)[0]


def _handled(job_class: Any, jobs: Sequence[Any]) -> Any:  # noqa: ANN401 (as above)
    result = job_class.handle_many(jobs)
    if inspect.isawaitable(result):
        return _awaited(job_class, result)
    return ran(job_class, "handle_many", result)


async def _awaited(job_class: Any, result: Any) -> Any:  # noqa: ANN401 (as above)
    return ran(job_class, "handle_many", await result)


async def _awaited_alone(result: Any) -> Any:  # noqa: ANN401 (as above)
    return results_of(await result, 1)[0]


def results_of(returned: object, size: int) -> Sequence[Any]:
    """Return the result of each job: those in a list of as many, else None."""
    if isinstance(returned, list | tuple) and len(returned) == size:
        return returned
    return [None] * size
