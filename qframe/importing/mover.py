"""Mover: pushes each found job once, and only then removes it from its source.

The push takes an idempotency key of the source's own id, in the same step. So a move that was
killed, is said again, or runs twice at once pushes each job once, and loses none.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.drivers.claims import is_unproven, proven, stands
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.importing.found import FoundJob, JobSource, Kept
from qframe.importing.mapping import Names
from qframe.jobs.definition import JobDefinition
from qframe.jobs.uniqueness import ONCE, once
from qframe.manager import QueueManager
from qframe.payload.envelope import text
from qframe.payload.text import one_line
from qframe.payload.timing import LONGEST

_REMEMBERED = 90 * 86400.0
"""Seconds for which a job that was moved is not moved again."""


class ImportRow(NamedTuple):
    """Jobs that are counted together."""

    name: str
    queue: str
    outcome: str
    """`moved`, `moved before`, `kept`, or `equal one waits`, for a unique job."""
    why: str = ""


class Mover:
    """Moves what waits in a source."""

    def __init__(
        self, queues: QueueManager, names: Names, source: JobSource, connection: str | None
    ) -> None:
        self._queues = queues
        self._names = names
        self._source = source
        self._connection = connection

    def move(self, *, keep: bool = False, dry_run: bool = False) -> Counter[ImportRow]:
        """Move everything; with `keep` it also stays. Raises `BackendUnavailable`."""
        counts: Counter[ImportRow] = Counter()
        for found in self._source.jobs(change=not dry_run):
            try:
                outcome = self._moved(found, keep=keep, dry_run=dry_run)
                counts[ImportRow(found.name, found.queue, outcome)] += 1
            except Kept as why:
                counts[ImportRow(found.name, found.queue, "kept", str(why))] += 1
        return counts

    def _moved(self, found: FoundJob, *, keep: bool, dry_run: bool) -> str:
        if found.kept:
            raise Kept(found.kept)
        queue, job = self._names.queue(found), self._names.job(found)
        connection = self._queues.connection_of(job, self._connection, queue)
        able = connection.capabilities
        if Capability.RESERVE not in able or Capability.FACTS not in able:
            raise ConfigurationError(f"the connection {connection.name!r} keeps no jobs and keys")
        try:
            outcome = self._pushed(connection, job, found, queue, dry_run=dry_run)
        except BackendUnavailable:
            raise
        except QframeError as error:
            raise Kept(one_line(str(error))) from None
        if not (keep or dry_run):
            self._source.remove(found)
        return outcome

    def _pushed(
        self,
        connection: Connection,
        job: JobDefinition,
        found: FoundJob,
        queue: str,
        *,
        dry_run: bool,
    ) -> str:
        _check_times(found)
        key = once(f"import.{self._source.name}", found.id or "-", _REMEMBERED)
        more: dict[str, object] = {ONCE: key}
        if found.expires is not None:
            more["expiresAt"] = found.expires
        if found.priority is not None:
            more["priority"] = found.priority
        made = connection.envelope(job)
        connection.add(made, more)
        (holder,) = connection.backend.read(key["key"]) if found.id else (None,)
        if dry_run:
            return "moved" if holder is None or is_unproven(holder) else "moved before"
        if holder is not None and stands(connection.backend, key["key"], proven(holder)):
            return "moved before"
        # After a push that was broken off, it has another id than the message of that one.
        identity = text({"id": found.id}, "id") if holder is None else None
        if identity is not None and identity.isprintable():
            made.payload["uuid"] = made.payload["id"] = made.uuid = identity
            made.encode()
        delay = 0.0 if found.due is None else max(0.0, found.due - time.time())
        pushed = connection.push_envelope(job, made, queue, delay)
        return "moved" if pushed == made.uuid else "equal one waits"


def _check_times(found: FoundJob) -> None:
    """Raise `Kept` for a time that no job waits for."""
    if found.due is not None and not found.due - time.time() <= LONGEST:
        raise Kept("it is due in more than 100 years, or never")
