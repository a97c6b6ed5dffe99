"""Skip: a job that is not to be run, by a condition looked at when it would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition


class Skip:
    """Skips a job: `Skip.when(condition)`, `Skip.unless(condition)`.

    The condition is a value, or is called with the job at each attempt. What it raises is the
    attempt's error.
    """

    def __init__(self, condition: object, *, wanted: bool) -> None:
        self._condition = condition
        self._wanted = wanted

    @classmethod
    def when(cls, condition: bool | Callable[[Any], object]) -> Self:
        """Skip the job where the condition is true."""
        return cls(condition, wanted=True)

    @classmethod
    def unless(cls, condition: bool | Callable[[Any], object]) -> Self:
        """Skip the job unless the condition is true."""
        return cls(condition, wanted=False)

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Call on, or do not."""
        found = self._condition(job) if callable(self._condition) else self._condition
        return None if bool(found) is self._wanted else call_next(job)
