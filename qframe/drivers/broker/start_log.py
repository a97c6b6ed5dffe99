"""StartLog: which messages were started when they were delivered first, as facts.

For brokers that count deliveries which nobody got: RabbitMQ counts one when a consumer is cancelled
while a message is on its way to it. What is not on record here was not started.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence

from qframe import forks
from qframe.contracts.backend import Backend
from qframe.contracts.step import Set, Step, Unset
from qframe.drivers.broker.message import new_id
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

_KEPT = 30 * 86400.0
"""Seconds that the starts of a worker that died are kept."""
_PAGE = 1000


class StartedHere:
    """What one connection to the broker has started, and has not ended for certain.

    What was started together is one fact, which is removed with a later one.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._name = new_id()
        self._number = 0
        self._facts: dict[str, str] = {}
        """The fact that has a message, by its id."""
        self._left: dict[str, int] = {}
        """How many messages of a fact have not ended."""
        self._over: list[str] = []

    def begin(self, ids: Iterable[str]) -> str:
        """Return the name of the fact that is to have them."""
        with self._lock:
            self._number += 1
            name = f"{self._name}:{self._number}"
            here = dict.fromkeys(ids, name)
            self._facts.update(here)
            self._left[name] = len(here)
            return name

    def end(self, ids: Iterable[str]) -> None:
        """Note that messages are gone from the broker."""
        with self._lock:
            for each in ids:
                name = self._facts.pop(each, "")
                if name:
                    self._left[name] -= 1
                    if not self._left[name]:
                        del self._left[name]
                        self._over.append(name)

    def take_over(self) -> list[str]:
        """Return the facts to remove."""
        with self._lock:
            over, self._over = self._over, []
            return over


class StartLog:
    """The starts of all workers of a connection. `prefix` begins all keys."""

    def __init__(self, prefix: str, facts: Callable[[], Backend]) -> None:
        self._prefix = prefix
        self._facts = facts

    def note(self, here: StartedHere, ids: Sequence[str]) -> None:
        """Note starts. If the facts do not answer, a log record says so."""
        noted = Set(self._key(here.begin(ids)), json.dumps([*ids]), _KEPT)
        self._apply(Step(None, noted, *self._removing(here)))

    def leave(self, here: StartedHere) -> None:
        """Remove what has ended."""
        if removing := self._removing(here):
            self._apply(Step(None, *removing))

    def _removing(self, here: StartedHere) -> list[Unset]:
        return [Unset(self._key(each)) for each in here.take_over()]

    def has(self, id: str) -> bool:  # noqa: A002 (as the contract calls it)
        """Whether a message was started. Raises `BackendUnavailable`."""
        facts, after, quoted = self._facts(), "", json.dumps(id)
        while page := facts.scan(self._key(""), _PAGE, after):
            if any(quoted in text for _, text in page):
                return True
            after = page[-1][0]
        return False

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _apply(self, step: Step) -> None:
        try:
            self._facts().apply(step)
        except BackendUnavailable as error:
            text = "facts cannot be reached: jobs whose worker dies now are started once more"
            log.warning("%s: %s: %s", self._prefix, text, error)
