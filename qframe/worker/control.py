"""Control: orders from the store: restart, paused queues, jobs at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from qframe.drivers.store import Store, pause_key
from qframe.exceptions import BackendUnavailable
from qframe.worker.options import StopReason

log = logging.getLogger("qframe")

RESTART = "restart"
QUIET = "quiet"
"""The order to a worker to take no more jobs until the order is removed."""
STOP = "stop"
"""The order to a worker to end after its jobs."""
EVERY = 1.0
"""Seconds between two looks: a restart or pause takes effect within this, after the current job."""
_SELDOM = 2.0
"""Seconds between two looks if queues are listed and the last looks found none new."""
_QUIET = 5
"""So many looks without a new queue."""
_DIGITS = 9


def slots_key(id: str) -> str:  # noqa: A002 (as the roster calls it)
    return f"scale:{id}:slots"


def order_key(id: str) -> str:  # noqa: A002 (as the roster calls it)
    return f"order:{id}"


def size_key(id: str) -> str:  # noqa: A002 (as the roster calls it)
    return f"scale:{id}:size"


class Control:
    """The last known orders, read from the store once a second in one request.

    A store that does not answer changes nothing: the last known state holds. With `find`, each look
    lists the queues, and a new one is worked once its pause was read; if that finds nothing new for
    a while, only every two seconds. With `worker`, its id in the roster, each look reads its order
    to be quiet or stop; with `scales`, how many jobs it is to run at once.
    """

    def __init__(
        self,
        store: Store,
        connection: str,
        queues: Sequence[str],
        *,
        force: bool,
        find: Callable[[], tuple[str, ...]] | None = None,
        worker: str = "",
        scales: bool = False,
    ) -> None:
        self._store = store
        self._connection = connection
        self._queues = tuple(queues)
        self._force = force
        self._find = find
        self._own = (order_key(worker),) if worker else ()
        if scales:
            self._own = (*self._own, slots_key(worker))
        self._watched: dict[str, str | None] = {}
        self._hearers: dict[str, Callable[[str | None], None]] = {}
        self._held_up: tuple[str, ...] = ()
        self._looked = 0.0
        self._silent = False
        self._unchanged = 0
        self.every = EVERY
        """Seconds between two looks."""
        self._first: str | None = None
        self._begun = False
        self._quiet = False
        self.ends: StopReason | None = None
        """Why the worker is to end, if it is."""
        self.paused = False
        """Whether every queue is paused."""
        self.slots = 0
        """How many jobs are to run at once; 0: no order."""
        self.active = self._queues
        """The queues that are not paused, in their order."""

    def look(self) -> None:
        """Reads the store, at most once a second.

        The first look notes the present restart token, and raises `BackendUnavailable`. Any look
        raises what `find` raises.
        """
        now = time.monotonic()
        if self._begun and now - self._looked < self.every:
            return
        queues = self._now_there()
        self._looked = now
        each = (pause_key(self._connection, queue) for queue in queues)
        watched = (*self._watched,)
        try:
            values = self._store.get(
                RESTART, pause_key(self._connection), *each, *self._own, *watched
            )
        except BackendUnavailable as error:
            if not self._begun:
                raise
            if not self._silent:
                log.warning("restart and pause cannot be read: %s", error)
            self._silent = True
            return
        upto = len(values) - len(watched)
        self._watched.update(zip(watched, values[upto:], strict=True))
        for key, hear in self._hearers.items():
            hear(self._watched[key])
        values = values[:upto]
        if not self._begun:
            self._first = values[0]
            self._begun = True
        self._silent = False
        self._unchanged = self._unchanged + 1 if queues == self._queues else 0
        is_quiet = self._find is not None and self._unchanged >= _QUIET
        self.every = _SELDOM if is_quiet else EVERY
        self._queues = queues
        upto = len(values) - len(self._own)
        self._obey(*values[upto:])
        self._read(values[:upto])

    def backend_is_lost(self) -> None:
        """Says no more that the store cannot be read: the loop has told that."""
        self._silent = True

    @property
    def looked_at(self) -> float:
        """When the store was last asked, by the monotonic clock; from any thread."""
        return self._looked

    @property
    def answers(self) -> bool:
        """Whether the store answered when it was last asked; from any thread."""
        return self._begun and not self._silent

    def watch(self, key: str, hear: Callable[[str | None], None] | None = None) -> None:
        """Reads this key, too, at each look; `hear` is told its value."""
        self._watched.setdefault(key, None)
        if hear is not None:
            self._hearers[key] = hear

    def watched(self, key: str) -> tuple[float, str | None]:
        """Returns when the last look was, by the monotonic clock, and the key's value."""
        return self._looked, self._watched[key]

    def finds_more(self) -> bool:
        """Looks for queues at once; returns whether there is another one to work."""
        if self._find is None:
            return False
        known = {*self.active}
        self._looked = -_SELDOM
        self.look()
        return not known.issuperset(self.active)

    def _now_there(self) -> tuple[str, ...]:
        """Returns the queues to look for; a paused one stays, so only `resume` ends its pause."""
        if self._find is None:
            return self._queues
        found = self._find()
        return (*found, *(queue for queue in self._held_up if queue not in found))

    def _obey(self, order: str | None = None, slots: str | None = None) -> None:
        self._quiet = order == QUIET
        self.ends = StopReason.REQUESTED if order == STOP else None
        self.slots = number(slots) or self.slots

    def _read(self, values: Sequence[str | None]) -> None:
        token, everything, *each = values
        if token is not None and token != self._first:
            self.ends = StopReason.RESTART
        pairs = list(zip(self._queues, each, strict=True))
        self._held_up = tuple(queue for queue, paused in pairs if paused is not None)
        if self._quiet or (everything is not None and not self._force):
            self.active = ()
            self.paused = True
        else:
            self.active = tuple(queue for queue, paused in pairs if paused is None)
            self.paused = bool(self._queues) and not self.active


def number(text: str | None) -> int:
    """Reads a whole number from the store; 0 if there is none, or an absurd one."""
    is_one = text is not None and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if is_one and text else 0
