"""JobId: the id of a job, which knows the type of the job's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

R_co = TypeVar("R_co", covariant=True, default=Any)


class JobId(str, Generic[R_co]):
    """The id of a dispatched job: a text, from which `wait_for` knows what the job returns.

    `wait_for` and `job_status` of the id that `send()` returned have the result as `handle` returns
    it; those of the same text as a `str`, from a database or another process, as JSON has it.
    """

    __slots__ = ("job_class",)

    job_class: type[Any]
    """The class of the job, whose `handle` says what it returns; only where it is known."""

    def __reduce__(self) -> tuple[type[JobId], tuple[str]]:
        """Copy and pickle the text alone: another process may not have the class."""
        return JobId, (str(self),)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let it be a field, or what a route returns: a text."""
        from pydantic_core import core_schema  # noqa: PLC0415 (the contracts need nothing else of it)

        del source, handler
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


def job_id(text: str, job: object) -> JobId[Any]:
    """Return the id of a job, which knows its class."""
    identity = JobId(text)
    identity.job_class = type(job)
    return identity


def job_ids(
    texts: Iterable[str], classes: Iterable[type[Any]], others: Mapping[str, str]
) -> list[JobId[Any]]:
    """Return the ids of jobs of these classes; `others` has the id of the job in the way of one."""
    ids = []
    for text, job_class in zip(texts, classes, strict=True):  # no call of a function for each
        identity = JobId(others.get(text, text) if others else text)
        identity.job_class = job_class
        ids.append(identity)
    return ids
