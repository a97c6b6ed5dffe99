"""Queues: the queues a worker works, given by name, by pattern, and by what it skips."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from qframe.contracts.queue import LARGEST_BOUND
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.text import is_queue_name, is_queue_pattern, printable, queue_pattern

log = logging.getLogger("qframe")

KEPT = 60.0
"""Seconds a queue stays after its last listing, so that the next push to it wakes at once."""

_BOUND = re.compile(r"(.+):(-?[0-9]+(?:\.[0-9]+)?)")
_LONGEST = 10
"""Digits of a number that is worth reading."""


def parse(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns what is wanted and what is skipped: names and patterns.

    Raises `ConfigurationError` for a wrong name or pattern, and if no queue could ever be left.
    """
    wanted = [queue_pattern(text) for text in given if not _skips(text)]
    skipped = [queue_pattern(text[1:]) for text in given if _skips(text)]
    if not any(is_queue_pattern(text) or not _matched(text, skipped) for text in wanted):
        shown = printable(",".join(given), 60)
        raise ConfigurationError(
            f"{shown!r} leaves no queue to work: give a name, or a pattern such as '*'"
        )
    return wanted, skipped


def bounded(given: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Splits the bounds off entries like `mail:5`; returns the names, and the bounds by name.

    If a name is given twice, the least counts. Raises `ConfigurationError`.
    """
    names: list[str] = []
    bounds: dict[str, int] = {}
    for text in given:
        found = None if _skips(text) else _BOUND.fullmatch(text)
        if found is None:
            names.append(text)
            continue
        name, number = found.groups()
        most = int(number) if number.isdecimal() and len(number) < _LONGEST else 0
        check_bound(text, most)
        names.append(name)
        bounds[name] = min(most, bounds.get(name, most))
    return tuple(names), bounds


def shown(names: Iterable[str], bounds: Mapping[str, int]) -> list[str]:
    """Returns names as `bounded` takes them."""
    return [f"{name}:{bounds[name]}" if name in bounds else name for name in names]


def check_bound(entry: str, most: object) -> None:
    """Raises `ConfigurationError` for a wrong bound of a queue."""
    if type(most) is not int or not 1 <= most <= LARGEST_BOUND:
        raise ConfigurationError(
            f"{printable(entry, 60)!r}: after a queue's name and a colon comes how many of its "
            f"jobs run at once, from 1 to {LARGEST_BOUND}"
        )


class WorkedQueues:
    """The queues to work now.

    In the order given; the matches of a pattern come at its place, sorted by name; a queue comes
    once, at its first place. `existing` lists the backend's queues.
    """

    def __init__(self, given: Sequence[str], existing: Callable[[], Iterable[str]]) -> None:
        self._wanted, self._skipped = parse(given)
        self._existing = existing
        self._seen: dict[str, float] = {}
        self._silent = False
        self.patterns = tuple(filter(is_queue_pattern, self._wanted))
        """The given patterns; without any, the names never change."""
        self.names = self._among(())
        """The queues as last found: those given by name until `find` is called."""

    def find(self) -> tuple[str, ...]:
        """Lists the backend's queues and returns those to work.

        A backend that does not answer changes nothing as long as there is something to work; else
        raises `BackendUnavailable`.
        """
        try:
            existing = self._existing()
        except BackendUnavailable as error:
            if not self.names:
                raise
            if not self._silent:
                log.warning("the queues cannot be listed: %s", error)
            self._silent = True
            return self.names
        self._silent = False
        now = time.monotonic()
        self._seen.update((name, now) for name in existing if is_queue_name(name))
        self._seen = {name: at for name, at in self._seen.items() if now - at < KEPT}
        self.names = self._among(sorted(self._seen))
        return self.names

    def _among(self, existing: Sequence[str]) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for text in self._wanted:
            if is_queue_pattern(text):
                names.update(dict.fromkeys(name for name in existing if fnmatchcase(name, text)))
            else:
                names[text] = None
        return tuple(name for name in names if not _matched(name, self._skipped))


def _skips(given: object) -> bool:
    return isinstance(given, str) and given.startswith("!")


def _matched(name: str, entries: Iterable[str]) -> bool:
    return any(fnmatchcase(name, text) for text in entries)
