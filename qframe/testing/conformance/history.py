"""A history: what some workers do to a backend, one thing after another.

It is plain data, made from a seed: of a few kinds of events each, so that they meet. A reservation
is named by how many the worker made since; messages that are NEW are numbered as they are pushed.
Every length of time ends in 5 and every time that passes in 0, so that no moment depends on how
fast the test runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History, PastAttempt
from qframe.contracts.step import (
    Add,
    Arrive,
    Bury,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Leave,
    Open,
    Operation,
    Push,
    Raise,
    Record,
    Release,
    Renew,
    Set,
    Start,
    Unset,
)

T = TypeVar("T")

NEW = b"new"
QUEUES = ("a", "b", "c")
LATCHES = ("l1", "l2")
HOLD = 50.0
"""Seconds. It and all other times are long beside what a slow machine takes for a history."""

_KEYS = ("k1", "k2", "k\u00e9:3")
_COUNTERS = ("n1", "n2")
_RANKED = ("r1", "r2")
_UUIDS = ("u1", "u2", "u3")
_VALUES = ("x", "y", "", "10", "\u2028 \U0001f600")
_NOTES = (b"", b"n", b'{"notes": [1]}', b"\x00\xff\n")
_LENGTHS = (150.0, 350.0, 950.0)
_TTLS = (None, None, 150.0, 450.0)
_DELAYS = (0.0, 0.0, 0.0, 50.0, 250.0, 650.0)


@dataclass(frozen=True)
class StepDraft:
    """A step to be, about the last reservation of the worker but `of`, or about none."""

    of: int | None
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Exchange:
    """Apply steps, `twice`: each a second time behind it; `lost`: the answer is lost on its way."""

    worker: int
    drafts: tuple[StepDraft, ...]
    twice: bool = False
    lost: bool = False
    told: bool = False


@dataclass(frozen=True)
class Reserve:
    worker: int
    queues: tuple[str, ...]
    limit: int
    first: tuple[StepDraft, ...] = ()


@dataclass(frozen=True)
class Age:
    seconds: float


@dataclass(frozen=True)
class Purge:
    queue: str


@dataclass(frozen=True)
class Kick:
    queue: str


@dataclass(frozen=True)
class Take:
    """Search, and take one of those found."""

    worker: int
    queue: str
    text: bytes
    number: int


@dataclass(frozen=True)
class Adopt:
    worker: int
    of: int


@dataclass(frozen=True)
class Look:
    """Compare everything that can be read."""

    prefix: str = ""
    limit: int = 1000
    after: str = ""
    labels: int = 10
    failed_limit: int = 100
    failed_after: str | None = None
    failed_queue: str | None = None


Event = Exchange | Reserve | Age | Purge | Kick | Take | Adopt | Look


class Author:
    """Makes up a history; the same of the same seed."""

    def __init__(self, seed: int, size: int = 120) -> None:
        self.random = Random(seed)
        self.size = size
        few = self.random.choice([1, 2, 3])
        self.queues = QUEUES[:few]
        self.latches = LATCHES[: self.random.choice([1, 1, 2])]
        self.kinds = self.random.choices(
            [self._push, self._fact, self._counter, self._latch, self._failed], k=2
        )
        """What the steps of this history are about, beside the reservations."""
        self.ages = self.random.choice([0.5, 1.0, 3.0])
        """How often time passes."""

    def history(self) -> list[Event]:
        """Make up the events."""
        makers: dict[Callable[[], Event], float] = {
            self._apply: 8,
            self._reserve: 5,
            self._age: self.ages,
            self._take: 0.6,
            self._move: 0.6,
            self._look: 1.0,
        }
        chosen = self.random.choices(list(makers), list(makers.values()), k=self.size)
        events: list[Event] = []
        for make in chosen:
            events += self._talk() if self._one(*[False] * 9, True) else [make()]
        return events

    def _one(self, *values: T) -> T:
        return self.random.choice(values)

    def _worker(self) -> int:
        return self._one(0, 0, 0, 1)

    def _recent(self) -> int:
        return self._one(0, 0, 0, 0, 1, 1, 2, 3, 5, 8)

    # -- events -----------------------------------------------------------------------------------

    def _apply(self) -> Event:
        if self._one(*[False] * 9, True):
            draft = StepDraft(self._recent(), (self._settling(),))
            return Exchange(self._worker(), (draft,), told=True)
        drafts = tuple(self._draft() for _ in range(self._one(1, 1, 1, 2, 3)))
        twice, lost = self._one(False, False, False, True), self._one(False, True)
        return Exchange(self._worker(), drafts, twice, lost)

    def _talk(self) -> list[Event]:
        """Make up what a worker tells between short jobs."""
        worker, start = self._worker(), Start(self._one(*_LENGTHS), self._one(*_NOTES))
        count = self._one(0, 1, 1, 2)
        begun, end = (
            tuple(make() for make in self.random.choices(self.kinds, k=count)) for _ in range(2)
        )
        return [
            Reserve(worker, tuple(self.queues), 2),
            Exchange(worker, (StepDraft(1, (start,)),), told=True),
            Exchange(
                worker, (StepDraft(1, (*end, Delete())), StepDraft(0, (*begun, start))), told=True
            ),
        ]

    def _draft(self) -> StepDraft:
        kind = self._one("push", "settle", "settle", "settle", "free", "free", "mixed")
        if kind == "push":
            return StepDraft(None, (self._push(),))
        if kind == "settle":
            return StepDraft(self._recent(), (self._settling(),))
        operations = [make() for make in self.random.choices(self.kinds, k=self._one(1, 1, 2, 4))]
        if kind == "free":
            return StepDraft(None, tuple(operations))
        operations.insert(self.random.randint(0, len(operations)), self._settling())
        return StepDraft(self._recent(), tuple(operations))

    def _reserve(self) -> Event:
        queues = self.random.sample(self.queues, self.random.randint(1, len(self.queues)))
        first = tuple(self._draft() for _ in range(self._one(0, 0, 0, 1, 2)))
        return Reserve(self._worker(), tuple(queues), self._one(1, 1, 2, 4), first)

    def _age(self) -> Event:
        return Age(self._one(100.0, 100.0, 200.0, 400.0, 1000.0))

    def _take(self) -> Event:
        if self._one(False, True):
            return Adopt(self._worker(), self._recent())
        text = self._one(b"", b"m", b"1", b"same")
        return Take(self._worker(), self._queue(), text, self.random.randint(0, 9))

    def _move(self) -> Event:
        queue = self._queue()
        return Purge(queue) if self._one(False, False, True) else Kick(queue)

    def _look(self) -> Event:
        if self._one(False, True):
            return Look()
        return Look(
            self._one("", "k", "r1", "zz"), self._one(1, 2, 1000), self._one("", "k1", "n2"),
            self._one(0, 1, 10), self._one(1, 100), self._one(None, *_UUIDS),
            self._one(None, *QUEUES),
        )  # fmt: skip

    # -- operations -------------------------------------------------------------------------------

    def _queue(self) -> str:
        return self._one(*self.queues)

    def _settling(self) -> Operation:
        notes = self._one(None, None, *_NOTES)
        start = Start(self._one(*_LENGTHS), self._one(*_NOTES))
        front, counted = self._one(True, False), self._one(True, False)
        choices: tuple[Operation, ...] = (
            start,
            start,
            Renew(self._one(*_LENGTHS)),
            Delete(),
            Release(self._one(*_DELAYS), front, counted, notes),
            Release(0.0, front, counted, notes),
            Bury(notes),
        )
        return self._one(*choices)

    def _push(self) -> Operation:
        raw = self._one(NEW, NEW, NEW, NEW, b"same", b"", b"\x00\xff")
        return Push(self._queue(), raw, self._one(*_DELAYS))

    def _fact(self) -> Operation:
        key, ranked = self._one(*_KEYS[: self._one(1, 3)]), self._one(*_RANKED[: self._one(1, 2)])
        value, ttl = self._one(*_VALUES), self._one(*_TTLS)
        maybe = self._one(None, *_VALUES[:2])
        choices: tuple[Operation, ...] = (
            Set(key, value, ttl),
            Set(key, value, ttl),
            Unset(key, maybe),
            Unset(ranked, self._one(None, *_VALUES[:2])),
            Expect(key, maybe),
            Expect(ranked, maybe),
            Raise(ranked, self._one(0, 1, 1, 2), value, self._one(*_LENGTHS)),
            Raise(ranked, self._one(0, 1, 1, 2, 2**53 - 1), value, self._one(*_LENGTHS)),
        )
        return self._one(*choices)

    def _counter(self) -> Operation:
        key = self._one(*_COUNTERS[: self._one(1, 2)])
        add = Add(key, self._one(1, 1, 2, -3, 10**12), self._one(*_TTLS))
        expected = self._one(None, "1", "2")
        choices: tuple[Operation, ...] = (
            add,
            add,
            add,
            Expect(key, expected),
            Unset(key, expected),
        )
        return self._one(*choices)

    def _latch(self) -> Operation:
        latch, push = self._one(*self.latches), self._one(True, True, False)
        member, label = self._one(0, 1, 1, 2, 3, -1), self._one("", "label", "\u00e9")
        then = Push(self._queue(), b"then %d" % self._one(1, 2), self._one(*_DELAYS))
        choices: tuple[Operation, ...] = (
            Open(latch, then, self._one(0, 0, 1, 2), self._one(450.0, 10050.0, 10050.0)),
            Extend(latch, self._one(0, 1, 2, 3)),
            Extend(latch, self._one(3, 4)),
            Arrive(latch, member, False, label, push),
            Arrive(latch, member, False, label, push),
            Arrive(latch, member, True, label, push),
            Arrive(latch, member, True, label, push),
            Leave(latch, member),
            Close(latch, push),
        )
        return self._one(*choices)

    def _failed(self) -> Operation:
        uuid, attempts = self._one(*_UUIDS), self._one(1, 2)
        history = History((PastAttempt(1, "host", 7, 12.5, "error", "\u00e9"),), 1, 0, attempts)
        payload = b"\x00\xffnot text" if attempts == 2 else b'{"uuid": "%s"}' % uuid.encode()
        job = FailedJob(
            uuid,
            "here",
            self._queue(),
            payload,
            "Trace\nE: \u00e9",
            "app.Job",
            attempts,
            history,
            0,
        )
        choices: tuple[Operation, ...] = (Record(job), Record(job), Forget(uuid))
        return self._one(*choices)


# -- shrinking ------------------------------------------------------------------------------------


def shrunk(history: Sequence[Event], fails: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """Leave out what a failure does not need."""
    smallest = list(history)
    size = len(smallest)
    while size:
        start = 0
        while start < len(smallest):
            shorter = smallest[:start] + smallest[start + size :]
            if fails(shorter):
                smallest = shorter
            else:
                start += size
        size //= 2
    for place, event in enumerate(smallest):
        for simpler in _simpler(event):
            if fails([*smallest[:place], simpler, *smallest[place + 1 :]]):
                smallest[place] = simpler
    return smallest


def _simpler(event: Event) -> Iterator[Event]:
    """Give the event without one part or another."""
    if isinstance(event, Reserve):
        yield replace(event, first=())
        yield replace(event, limit=1)
    if not isinstance(event, Exchange):
        return
    yield replace(event, twice=False, lost=False)
    for draft in event.drafts:
        yield replace(event, drafts=(draft,))
        for operation in draft.operations:
            yield replace(event, drafts=(replace(draft, operations=(operation,)),))
