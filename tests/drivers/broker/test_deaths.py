"""A worker that dies at any call of its broker or facts loses no message, and ends none twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from qframe.contracts.backend import Timing
from qframe.contracts.step import (
    Bury,
    Delete,
    OfReservation,
    Push,
    Release,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers.memory.backend import MemoryBackend
from tests.support.bare_broker import BareBroker, BrokerServer, VisibleBroker

QUEUE = "q"
ENDS: tuple[OfReservation, ...] = (
    Delete(),
    Release(),
    Release(5.0),
    Release(50.0, counted=False),
    Bury(b"n"),
    Renew(60.0),
)
MESSAGES = [b"%d" % n for n in range(4)]


class WorkerKilled(BaseException):
    """The worker's process ended here."""


class CountedFacts(MemoryBackend):
    """Calls a function before and after each change."""

    def __init__(self, world: World) -> None:
        super().__init__(timing=world.timing)
        self._world = world

    def apply(self, *steps: Step) -> list[Result]:
        self._world.called()
        results = super().apply(*steps)
        self._world.called()
        return results


class World:
    """A broker, its facts, and the call at which the worker dies."""

    def __init__(self, kind: type[BareBroker], dies_at: int) -> None:
        self.timing = Timing(hold=30.0)
        self.kind = kind
        self.calls = 0
        self.dies_at = dies_at
        self.server = BrokerServer(self.timing, self.called)
        self.facts = CountedFacts(self)
        self.done: Counter[bytes] = Counter()
        self.pushed: set[bytes] = set()
        self.in_doubt: set[bytes] = set()
        """Messages whose push or deletion was not answered."""

    def called(self) -> None:
        self.calls += 1
        if self.calls == self.dies_at:
            raise WorkerKilled

    def worker(self) -> BareBroker:
        return self.kind("here", self.server, lambda: self.facts, self.timing)


def _live(world: World, seed: int) -> None:
    """Do random things with the messages; each is pushed, and none deleted without a note."""
    author, backend = random.Random(seed), world.worker()
    held: list[Reservation] = []
    for raw in MESSAGES:
        world.in_doubt.add(raw)
        backend.apply(Step(None, Push(QUEUE, raw, author.choice([0.0, 5.0, 60.0]))))
        world.in_doubt.discard(raw)
        world.pushed.add(raw)
    for _ in range(12):
        world.timing.skew += author.choice([0.0, 1.0, 25.0, 70.0])
        held += backend.reserve([QUEUE], 1)[0]
        if author.random() < 0.1:
            backend.kick(QUEUE)
        if not held:
            continue
        job = held.pop(author.randrange(len(held)))
        if author.random() < 0.8 and not backend.apply(Step(job, Start(60.0)))[0].applied:
            continue
        _end(world, backend, job, author)


def _end(world: World, backend: BareBroker, job: Reservation, author: random.Random) -> None:
    end: OfReservation = ENDS[author.randrange(len(ENDS))]
    world.in_doubt |= {job.raw_body} if isinstance(end, Delete) else set()
    (result,) = backend.apply(Step(job, end))
    if isinstance(end, Delete):
        world.done[job.raw_body] += result.applied
        world.in_doubt.discard(job.raw_body)


def _drain(world: World) -> Iterator[bytes]:
    """Start and delete all that comes, by two workers that both hold what they find."""
    workers = [world.worker(), world.worker()]
    for _ in range(12):
        world.timing.skew += 1000.0
        workers[0].kick(QUEUE)
        held = [(each, job) for each in workers for job in each.reserve([QUEUE], 50)[0]]
        random.Random(len(held)).shuffle(held)
        for backend, job in held:
            is_started = backend.apply(Step(job, Start(60.0)))[0].applied
            if is_started and backend.apply(Step(job, Delete()))[0].applied:
                yield job.raw_body


def _check(kind: type[BareBroker], seed: int, dies_at: int) -> bool:
    """Returns whether the worker died."""
    world = World(kind, dies_at)
    with suppress(WorkerKilled):
        _live(world, seed)
    is_dead, world.dies_at = world.calls >= dies_at, 0
    world.done.update(_drain(world))
    where = f"{kind.__name__}, seed {seed}, dies at {dies_at}"
    for raw in MESSAGES:
        if raw in world.in_doubt:
            assert world.done[raw] <= 1, where
        elif raw in world.pushed:
            assert world.done[raw] == 1, (where, raw, world.done)
    assert not world.server.messages, where
    assert not world.facts.scan("kept:here:due:"), where
    return is_dead


@pytest.mark.parametrize("kind", [BareBroker, VisibleBroker])
def test_each_message_ends_once_wherever_its_worker_dies(kind: type[BareBroker]) -> None:
    for seed in range(12):
        dies_at = 1
        while _check(kind, seed, dies_at):
            dies_at += 1
        assert dies_at > 20
