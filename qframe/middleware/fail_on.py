"""FailOn: an error after which trying again is of no use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qframe.exceptions import DontHandle, JobDefinitionError
from qframe.payload.text import one_line

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition


class FailOn:
    """Fails a job at once, whatever tries are left, where it raises one of these errors.

    `FailOn(ValueError, LookupError)`, or `FailOn(predicate)`, which is called with the error. The
    job is recorded with that error. Raises `JobDefinitionError` for anything else.
    """

    def __init__(self, *errors: type[Exception] | Callable[[Exception], object]) -> None:
        kinds = [each for each in errors if isinstance(each, type)]
        given: list[object] = [*errors]
        wrong = [each for each in given if not (_is_kind(each) or _is_function(each))]
        if wrong or not errors:
            instead = f", not {one_line(repr(wrong[0]), 60)}" if wrong else ""
            raise JobDefinitionError(
                f"FailOn takes kinds of errors (of Exception) or functions of the error{instead}"
            )
        self._kinds = tuple(kinds)
        self._predicates = [each for each in errors if not isinstance(each, type)]

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Call on; fail the job with what that raises, where it is one of these."""
        try:
            return call_next(job)
        except DontHandle:
            raise
        except Exception as error:
            reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
            if reserved is not None and not reserved.is_settled and self._matches(error):
                reserved.fail(error)
            raise

    def _matches(self, error: Exception) -> bool:
        if isinstance(error, self._kinds):
            return True
        return any(predicate(error) for predicate in self._predicates)


def _is_kind(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)
