"""Relay: sends the steps in the outbox to the connections they are for."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qframe.contracts.outbox import Outbox
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.outbox.handing import Handing, RefusedRow, Totals

log = logging.getLogger("qframe")

_LONGEST_WAIT = 1.0
_BUSY_PAUSE = 0.05
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


@dataclass(slots=True)
class ReceiverPause:
    """Since when a receiver does not accept its rows, and until when it is left alone."""

    since: float
    until: float = 0.0
    next: float = _FIRST_PAUSE
    gone: bool = False
    """Whether it does not answer."""

    def again(self) -> None:
        """Start a pause that is longer than the last."""
        self.until = time.monotonic() + self.next * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        self.next = min(_LONGEST_PAUSE, self.next * 2)


class Relay:
    """Sends the steps in an outbox: each connection's in order, at least once.

    A step is applied together with a mark, and refused if the mark exists; so it is applied once,
    however often a relay dies. Any number of relays may run; a lock lets one at a time send the
    rows of a connection. A connection without an answer is retried with growing pauses; the others
    continue.

    `lost` is called when a connection or the outbox stops answering, `back` when it answers again,
    with the seconds in between.
    """

    def __init__(
        self,
        queues: QueueManager,
        outbox: Outbox,
        lost: Callable[[str, BackendUnavailable], None] | None = None,
        back: Callable[[str, float], None] | None = None,
    ) -> None:
        self.totals = Totals()
        self._queues = queues
        self._outbox = outbox
        self._lost = lost or _log_lost
        self._back = back or _log_back
        self._pauses: dict[str, ReceiverPause] = {}
        self._removed: dict[str, list[str]] = {}
        """Marks of removed rows, by connection."""
        self._own_pause: ReceiverPause | None = None

    @property
    def unanswered(self) -> list[str]:
        """The connections, or the outbox, that do not answer."""
        gone = [name for name, pause in self._pauses.items() if pause.gone]
        return gone if self._own_pause is None else [*gone, self._outbox.described()]

    def run(self, wake: int, is_over: Callable[[], bool], *, until_empty: bool = False) -> None:
        """Send rows until `is_over` returns True; `wake` ends a wait.

        With `until_empty`, until nothing is left for connections that answer.
        """
        while not is_over():
            try:
                if self.turn():
                    continue
                if until_empty and all(map(self._is_gone, self._outbox.receivers())):
                    return
                self._wait(wake)
            except BackendUnavailable as error:
                pause = self._own_pause
                if pause is None:
                    pause = self._own_pause = ReceiverPause(time.monotonic())
                    self._lost(self._outbox.described(), error)
                if until_empty:
                    return
                pause.again()
                readable([wake], pause.until - time.monotonic())

    def turn(self) -> int:
        """Send the first rows of each connection. Returns how many were settled.

        Raises `BackendUnavailable` if the outbox does not answer.
        """
        receivers = self._outbox.receivers()
        if self._own_pause is not None:
            seconds = time.monotonic() - self._own_pause.since
            self._own_pause = None
            self._back(self._outbox.described(), seconds)
        return sum(self._hand_on(name) for name in receivers if not self._is_paused(name))

    # -- one connection ---------------------------------------------------------------------------

    def _hand_on(self, name: str) -> int:
        """Send the first rows of a connection. Returns how many were settled."""
        try:
            receiver = self._queues.connection(name)
        except ConfigurationError as error:  # another relay may know it, or this one soon
            unknown = f"rows wait for the connection {name!r}: {error}"
            self._receiver_lost(name, BackendUnavailable(unknown))
            return 0
        since = receiver.backend.clock()
        with self._outbox.claim(name) as claim:
            if claim is None:
                now = time.monotonic()
                self._pauses[name] = ReceiverPause(now, now + _BUSY_PAUSE)
                return 0
            rows = Handing(receiver, claim.rows, since, self._removed.get(name, ()), self.totals)
            try:
                rows.hand_on()
            except BackendUnavailable as error:
                self._receiver_lost(name, error)
            else:
                self._receiver_answers(name, rows.refused)
            if rows.done:
                claim.remove([row.id for row in rows.done])
            for row, why, aside in rows.refused:
                claim.note(row.id, why, aside=aside)
        self._removed[name] = rows.marks
        return len(rows.done)

    def _receiver_lost(self, name: str, error: BackendUnavailable) -> None:
        pause = self._pauses.get(name)
        if pause is None or not pause.gone:
            pause = self._pauses[name] = ReceiverPause(time.monotonic(), gone=True)
            self._lost(name, error)
        pause.again()

    def _receiver_answers(self, name: str, refused: Sequence[RefusedRow]) -> None:
        """Note that a connection answers; a row refused last is retried later."""
        pause = self._pauses.pop(name, None)
        if pause is not None and pause.gone:
            self._back(name, time.monotonic() - pause.since)
        if refused and not refused[-1].aside:
            known = pause is not None and not pause.gone and refused[-1].row.tries
            pause = self._pauses[name] = (
                pause if known and pause else ReceiverPause(time.monotonic())
            )
            pause.again()

    # -- waiting ----------------------------------------------------------------------------------

    def _is_paused(self, name: str) -> bool:
        pause = self._pauses.get(name)
        return pause is not None and time.monotonic() < pause.until

    def _is_gone(self, name: str) -> bool:
        pause = self._pauses.get(name)
        return pause is not None and pause.gone

    def _wait(self, wake: int) -> None:
        """Wait for rows; for those of a paused connection only until the pause ends."""
        now = time.monotonic()
        paused = {name: p.until for name, p in self._pauses.items() if p.until > now}
        seconds = min([_LONGEST_WAIT, *(until - now for until in paused.values())])
        self._outbox.wait(seconds, wake, but=paused)


def _log_lost(name: str, error: BackendUnavailable) -> None:
    log.warning("the relay cannot reach %s: %s", name, error)


def _log_back(name: str, seconds: float) -> None:
    log.warning("the relay reaches %s again, after %.1f s", name, seconds)
