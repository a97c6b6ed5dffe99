"""route_of: finds the route of a job by its names."""

from __future__ import annotations

from collections.abc import Iterator

from qframe.config import Places, QueuePlace
from qframe.jobs.foreign import Dispatchable, Foreign


def route_of(places: Places, job: Dispatchable) -> QueuePlace:
    """Return the configured place of a job that names none itself.

    Its names are the one on the wire, then module and class, also of the classes that it derives
    from, the nearest first.
    """
    key = job.name if isinstance(job, Foreign) else type(job)
    return places.route(key, _names(job))


def _names(job: Dispatchable) -> Iterator[str]:
    if isinstance(job, Foreign):
        yield job.name
        yield job.name.partition("@")[0]
        return
    yield job.wire_name()
    for each in type(job).__mro__[:-1]:
        yield f"{each.__module__}.{each.__qualname__}"
