"""Bulk: one action on many things, in a thread of its own, with progress; can be cancelled."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pydantic import BaseModel

from qframe import forks
from qframe.exceptions import QframeError
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

_TROUBLES = 10
_KEPT = 50
"""So many that are over are remembered."""


class BulkState(BaseModel):
    """The state of a bulk action. `state`: `running`, `done`, `cancelled` or `broken`."""

    id: str
    who: str
    action: str
    of: str
    """What it acts on, in words."""
    state: str
    looked_at: int
    changed: int
    troubles: list[str]
    """The first few failures."""
    seconds: float
    told: str = ""
    """What can be taken back of it; ""."""
    undo: str = ""
    """The act that `undo` takes back; ""."""


class BulkAction:
    """An action on each of many; `act` returns whether it changed something."""

    def __init__(
        self,
        who: str,
        action: str,
        of: str,
        steps: Iterator[Callable[[], bool]],
        troubles: Iterable[str] = (),
    ) -> None:
        self.id = secrets.token_hex(8)
        self._who, self._action, self._of = who, action, of
        self._steps = steps
        self._state = "running"
        self._looked_at = self._changed = 0
        self._troubles = list(troubles)
        self._cancelled = threading.Event()
        self.told = self.undo = ""
        self._began = time.monotonic()
        self._ended: float | None = None
        self.over = threading.Event()

    def run(self, on_end: Callable[[int], None]) -> None:
        """Acts on each; at the end calls `told` with how many were changed."""
        try:
            for step in self._steps:
                if self._cancelled.is_set():
                    break
                self._looked_at += 1
                self._act(step)
            self._state = "cancelled" if self._cancelled.is_set() else "done"
        except Exception as error:  # noqa: BLE001 (whatever it is, it is shown)
            self._state = "broken"
            self._trouble(error)
            log.warning("%s of %s was not finished: %s", self._action, self._of, error)
        finally:
            self._ended = time.monotonic()
            on_end(self._changed)
            self.over.set()

    def _act(self, step: Callable[[], bool]) -> None:
        try:
            self._changed += step()
        except QframeError as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        if len(self._troubles) < _TROUBLES:
            self._troubles.append(one_line(str(error), 300))

    def cancel(self) -> None:
        """Lets it end after the present item."""
        self._cancelled.set()

    def state(self) -> BulkState:
        return BulkState(
            id=self.id,
            who=self._who,
            action=self._action,
            of=self._of,
            state=self._state,
            looked_at=self._looked_at,
            changed=self._changed,
            troubles=list(self._troubles),
            seconds=(self._ended or time.monotonic()) - self._began,
            told=self.told,
            undo=self.undo,
        )


class BulkActions:
    """The bulk actions that run in this process, and the last that are over."""

    def __init__(self) -> None:
        self._known: dict[str, BulkAction] = {}
        self._lock = forks.lock()
        forks.in_child_of(self, lambda child: child._known.clear())  # noqa: SLF001 (its own)

    def start(self, bulk: BulkAction, on_end: Callable[[int], None]) -> BulkAction:
        """Runs one in a thread of its own."""
        with self._lock:
            self._known[bulk.id] = bulk
            over = [each for each in self._known.values() if each.over.is_set()]
            for each in over[:-_KEPT]:
                del self._known[each.id]
        threading.Thread(target=bulk.run, args=(on_end,), name="qframe-bulk", daemon=True).start()
        return bulk

    def find(self, identity: str) -> BulkAction | None:
        return self._known.get(identity)

    def states(self) -> list[BulkState]:
        """Returns the states of all, the latest first."""
        return [each.state() for each in reversed(list(self._known.values()))]
