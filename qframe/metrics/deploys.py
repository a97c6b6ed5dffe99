"""Deploys: marks of when a new version of the application began to run, kept for two weeks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from qframe.drivers.store import Store
from qframe.payload.text import one_line

KEY = "deploys"
KEEP = 14 * 86400.0
"""Seconds that a mark is kept; the newest stays, so that its version is not marked again."""
MOST = 200
LONGEST = 200
ROLLING = 3600.0
"""Seconds after a deploy in which workers of an earlier version may still start."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Deploy:
    at: float
    version: str
    text: str = ""


class Deploys:
    """The marks in one store. Raises `BackendUnavailable`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> list[Deploy]:
        """Return the marks, oldest first."""
        return _read(self._store.get(KEY)[0])

    def mark(self, version: str, text: str = "", at: float | None = None) -> Deploy:
        """Mark a deploy now."""
        made = Deploy(
            time.time() if at is None else at, one_line(version, LONGEST), one_line(text, LONGEST)
        )
        before = self._store.get(KEY)[0]
        for _ in range(_TRIES):
            known = sorted([*_read(before), made], key=lambda each: each.at)
            if self._replaced(before, known):
                return made
            before = self._store.get(KEY)[0]
        return made

    def seen(self, version: str) -> bool:
        """Mark the version of a starting worker if it is new. Returns whether it was.

        Of many concurrent workers one succeeds: the step expects the marks that were read. An
        earlier version within an hour of a deploy is not a new one: its workers are being replaced.
        """
        version = one_line(version, LONGEST)
        for _ in range(_TRIES if version else 0):
            (before,) = self._store.get(KEY)
            known, now = _read(before), time.time()
            newest = next((each for each in reversed(known) if each.version), None)
            if newest is not None:
                is_earlier = any(each.version == version for each in known)
                if newest.version == version or (is_earlier and now - newest.at < ROLLING):
                    return False
            if self._replaced(before, [*known, Deploy(now, version)]):
                return True
        return False

    def _replaced(self, before: str | None, known: Sequence[Deploy]) -> bool:
        oldest = time.time() - KEEP
        kept = [each for each in known if each.at > oldest or each is known[-1]][-MOST:]
        if not any(each.version for each in kept):  # kept for comparison, whatever its age
            kept = [*[each for each in known if each.version][-1:], *kept]
        text = json.dumps([asdict(each) for each in kept], separators=(",", ":"))
        return self._store.swap({KEY: (before, text)})


def put_together(several: Sequence[Sequence[Deploy]], since: float = 0.0) -> list[Deploy]:
    """Merge the marks of several stores: one for each deploy, oldest first."""
    found: list[Deploy] = []
    for each in sorted((one for marks in several for one in marks), key=lambda one: one.at):
        is_known = any(
            (one.version, one.text) == (each.version, each.text) and each.at - one.at < ROLLING
            for one in found
        )
        if each.at >= since and not is_known:
            found.append(each)
    return found


def _read(text: str | None) -> list[Deploy]:
    return [Deploy(**each) for each in json.loads(text or "[]")]
