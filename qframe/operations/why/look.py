"""ConnectionLook: what one explanation reads of a connection, each thing once, with its moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeVar, cast

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.queue import Sizes
from qframe.drivers.store import pause_key, pause_note_key
from qframe.exceptions import BackendUnavailable
from qframe.operations.activity import Activity
from qframe.operations.board import Board
from qframe.operations.queues import PauseNote
from qframe.payload.text import is_queue_name
from qframe.worker import queue_facts, roster
from qframe.worker.roster import Entry

T = TypeVar("T")


class ReadAt(NamedTuple, Generic[T]):
    """A value, and the moment before it was read (epoch seconds)."""

    value: T
    at: float


class Pause(NamedTuple):
    """A pause of a queue, or of a whole connection."""

    since: float
    ends: float | None
    """When it ends by itself (epoch seconds)."""
    note: PauseNote | None


class ConnectionLook:
    """One connection, as one explanation sees it."""

    def __init__(
        self, board: Board, connection: Connection, *, imports: bool, quick: bool = False
    ) -> None:
        self.board = board
        self.connection = connection
        self.name = connection.name
        self.able = connection.capabilities
        self.imports = imports
        """Whether the code of a job may be imported."""
        self.quick = quick
        """Whether a page waits, which is shown again in a moment: long searches are cut short."""
        self._known: dict[object, ReadAt[object]] = {}

    def read(self, key: object, act: Callable[[], T]) -> ReadAt[T]:
        """Reads something once. Raises `BackendUnavailable`."""
        if key not in self._known:
            at = time.time()
            self._known[key] = ReadAt(self.board.ask(self.connection, act), at)
        return cast("ReadAt[T]", self._known[key])

    def seconds(self, usual: float) -> float:
        """Returns how long a search may take."""
        return usual / 20 if self.quick else usual

    @property
    def keeps_facts(self) -> bool:
        return Capability.FACTS in self.able

    def entries(self) -> ReadAt[list[Entry]]:
        """Returns the workers of the connection that the roster names, also killed ones."""
        if not self.keeps_facts:
            return ReadAt([], time.time())
        listed = self.read("entries", lambda: roster.listed(self.connection.store))
        return ReadAt([each for each in listed.value if each.connection == self.name], listed.at)

    def dead(self) -> ReadAt[list[Entry]]:
        """Returns the workers that died in the last hours: killed ones, and silent ones."""
        known = self.entries()
        if not self.keeps_facts:
            return known
        store = self.connection.store
        found = self.read("dead", lambda: roster.dead(store, known.value))
        gone = [each for each in known.value if each.is_gone]
        return ReadAt([*gone, *(e for e in found.value if e.connection == self.name)], found.at)

    def facts(self, *keys: str) -> ReadAt[list[str | None]]:
        return self.read(keys, lambda: self.connection.store.get(*keys))

    def sizes(self, queue: str) -> ReadAt[Sizes | None]:
        if Capability.SIZE not in self.able or not is_queue_name(queue):  # other programs name any
            return ReadAt(None, time.time())
        return self.read(("sizes", queue), lambda: self.connection.sizes(queue))

    def queues(self) -> ReadAt[list[str]]:
        """Returns the queues that hold jobs, as far as they can be listed."""
        if Capability.LIST not in self.able:
            return ReadAt([], time.time())
        return self.read("queues", self.connection.queues)

    def activity(self) -> ReadAt[Activity | None]:
        return self.read("activity", partial(Activity.of, self.connection))

    def pauses(self) -> ReadAt[Mapping[str, float]]:
        """Returns since when each paused queue is; "" stands for all."""
        return self.read("pauses", lambda: queue_facts.pauses(self.connection))

    def pause(self, queue: str) -> ReadAt[Pause | None]:
        """Returns the pause of a queue; of the whole connection for ""."""
        known = self.pauses()
        if queue not in known.value:
            return ReadAt(None, known.at)
        key, note = pause_key(self.name, queue), pause_note_key(self.name, queue)
        copied = self.read(("pause", queue), lambda: self.connection.backend.copy(key, note))
        fact, said = copied.value
        if fact is None:
            return ReadAt(None, copied.at)
        ends = None if fact.ttl is None else copied.at + fact.ttl
        kept = None
        if said is not None:
            with suppress(ValueError):
                kept = PauseNote.model_validate_json(said.value)
        if kept is not None and kept.at != fact.value:
            kept = None  # of an earlier pause
        return ReadAt(Pause(known.value[queue], ends, kept), copied.at)


def others(look: ConnectionLook) -> Iterator[ConnectionLook]:
    """Yields the other connections that answer."""
    for each in look.board.connections():
        if each.name != look.name:
            other = ConnectionLook(look.board, each, imports=look.imports)
            with suppress(BackendUnavailable):
                other.entries()
                yield other
