"""Places: the queues of jobs that name none (`[routes]`), and queues that moved (`[forward]`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from qframe.payload.text import one_line, queue_name


class QueuePlace(NamedTuple):
    """A queue on a connection, written `queue@connection`; either may be left out."""

    queue: str | None = None
    connection: str | None = None

    @classmethod
    def of(cls, text: str) -> QueuePlace:
        """Read it. Raises `ValueError`."""
        queue, at, connection = text.partition("@")
        if (at and not connection) or not text:
            shown = one_line(repr(text), 60)
            raise ValueError(f"{shown} is no place: queue, queue@connection or @connection")
        return cls(queue_name(queue) if queue else None, connection or None)


_NOWHERE = QueuePlace()


class Places:
    """The routes and forwards of a program. Raises `ValueError` for a forward in a circle."""

    def __init__(self, routes: Mapping[str, str], forward: Mapping[str, str]) -> None:
        self._routes = {pattern: QueuePlace.of(text) for pattern, text in routes.items()}
        self._found: dict[object, QueuePlace] = {}
        self._forward = {queue: QueuePlace.of(text) for queue, text in forward.items()}
        for queue in self._forward:
            self._check(queue)

    # -- routes -----------------------------------------------------------------------------------

    def route(self, key: object, names: Iterable[str]) -> QueuePlace:
        """Return the route of a job: that of the first of its names that has one.

        `key` stands for these names in later calls.
        """
        found = self._found.get(key)
        if found is None:
            routes = filter(None, map(self._route_of, names))
            found = self._found[key] = next(routes, _NOWHERE)
        return found

    def _route_of(self, name: str) -> QueuePlace | None:
        """Return the route of this name, or else of the first pattern that it matches."""
        matching = (self._routes[each] for each in self._routes if fnmatchcase(name, each))
        return self._routes.get(name) or next(matching, None)

    # -- forwards ---------------------------------------------------------------------------------

    def forwarded(self, queue: str, connection: str) -> QueuePlace:
        """Return where a push for a queue of a connection goes."""
        *_, last = self._path(QueuePlace(queue, connection))
        return last

    def on(self, queue: str, connection: str) -> str:
        """Return the queue for a push that stays on its connection, such as a link of a chain.

        That is the last one on this connection of those that forwards lead to.
        """
        path = self._path(QueuePlace(queue, connection))
        *_, last = (each for each in path if each.connection == connection)
        return last.queue or queue

    def _path(self, at: QueuePlace | None) -> Iterator[QueuePlace]:
        """Yield a place, and those that forwards lead to from there."""
        while at is not None:
            yield at
            at = self._next(at)

    def _next(self, at: QueuePlace) -> QueuePlace | None:
        place = self._forward.get(at.queue or "")
        if place is None:
            return None
        to = QueuePlace(place.queue or at.queue, place.connection or at.connection)
        return None if to == at else to

    def _check(self, queue: str) -> None:
        seen: set[QueuePlace] = set()
        for each in self._path(QueuePlace(queue)):
            if each in seen:
                raise ValueError(f"forward.{queue}: its pushes would go in a circle")
            seen.add(each)
