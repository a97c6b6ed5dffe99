"""Checker: checks the rules, when it has the turn, and sends new notifications.

All checkers share one text, the state. A checker writes its changes only if the text is still the
one it read; so of two checkers (even if one was stopped and continues) only one sends.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from qframe.alerts.channel import Channel, NotSent
from qframe.alerts.life import Alert, AlertRecords, AlertTerms, Evaluation, Notification, texts
from qframe.config import AlertSettings
from qframe.contracts.backend import suspending_clock
from qframe.contracts.step import Expect, Set, Step
from qframe.drivers import process
from qframe.drivers.heartbeat import start_thread
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.rules import Rule

log = logging.getLogger("qframe")

_STATE, _TURN = "alerts:state", "alerts:turn"
_TURNS = 3
"""Checks after which another checker takes the turn of one that is gone."""
_FRESH = 5.0
"""Seconds after its write in which a notification may begin, by a clock that counts suspension."""
_TRIES = 5
_PARTING = 2.0

Look = Callable[[Sequence[Rule]], Evaluation]


class Checker:
    """One thread calls `check` again and again; `seconds` is the pause in between."""

    def __init__(
        self,
        store: Store,
        settings: AlertSettings,
        look: Look,
        channels: Mapping[str, Channel],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._rules = settings.parsed()
        self._look = look
        self._channels = channels
        self._wake = wake
        self._every = settings.every
        self._who = f"{process.NAME}:{process.pid()}:{secrets.token_hex(8)}"
        self._terms = AlertTerms(
            texts(self._rules),
            {name: each.longest for name, each in channels.items()},
            settings.calm,
            settings.remind,
            settings.resolved,
        )
        self._ends: queue.SimpleQueue[tuple[Notification, str]] = queue.SimpleQueue()
        self._unsaved: list[tuple[Notification, str]] = []
        self._running = 0
        self._known: tuple[str | None, AlertRecords] | None = None
        """The last text read or written, and its state; used while the store does not answer."""
        self._ahead = False
        """Whether the state has changes that could not be written."""
        self._looked = 0.0
        self._due: float | None = None

    def check(self) -> None:
        """Check the rules if it is time and this checker's turn, and begin notifications."""
        self._take_ended()
        try:
            if not self._store.takes_turn(_TURN, self._who, _TURNS * self._every):
                self._known = self._due = None
                self._looked = time.time()
                self._note()
                return
            (text,) = self._store.get(_STATE)
        except BackendUnavailable:
            if self._known is not None:  # nobody else can have had the turn since
                self._go_on(*self._known, is_away=True)
            return
        if self._known is not None and self._known[0] == text:
            state = self._known[1]
        else:
            state, self._ahead = AlertRecords.read(text), False
        try:
            self._go_on(text, state)
        except BackendUnavailable as error:
            log.debug("alerts: %s", error)

    def seconds(self) -> float:
        """Return the seconds until the next action, unless a notification ends earlier."""
        until = self._looked + self._every
        if self._due is not None:
            until = min(until, self._due)
        return min(self._every, max(0.05, until - time.time()))

    def leave(self) -> None:
        """Wait briefly for running notifications, and free the turn."""
        until = time.monotonic() + _PARTING
        while self._running and (left := until - time.monotonic()) > 0:
            self._take_ended(left)
        try:
            self._note()
            self._store.delete(_TURN, self._who)
        except BackendUnavailable as error:
            log.debug("alerts: %s", error)

    # -- checking the rules -----------------------------------------------------------------------

    def _go_on(self, text: str | None, state: AlertRecords, *, is_away: bool = False) -> None:
        """Check, write the changes, and only then send."""
        before, state = state, state.model_copy(deep=True)
        self._apply(state)
        now, seen = time.time(), Evaluation()
        if not 0 <= now - self._looked < self._every * 0.9:
            seen = self._look(self._rules)
            state.look(seen, self._terms, time.time())
            self._looked = now
        begun = state.begin(self._terms, time.time())
        asked = suspending_clock()
        if is_away:
            self._ahead = True
        elif state != before or self._ahead:
            state.number += 1
            written = self._write(text, state)
            if written is None:
                self._known = None
                return
            text, self._ahead = written, False
        self._unsaved.clear()
        self._known = (text, state)
        self._due = state.next_due(self._terms)
        for each in begun:
            self._begin(each.model_copy(deep=True), asked)
        if not is_away:
            state.settle(seen)

    def _write(self, before: str | None, state: AlertRecords) -> str | None:
        """Write the state if it is unchanged and the turn is ours.

        Returns the text; None if not.
        """
        text = state.model_dump_json()
        if not self._store.takes_turn(_TURN, self._who, _TURNS * self._every):
            return None
        step = Step(None, Expect(_TURN, self._who), Expect(_STATE, before), Set(_STATE, text))
        (result,) = self._store.backend.apply(step)
        return text if result.applied else None

    # -- notifications ----------------------------------------------------------------------------

    def _begin(self, notification: Notification, asked: float) -> None:
        """Send it in a separate thread, unless this process was stopped after the write."""

        def send() -> None:
            why = "the process was stopped"
            if suspending_clock() - asked < _FRESH:
                try:
                    self._channels[notification.channel].send(notification)
                    why = ""
                except NotSent as error:
                    why = str(error)
                except Exception as error:  # noqa: BLE001 (a library may raise anything; retried)
                    why = tracebacks.brief(error)
            self._ends.put((notification, why))
            self._wake()

        self._running += 1
        start_thread("qframe notification", send)

    def _take_ended(self, seconds: float = 0.0) -> None:
        """Handle finished notifications, waiting at most `seconds` for the first."""
        try:
            while True:
                notification, why = (
                    self._ends.get(timeout=seconds) if seconds else self._ends.get(False)
                )
                seconds = 0.0
                self._running -= 1
                self._unsaved.append((notification, why))
                if why:
                    of = (notification.channel, notification.alert.text, one_line(why, 200))
                    log.warning("an alert could not be sent (%s): %s: %s", *of)
        except queue.Empty:
            return

    def _apply(self, state: AlertRecords) -> None:
        for notification, why in self._unsaved:
            state.ended(notification, well=not why, now=time.time())

    def _note(self) -> None:
        """Record finished notifications, although another checker has the turn."""
        for _ in range(_TRIES if self._unsaved else 0):
            (text,) = self._store.get(_STATE)
            state = AlertRecords.read(text)
            self._apply(state)
            state.number += 1
            step = Step(None, Expect(_STATE, text), Set(_STATE, state.model_dump_json()))
            (result,) = self._store.backend.apply(step)
            if result.applied:
                self._unsaved.clear()
                return


def alerts_on(store: Store) -> list[Alert]:
    """Return the current alerts. Raises `BackendUnavailable`."""
    return AlertRecords.read(store.get(_STATE)[0]).on()
