"""Stored payloads: every payload that a program's connections keep, read without taking any.

In queues, in what batches, chains and flows keep for later, in the lines of groups, in the outbox,
in schedules added at run time and in failed records.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.outbox import Outbox
from qframe.drivers.failed_store import each_place
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.failed.filters import Filter
from qframe.features.group_lines import waiting_queues
from qframe.manager import QueueManager
from qframe.operations import jobs
from qframe.payload import envelope
from qframe.payload.signature import unsealed
from qframe.payload.text import one_line
from qframe.schedules.rows import ScheduleRow, keys_of

_KEPT = {
    "chain:": "kept for chains",
    "batch:": "kept for batches",
    "flow:": "kept for flows",
    "kept:": "delayed or buried as facts",
    "parked:": "on their way to another connection",
    "moving:": "on their way to another connection",
    "outbox:": "about to be pushed by a worker",
}
"""What the keys of facts begin with that have payloads, and what their payloads are."""
_PLACES = (Place.READY, Place.DELAYED, Place.RUNNING, Place.BURIED)
_PAGE = 2000
_ROWS = 20


@dataclass(frozen=True, slots=True)
class FoundPayload:
    """A payload, and where it is kept."""

    raw: bytes
    connection: Connection
    where: str
    """As people read it: `ready in database:mail`."""
    message: Mapping[str, Any] | None = None
    """Decoded, if it is."""
    queue: str | None = None
    """The queue that it must be signed for; None for what is not signed until its turn."""
    due: float | None = None
    """When it starts at the earliest (epoch seconds), if it is delayed."""


class StoredPayloads:
    """The payloads of a program's connections. Iterate over them once.

    At most so many of each queue and of each other place are read. `notes` says what was not read.
    A connection that does not answer is in `silent`.
    """

    def __init__(
        self,
        queues: QueueManager,
        only: str | None = None,
        *,
        at_most: int = 0,
        failed: bool = True,
    ) -> None:
        self._queues = queues
        self._only = only
        self._most = at_most or math.inf
        self._failed = failed
        self.notes: list[str] = []
        self.silent: dict[str, str] = {}

    def __iter__(self) -> Iterator[FoundPayload]:
        connections = [*self._queues.holding_jobs(self._only)]
        for each in connections:
            for read in (self._waiting, self._rows):
                yield from self._asked(each.name, each, read)
        for each in _each_store(connections):
            yield from self._asked(each.name, each, self._facts)
        for each in connections[:1]:
            yield from self._asked("the outbox", each, self._outbox)
        if self._failed:
            stores = {id(each.failed): each for each in connections}
            for store in each_place(each.failed for each in connections):
                each = stores[id(store)]
                yield from self._asked(each.name, each, self._records)

    def _asked(
        self,
        name: str,
        connection: Connection,
        read: Callable[[Connection], Iterator[FoundPayload]],
    ) -> Iterator[FoundPayload]:
        """Read from a connection, unless it does not answer."""
        if name in self.silent:
            return
        try:
            yield from read(connection)
        except BackendUnavailable as error:
            self.silent[name] = one_line(str(error), 200)

    def _some(self, found: Iterator[FoundPayload], of: str) -> Iterator[FoundPayload]:
        """Yield as many as are to be read; notes it if there are more."""
        for number, each in enumerate(found):
            if number >= self._most:
                self.notes.append(f"{of}: only the first {self._most:,} were read")
                return
            yield each

    # -- queues -----------------------------------------------------------------------------------

    def _waiting(self, connection: Connection) -> Iterator[FoundPayload]:
        if Capability.BROWSE | Capability.LIST not in connection.capabilities:
            self.notes.append(
                f"{connection.name}: what waits there cannot be looked at without taking it"
            )
            return
        if Capability.SEARCH not in connection.capabilities:
            self.notes.append(
                f"{connection.name} shows only the first job of each queue that is ready, delayed "
                "or buried, and none that runs"
            )
        for queue in sorted({*connection.queues(), *waiting_queues(connection.context)}):
            name = f"{connection.name}:{one_line(queue, 130)}"
            for place in _PLACES:
                found = self._in(connection, queue, place, name)
                yield from self._some(found, f"{place.value} in {name}")

    def _in(
        self, connection: Connection, queue: str, place: Place, name: str
    ) -> Iterator[FoundPayload]:
        for each in jobs.chosen_of(connection, queue, place, Filter("")):
            where = f"{each.state} in {name}"
            due = each.failed_at if place is Place.DELAYED else None
            yield FoundPayload(each.payload, connection, where, each.message or None, queue, due)

    # -- facts ------------------------------------------------------------------------------------

    def _facts(self, connection: Connection) -> Iterator[FoundPayload]:
        for prefix, what in _KEPT.items():
            of = f"{what} of {connection.name}"
            yield from self._some(self._under(connection, prefix, of), of)

    def _under(self, connection: Connection, prefix: str, of: str) -> Iterator[FoundPayload]:
        after = ""
        while page := connection.backend.scan(prefix, _PAGE, after):
            for key, text in page:
                if not _is_result(key):
                    for raw in payloads_in(text):
                        yield FoundPayload(raw, connection, of)
            after = page[-1][0]

    # -- the rest ---------------------------------------------------------------------------------

    def _rows(self, connection: Connection) -> Iterator[FoundPayload]:
        """Yield the jobs of schedules that were added at run time."""
        if Capability.FACTS not in connection.capabilities:
            return
        prefix = keys_of(self._queues, connection).row()
        for key, text in connection.store.items(prefix):
            try:
                row = ScheduleRow.model_validate_json(unsealed(text))
            except ValidationError:
                continue  # `qframe schedule list` names it
            if row.foreign:
                continue
            message = {"job": row.job, "data": row.data, envelope.VERSION: row.version or 0}
            name = one_line(key.removeprefix(prefix), 150)
            yield FoundPayload(b"", connection, f"the schedule {name}", message)

    def _outbox(self, connection: Connection) -> Iterator[FoundPayload]:
        outbox = self._queues.outbox()
        if outbox is not None:
            yield from self._some(self._in_outbox(outbox, connection), "the outbox")

    def _in_outbox(self, outbox: Outbox, connection: Connection) -> Iterator[FoundPayload]:
        after = 0
        while page := outbox.look(after, _ROWS):
            for after, name, text in page:  # noqa: B007 (the last one is used)
                for raw in payloads_in(text) if self._only in {None, name} else ():
                    yield FoundPayload(raw, connection, f"in the outbox for {one_line(name, 60)}")

    def _records(self, connection: Connection) -> Iterator[FoundPayload]:
        def read() -> Iterator[FoundPayload]:
            for each in connection.failed.all():
                where = f"failed in {one_line(each.connection, 60)}:{one_line(each.queue, 130)}"
                yield FoundPayload(each.payload, connection, where)

        yield from self._some(read(), f"failed jobs of {connection.name}")


def _each_store(connections: list[Connection]) -> list[Connection]:
    """Return connections, one for each place where facts are kept."""
    found: dict[int, Connection] = {}
    for each in connections:
        if Capability.FACTS in each.capabilities:
            backend = each.backend
            place = backend.facts if isinstance(backend, OrderedBackend) else backend
            found.setdefault(id(place), each)
    return [*found.values()]


def _is_result(key: str) -> bool:
    """Whether a fact is the result of a flow's node, which may look like anything."""
    return key.startswith("flow:") and key.split(":")[2:3] == ["s"]


