"""Checker: looks whether a rule is broken, when it is its turn, and has told what is new.

All who look have one text between them, the state. Whoever writes what a look has changed expects
the text that it had read; so of two, also of one that was stopped and goes on, one tells.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from qframe.alerts.channel import Channel, NotTold
from qframe.alerts.life import Alert, AlertRecords, AlertTerms, Evaluation, Telling, texts
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
"""How many looks another waits for one that is gone."""
_FRESH = 5.0
"""Seconds after its writing within which a telling begins, by a clock that counts suspension."""
_TRIES = 5
_PARTING = 2.0

Look = Callable[[Sequence[Rule]], Evaluation]


class Checker:
    """`check` is called again and again, by one thread; `seconds` says how long to wait between."""

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
        self._ends: queue.SimpleQueue[tuple[Telling, str]] = queue.SimpleQueue()
        self._unheard: list[tuple[Telling, str]] = []
        self._running = 0
        self._known: tuple[str | None, AlertRecords] | None = None
        """What was last read or written, and the state: ours as long as the store is away."""
        self._ahead = False
        """Whether the state has what could not be written."""
        self._looked = 0.0
        self._due: float | None = None

    def check(self) -> None:
        """Look if it is time to and this one's turn, and begin what is to be told."""
        self._hear()
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
        """Give the seconds until there is something to do, unless a telling ends before."""
        until = self._looked + self._every
        if self._due is not None:
            until = min(until, self._due)
        return min(self._every, max(0.05, until - time.time()))

    def leave(self) -> None:
        """Wait a moment for what is being told, and let the next one have the turn at once."""
        until = time.monotonic() + _PARTING
        while self._running and (left := until - time.monotonic()) > 0:
            self._hear(left)
        try:
            self._note()
            self._store.delete(_TURN, self._who)
        except BackendUnavailable as error:
            log.debug("alerts: %s", error)

    # -- a look -----------------------------------------------------------------------------------

    def _go_on(self, text: str | None, state: AlertRecords, *, is_away: bool = False) -> None:
        """Look, write what has changed, and only then tell."""
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
        self._unheard.clear()
        self._known = (text, state)
        self._due = state.next_due(self._terms)
        for each in begun:
            self._begin(each.model_copy(deep=True), asked)
        if not is_away:
            state.settle(seen)

    def _write(self, before: str | None, state: AlertRecords) -> str | None:
        """Write the state where it still is as it was, and the turn ours; gives the text."""
        text = state.model_dump_json()
        if not self._store.takes_turn(_TURN, self._who, _TURNS * self._every):
            return None
        step = Step(None, Expect(_TURN, self._who), Expect(_STATE, before), Set(_STATE, text))
        (result,) = self._store.backend.apply(step)
        return text if result.applied else None

    # -- telling ----------------------------------------------------------------------------------

    def _begin(self, telling: Telling, asked: float) -> None:
        """Tell it in a thread of its own, unless this process was stopped since it was written."""

        def tell() -> None:
            why = "the process was stopped"
            if suspending_clock() - asked < _FRESH:
                try:
                    self._channels[telling.channel].tell(telling)
                    why = ""
                except NotTold as error:
                    why = str(error)
                except Exception as error:  # noqa: BLE001 (whatever a library raises, it is tried again)
                    why = tracebacks.brief(error)
            self._ends.put((telling, why))
            self._wake()

        self._running += 1
        start_thread("qframe telling", tell)

    def _hear(self, seconds: float = 0.0) -> None:
        """Take what has ended, waiting so long for the first."""
        try:
            while True:
                telling, why = self._ends.get(timeout=seconds) if seconds else self._ends.get(False)
                seconds = 0.0
                self._running -= 1
                self._unheard.append((telling, why))
                if why:
                    told = (telling.channel, telling.alert.text, one_line(why, 200))
                    log.warning("an alert could not be told (%s): %s: %s", *told)
        except queue.Empty:
            return

    def _apply(self, state: AlertRecords) -> None:
        for telling, why in self._unheard:
            state.ended(telling, well=not why, now=time.time())

    def _note(self) -> None:
        """Note how tellings ended although it is another's turn."""
        for _ in range(_TRIES if self._unheard else 0):
            (text,) = self._store.get(_STATE)
            state = AlertRecords.read(text)
            self._apply(state)
            state.number += 1
            step = Step(None, Expect(_STATE, text), Set(_STATE, state.model_dump_json()))
            (result,) = self._store.backend.apply(step)
            if result.applied:
                self._unheard.clear()
                return


def alerts_on(store: Store) -> list[Alert]:
    """Give the alerts that are on. Raises `BackendUnavailable`."""
    return AlertRecords.read(store.get(_STATE)[0]).on()
