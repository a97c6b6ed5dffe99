"""Names of queues that are likely mistakes, or that moved: `qframe check` reports them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import suppress

from qframe.alerts.view import ConnectionView
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.metrics.kept import Metrics
from qframe.payload.text import count_of, is_queue_pattern
from qframe.worker.queues import WorkedQueues

_NEAR = 0.75
"""How alike two names are, of 1, if one is likely a misspelling of the other."""
_SHOWN = 5


def unlikely(queues: QueueManager, connection: Connection) -> list[str]:
    """Returns likely mistakes in the names of queues. Raises `BackendUnavailable`."""
    return [*_nearly(queues, connection), *_moved(queues, connection), *_elsewhere(connection)]


def _nearly(queues: QueueManager, connection: Connection) -> Iterator[str]:
    if Capability.LIST not in connection.capabilities:
        return
    pushed = _pushed(connection)
    worked = _worked(queues, connection, pushed)
    for name in sorted(worked - pushed):
        near = _nearest(name, pushed - worked)
        if near:
            yield (
                f"nobody has pushed to the queue {name!r}, which is worked or configured, and "
                f"nobody works {near!r}, which has had jobs: is it the same?"
            )
    for name in sorted(pushed - worked):
        near = _nearest(name, worked & pushed)
        if near:
            yield (
                f"the queue {name!r} has had jobs, and no worker or configuration names it: "
                f"is {near!r} meant?"
            )


def _pushed(connection: Connection) -> set[str]:
    """Returns the queues that hold jobs, or for which jobs were counted."""
    found = set(connection.queues())
    if connection.is_measured:
        totals = Metrics(connection.store, connection.name).totals()
        found.update(pair.queue for pair in totals if pair.job)
    return found


def _worked(queues: QueueManager, connection: Connection, pushed: set[str]) -> set[str]:
    """Returns the queues that workers of the connection, or the configuration, name."""
    settings, name = queues.settings, connection.name
    found = {connection.default_queue}
    for supervisor in settings.supervisors.values():
        if (supervisor.connection or settings.default) == name:
            found.update(supervisor.queues)
    if name == settings.default:
        found.update(each for each in settings.queues if not is_queue_pattern(each))
    for entry in ConnectionView(connection).entries():
        with suppress(ConfigurationError):  # of another version
            found.update(WorkedQueues(entry.queues, lambda: pushed).find())
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)), "")


def _moved(queues: QueueManager, connection: Connection) -> Iterator[str]:
    if queues.places is None or Capability.SIZE not in connection.capabilities:
        return
    for name in queues.settings.forward:
        to = queues.places.forwarded(name, connection.name)
        if to != (name, connection.name) and (jobs := connection.size(name)):
            yield (
                f"the queue {name!r} is forwarded to {to.queue}@{to.connection} and still has "
                f"{count_of(jobs, 'job', 'jobs')}: keep a worker of it until it is empty"
            )


def _elsewhere(connection: Connection) -> Iterator[str]:
    for prefix, names in connection.backend.queues_elsewhere().items():
        more = len(names) - _SHOWN
        shown = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield (
            f"there are queues under another prefix as well ({shown}): where they are meant, "
            f"set prefix = {prefix!r}"
        )
