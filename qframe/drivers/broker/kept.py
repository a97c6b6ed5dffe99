"""KeptMessages: messages that wait as facts, because their broker cannot keep them waiting.

Delayed ones are sorted by when they are due, and published by whichever worker looks first. It
claims them, publishes, and removes them. If it dies in between, another one publishes them again
after `CLAIMED` seconds, under the same id; the log of attempts lets only one of both start.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qframe.contracts.backend import Backend, Timing
from qframe.contracts.step import Add, Expect, Operation, Set, Step, Unset
from qframe.drivers.broker.message import BrokerMessage

log = logging.getLogger("qframe")

CLAIMED = 10.0
"""Seconds for which whoever claimed a message may publish it alone."""
_TOGETHER = 50
_UNITS = 1e6
"""Moments are in keys as whole numbers of so many a second, of `_DIGITS` digits."""
_DIGITS = 18

Publish = Callable[[Sequence[BrokerMessage]], None]


class KeptMessage(NamedTuple):
    """A kept message, and the fact that has it."""

    key: str
    text: str
    message: BrokerMessage
    claimed: float
    """When it was claimed (epoch seconds); 0: never."""


class KeptMessages:
    """The messages of one connection that wait as facts."""

    def __init__(
        self, connection: str, facts: Callable[[], Backend], timing: Timing, every: float
    ) -> None:
        name = connection[:50]  # keys have at most 250 characters
        self._facts = facts
        self._timing = timing
        self._every = every
        """Seconds between two looks for messages that another process has kept."""
        self._due = f"kept:{name}:due:"
        self._buried = f"kept:{name}:buried:"
        self._count = f"kept:{name}:count:"
        self.look_at = 0.0
        """When to look for due ones next (epoch seconds)."""

    def now(self) -> float:
        return time.time() + self._timing.skew

    # -- keeping ----------------------------------------------------------------------------------

    def delaying(
        self, message: BrokerMessage, *, claim: bool = False
    ) -> tuple[KeptMessage, tuple[Operation, ...]]:
        """Return the operations that keep a message for its delay, and what they write.

        With `claim`, nobody else publishes it at first.
        """
        now = self.now()
        due = now + message.delay
        self.look_at = min(self.look_at, due)
        key = f"{self._due}{int(due * _UNITS):0{_DIGITS}d}:{message.id}"
        kept = _kept(key, replace(message, kept=True), now if claim else 0.0)
        return kept, (Set(key, kept.text), Add(self._counter("delayed", message.queue), 1))

    def burying(self, message: BrokerMessage) -> tuple[Operation, ...]:
        """Return the operations that put a message aside."""
        key = f"{self._buried}{message.queue}:{int(self.now() * _UNITS):0{_DIGITS}d}:{message.id}"
        text = _kept(key, message, 0.0).text
        return Set(key, text), Add(self._counter("buried", message.queue), 1)

    def delay(self, messages: Sequence[BrokerMessage]) -> None:
        """Keep messages until they are due."""
        steps = [Step(None, *self.delaying(each)[1]) for each in messages]
        self._facts().apply(*steps)

    # -- publishing -------------------------------------------------------------------------------

    def publish_due(self, publish: Publish) -> int:
        """Publish the messages that are due, unless others are at it. Returns how many."""
        count, after, facts = 0, "", self._facts()
        self.look_at = self.now() + self._every
        while True:
            page = facts.scan(self._due, _TOGETHER, after)
            now = self.now()
            due = [each for each in page if self._moment(each[0]) <= now]
            mine = self._claimed([kept for each in due if (kept := _read(*each))], now)
            publish([each.message for each in mine])
            self.published(mine)
            count += len(mine)
            if len(due) < len(page):
                self.look_at = min(self.look_at, self._moment(page[len(due)][0]))
                return count
            if not page:
                return count
            after = page[-1][0]

    def _claimed(self, found: Sequence[KeptMessage], now: float) -> list[KeptMessage]:
        """Claim those that nobody publishes; return them."""
        free = [each for each in found if not 0 <= now - each.claimed < CLAIMED]
        claims = [_kept(each.key, each.message, now) for each in free]
        results = self._facts().apply(
            *(
                Step(None, Expect(each.key, each.text), Set(each.key, claim.text))
                for each, claim in zip(free, claims, strict=True)
            )
        )
        return [each for each, result in zip(claims, results, strict=True) if result.applied]

    def published(self, kept: Sequence[KeptMessage]) -> None:
        """Remove messages that were published."""
        if kept:
            self._facts().apply(*(Step(None, *self._removing(each, "delayed")) for each in kept))

    # -- looking ----------------------------------------------------------------------------------

    def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue are delayed and buried here."""
        values = self._facts().read(*(self._counter(of, queue) for of in ("delayed", "buried")))
        delayed, buried = (int(each or 0) for each in values)
        return delayed, buried

    def queues(self) -> set[str]:
        """Return the queues of which messages are kept."""
        found = self._scan(self._count)
        return {key[len(self._count) :].split(":", 1)[1] for key, text in found if int(text)}

    def purge(self, queue: str) -> int:
        """Remove the delayed messages of a queue. Returns how many there were."""
        count = 0
        for key, text in self._scan(self._due):
            if (kept := _read(key, text)) and kept.message.queue == queue:
                (result,) = self._facts().apply(Step(None, *self._removing(kept, "delayed")))
                count += result.applied
        return count

    def kick(self, queue: str) -> int:
        """Make the buried messages of a queue due. Returns how many there were."""
        count = 0
        for key, text in self._scan(f"{self._buried}{queue}:"):
            if (kept := _read(key, text)) is None:
                continue
            _, keeping = self.delaying(replace(kept.message, delay=0.0))
            removing = self._removing(kept, "buried")
            (result,) = self._facts().apply(Step(None, *removing, *keeping))
            count += result.applied
        return count

    def _scan(self, prefix: str) -> Iterator[tuple[str, str]]:
        after = ""
        while page := self._facts().scan(prefix, 1000, after):
            yield from page
            after = page[-1][0]

    def _removing(self, kept: KeptMessage, of: str) -> tuple[Operation, ...]:
        """Return the operations that remove a message, refused if another has changed its fact."""
        counter = self._counter(of, kept.message.queue)
        return Expect(kept.key, kept.text), Unset(kept.key), Add(counter, -1)

    def _moment(self, key: str) -> float:
        """Return when the delayed message of a key is due (epoch seconds)."""
        return float(key[len(self._due) :][:_DIGITS]) / _UNITS

    def _counter(self, of: str, queue: str) -> str:
        return f"{self._count}{of}:{queue}"


def _kept(key: str, message: BrokerMessage, claimed: float) -> KeptMessage:
    text = json.dumps(
        {
            "id": message.id,
            "queue": message.queue,
            "raw": base64.b64encode(message.raw).decode(),
            "priority": message.priority,
            "attempts": message.attempts,
            "notes": base64.b64encode(message.notes).decode(),
            "claimed": claimed,
        }
    )
    return KeptMessage(key, text, message, claimed)


def _read(key: str, text: str) -> KeptMessage | None:
    """Decode; None, and a log record, for any other text. That stays where it is."""
    try:
        read = json.loads(text)
        message = BrokerMessage(
            read["id"],
            read["queue"],
            base64.b64decode(read["raw"]),
            0.0,
            read["priority"],
            read["attempts"],
            base64.b64decode(read["notes"]),
            kept=True,
        )
        return KeptMessage(key, text, message, float(read["claimed"]))
    except (ValueError, TypeError, KeyError) as error:
        log.error("the fact %s is not a message that qframe kept: %r", key, error)  # noqa: TRY400 (as the text is no secret)
        return None
