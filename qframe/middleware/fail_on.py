"""FailOn: errors after which a retry is useless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qframe.exceptions import DontHandle, JobDefinitionError
from qframe.payload.text import one_line

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition


class FailOn:
    """Fails a job at once, even if it has tries left, when it raises one of these errors.

    `FailOn(ValueError, LookupError)`, or `FailOn(predicate)`, which is called with the error. The
    job is recorded with that error. Raises `JobDefinitionError` for other arguments.
    """

    def __init__(self, *errors: type[Exception] | Callable[[Exception], object]) -> None:
        self._matches = matching("FailOn", errors, Exception)

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job gave)
        """Run the job; fail it if it raises one of these errors."""
        try:
            return call_next(job)
        except DontHandle:
            raise
        except Exception as error:
            reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
            if reserved is not None and not reserved.is_settled and self._matches(error):
                reserved.fail(error)
            raise


def matching(
    owner: str, errors: Sequence[object], base: type[BaseException]
) -> Callable[[BaseException], bool]:
    """Return a predicate for these errors: exception classes, or functions of the exception.

    Raises `JobDefinitionError` for anything else, and for an empty list.
    """
    kinds = tuple(each for each in errors if isinstance(each, type) and issubclass(each, base))
    predicates = [each for each in errors if callable(each) and not isinstance(each, type)]
    wrong = [each for each in errors if each not in kinds and each not in predicates]
    if wrong or not errors:
        instead = f", not {one_line(repr(wrong[0]), 60)}" if wrong else ""
        raise JobDefinitionError(
            f"{owner} takes kinds of errors (of {base.__name__}) or functions of the error{instead}"
        )
    return lambda error: isinstance(error, kinds) or any(each(error) for each in predicates)
