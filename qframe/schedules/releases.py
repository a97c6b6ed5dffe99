"""Releases: whose definition of a schedule counts while old and new code run side by side.

The schedules of each module have a fingerprint, the version. A new version is the newest code: it
takes over at once, and every run expects it, so processes with the old code dispatch nothing from
then on. A superseded version takes over again only after no process with the current one has lived
for a minute: that is a rollback, not a restart during a deploy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from qframe.contracts.step import Expect, Set, Step
from qframe.drivers.store import Store
from qframe.schedules.state import ScheduleKeys

ALIVE = 60.0
"""Seconds without a process after which a version is given up."""
_TELL_EVERY = ALIVE / 3
_PAST = 20
_TRIES = 5


class Releases:
    """The versions that this process has, and which of them are current."""

    def __init__(self, store: Store, keys: ScheduleKeys, versions: Mapping[str, str]) -> None:
        self._store = store
        self._keys = keys
        self._versions = dict(versions)
        self._alive_written_at: float | None = None
        self.current: dict[str, str] = {}
        """The facts that runs expect, for modules whose version is current."""

    @property
    def modules(self) -> list[str]:
        """The modules that have schedules, or had."""
        return list(self._versions)

    def keys(self) -> list[str]:
        """Return the keys of the facts that `look` needs."""
        return [self._keys.release(each) for each in self._versions]

    def look(self, values: list[str | None], now: float) -> None:
        """Read the facts; take over where that is due."""
        found = {}
        for (module, version), text in zip(self._versions.items(), values, strict=True):
            kept = self._settled(module, version, text)
            if kept is not None:
                found[module] = kept
        self.current = found
        if self._alive_written_at is None or not 0 <= now - self._alive_written_at < _TELL_EVERY:
            self._write_alive()
            self._alive_written_at = now

    def _write_alive(self) -> None:
        """Record that a process with these versions lives."""
        alive = [
            Step(None, Set(self._keys.alive(module, self._versions[module]), "1", ALIVE))
            for module in self.current
        ]
        if alive:
            self._store.backend.apply(*alive)

    def _settled(self, module: str, version: str, text: str | None) -> str | None:
        """Return the fact if this version is current or takes over; otherwise None."""
        for _ in range(_TRIES):
            current, past = _read(text)
            if current == version:
                return text
            if current and version in past and self._is_alive(module, current):
                return None
            before = [current, *past] if current else past
            wanted = _text(version, [each for each in before if each != version])
            key = self._keys.release(module)
            step = Step(None, Expect(key, text), Set(key, wanted))
            (result,) = self._store.backend.apply(step)
            if result.applied:
                return wanted
            text = result.holds
        return None

    def _is_alive(self, module: str, version: str) -> bool:
        return self._store.get(self._keys.alive(module, version))[0] is not None


def _read(text: str | None) -> tuple[str, list[str]]:
    try:
        current, *past = json.loads(text or "[]")
    except ValueError:
        return "", []
    return str(current), [str(each) for each in past]


def _text(version: str, past: list[str]) -> str:
    return json.dumps([version, *past[:_PAST]])
