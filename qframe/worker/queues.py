"""Queues: those a worker works, given by name, by pattern, and by what is skipped."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidQueueName
from qframe.payload.text import is_queue_name, printable, queue_name

log = logging.getLogger("qframe")

KEPT = 60.0
"""Seconds a queue stays after it was last listed, so that the next push to it wakes at once."""

_PATTERN = re.compile(r"(?:[A-Za-z0-9_.:*?-]|\[!?[A-Za-z0-9_.:-]+\])+")
_SET = re.compile(r"\[!?(.+?)\]")
_RANGE = re.compile(r"([A-Za-z0-9_.:])-([A-Za-z0-9_.:])")


def parse(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Give what is wanted and what is skipped: names and patterns.

    Raises `ConfigurationError` for what is neither a name nor a pattern, and where no queue could
    ever be left.
    """
    wanted = [_checked(text) for text in given if not _skips(text)]
    skipped = [_checked(text[1:]) for text in given if _skips(text)]
    if not any(_is_pattern(text) or not _matched(text, skipped) for text in wanted):
        shown = printable(",".join(given), 60)
        raise ConfigurationError(
            f"{shown!r} leaves no queue to work: give a name, or a pattern such as '*'"
        )
    return wanted, skipped


class Queues:
    """The queues to work now.

    In the order given; what a pattern matches comes at the pattern's place, sorted by name; a
    queue comes once, at its first place. `existing` lists the queues there are.
    """

    def __init__(self, given: Sequence[str], existing: Callable[[], Iterable[str]]) -> None:
        self._wanted, self._skipped = parse(given)
        self._existing = existing
        self._seen: dict[str, float] = {}
        self._silent = False
        self.patterns = tuple(filter(_is_pattern, self._wanted))
        """The patterns among what was given: with none, the names never change."""
        self.names = self._among(())
        """The queues as last found: those given by name, until `find` was called."""

    def find(self) -> tuple[str, ...]:
        """List the queues there are and give those to work.

        A backend that does not answer changes nothing, as far as there is something to work;
        else raises `BackendUnavailable`.
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
            if _is_pattern(text):
                names.update(dict.fromkeys(name for name in existing if fnmatchcase(name, text)))
            else:
                names[text] = None
        return tuple(name for name in names if not _matched(name, self._skipped))


def _is_pattern(text: str) -> bool:
    return not {*"*?[]"}.isdisjoint(text)


def _checked(given: object) -> str:
    if not isinstance(given, str) or not _is_pattern(given):
        return queue_name(given)
    if not _PATTERN.fullmatch(given) or _is_backward(given):
        shown = printable(repr(given), 60)
        raise InvalidQueueName(
            f"{shown} is not a pattern of queue names: use A-Z a-z 0-9 _ . : - and * ? [abc] [a-z]"
        )
    return given


def _is_backward(pattern: str) -> bool:
    """Tell a set like `[z-a]`, which matches nothing."""
    sets = _SET.findall(pattern)
    return any(first > last for each in sets for first, last in _RANGE.findall(each))


def _skips(given: object) -> bool:
    return isinstance(given, str) and given.startswith("!")


def _matched(name: str, entries: Iterable[str]) -> bool:
    return any(fnmatchcase(name, text) for text in entries)
