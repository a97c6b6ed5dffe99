"""Finds jobs that may complete within a transaction: a worker then waits for their start.

It does not wait for other jobs. A transaction whose snapshot is older than the start cannot remove
the job: at REPEATABLE READ and above, PostgreSQL refuses to change a row that was changed since.

A worker waits for each start of a class until one of its jobs has succeeded. From then on it waits
if one has completed so, or if the code of the class may.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition

_CALL = "complete"
_OWN = "qframe."
"""Prefix of modules whose classes do not count."""
waits: dict[str, bool] = {}
"""Whether a worker waits for the start of a job, by its name on the wire, if known."""


def learn(name: str) -> None:
    """Note that a job of this name completes within a transaction."""
    waits[name] = True


def succeeded(name: str, job_class: type[JobDefinition] | None) -> None:
    """Note that a job of this name is done, perhaps without that."""
    if name not in waits and job_class is not None:
        waits[name] = any(_CALL in code.co_names for code in _codes(job_class))


def _codes(job_class: type) -> Iterator[CodeType]:
    """Iterate over the code of a class, and of functions in its module that it calls."""
    left: list[Any] = []
    for kind in job_class.__mro__:
        if not kind.__module__.startswith(_OWN) and kind is not object:
            left += vars(kind).values()
    seen: set[int] = set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, staticmethod | classmethod):
            left.append(each.__func__)
        elif isinstance(each, property):
            left.append(each.fget)
        elif isinstance(each, FunctionType):
            left += [each.__code__, *_reached(each)]
        elif isinstance(each, CodeType):
            yield each
            left += each.co_consts


def _reached(function: FunctionType) -> Iterator[object]:
    """Iterate over what a function wraps, and functions in its module that it names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in function.__code__.co_names:
        named = function.__globals__.get(name)
        if getattr(named, "__module__", None) == function.__module__:
            yield named