# -- payloads inside of what is kept --------------------------------------------------------------


def payloads_in(text: str) -> Iterator[bytes]:
    """Yield the payloads in a kept text, whatever keeps them: sealed, in a list, in a step."""
    try:
        yield from _in_value(text)
    except RecursionError:
        yield text.encode("utf-8", "surrogatepass")  # no payload: the check says so


def _in_value(value: object) -> Iterator[bytes]:
    if isinstance(value, str):
        yield from _in_text(value)
    elif isinstance(value, list):
        for each in value:
            yield from _in_value(each)
    elif isinstance(value, dict):
        encoded = value.get("base64" if value.get("is") == "bytes" else "raw")
        if isinstance(encoded, str) and not encoded.startswith("{"):
            yield from _in_value(_of_base64(encoded))
            return
        for each in value.values():
            yield from _in_value(each)


def _in_text(text: str) -> Iterator[bytes]:
    inner = unsealed(text)
    if not inner.startswith(("{", "[")):
        return
    try:
        value = json.loads(inner)
    except ValueError:
        return
    is_payload = isinstance(value, dict) and isinstance(value.get("job"), str) and "data" in value
    if is_payload:
        yield inner.encode("utf-8", "surrogatepass")
    else:
        yield from _in_value(value)


def _of_base64(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""
