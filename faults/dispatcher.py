"""`python -m faults.dispatcher ...`: dispatches all kinds of jobs, each broken off at one call.

A dispatch is refused, or not answered, or its process is killed, at the n-th time it says something
to the backend of its messages or of its facts. Each process that is killed was forked for that; the
next goes on behind its last dispatch. What each dispatch came to is in a file, a line at a time.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

from faults import jobs
from qframe import Flow, Queueable, QueueManager, batch, chain, config, dispatch, manager
from qframe.connection import Connection
from qframe.contracts.backend import Backend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.schedules.definition import Schedule
from qframe.schedules.options import ScheduleOptions
from qframe.schedules.releases import Releases
from qframe.schedules.scheduler import Scheduler
from qframe.schedules.state import ScheduleKeys
from tests.support.breaking import Fault, Faulty
from tests.support.ledger import Ledger

ROOM = 8
"""So many numbers each dispatch has."""
FAULTS = (Fault.REFUSED, Fault.UNHEARD, Fault.DOWN, Fault.KILLED, Fault.KILLED_UNHEARD)
_IN_A_ROW = 3
"""One that is broken off, and so many less one behind it that are not, mostly of the same key."""
_KEYS = 400
_SELDOM = 7
_DELAY = 0.5
_PAUSE = 0.1


class Kind(NamedTuple):
    """A kind of dispatch: how many jobs it has, and how many calls at most."""

    name: str
    jobs: int
    calls: int


KINDS = (
    Kind("unique", 1, 4),
    Kind("unique until started", 1, 4),
    Kind("unique and tracked", 1, 4),
    Kind("debounced", 1, 3),
    Kind("tracked", 1, 3),
    Kind("chain", 3, 3),
    Kind("batch", 4, 12),
    Kind("flow", 4, 8),
    Kind("group", 1, 5),
    Kind("schedule", 1, 8),
)
_SCHEDULE = len(KINDS) - 1
_CLASSES: dict[str, type[jobs.Named]] = {
    "unique": jobs.Once,
    "unique until started": jobs.OnceUntilStarted,
    "unique and tracked": jobs.OnceTracked,
    "debounced": jobs.Last,
    "tracked": jobs.Tracked,
    "group": jobs.InGroup,
}


def scheduler(
    connection: Connection, firsts: Sequence[int], clock: Callable[[], float]
) -> Scheduler:
    """Give one that makes the runs of the dispatchers with these first numbers."""
    apart = ROOM * len(KINDS)
    made = [
        Schedule(
            jobs.Tick(number=first + ROOM * _SCHEDULE, apart=apart),
            ScheduleOptions(), f"dispatcher {first}", "faults.dispatcher",
        ).every_seconds(jobs.EVERY).missed("all", timedelta(days=365)).name(str(first))
        for first in firsts
    ]  # fmt: skip
    keys = ScheduleKeys(connection.name)
    releases = Releases(connection.store, keys, {"faults.dispatcher": "1"})
    finished = [each.finished("UTC") for each in made]
    return Scheduler(connection, finished, releases, keys, rows=lambda _: [], clock=clock)


def dispatched(kind: str, number: int, key: str, delay: float = 0.0) -> tuple[str, int, str]:
    """Dispatch a single job; gives what became of it, and the uuid of the job that is there."""
    pending = dispatch(_CLASSES[kind](number=number, key=key)).delay(delay)
    uuid = pending.send()
    return "duplicate" if pending.is_duplicate else "accepted", number, uuid


class Deadly(Faulty):
    """One that really ends the process."""

    def die(self) -> NoReturn:
        """Kill it with signal 9."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError  # it has ended


class Dispatcher:
    """Makes the dispatches from one number to another."""

    def __init__(self, first: int, ahead: int, said: Path) -> None:
        self._first = first
        self._ahead = ahead
        self._said = Ledger(said)
        self._backend = _queues().connection().backend
        self._now = jobs.EPOCH
        self._scheduler = scheduler(_queues().connection(), [first], lambda: self._now)

    def make(self, place: int) -> None:
        """Make one dispatch, and break it off."""
        turn, kind = place // len(KINDS), KINDS[place % len(KINDS)]
        row, behind = divmod(turn + self._ahead * _IN_A_ROW, _IN_A_ROW)
        over = FAULTS[row % len(FAULTS)]
        fault = None if behind else over
        call = row // len(FAULTS) % kind.calls
        number = self._first + place * ROOM
        numbers = range(number, number + kind.jobs)
        # What comes behind a dispatcher that was killed may have to wait for seconds: few do.
        apart = behind and over.is_deadly and row // len(FAULTS) % _SELDOM
        key = f"{self._first}:{row % _KEYS}{'b' if apart else ''}"
        for each in numbers:
            jobs.ledger.note("P", each)
        if kind.name == "schedule":  # whatever becomes of this, somebody makes the run
            jobs.ledger.note("E", number)
            self._now = jobs.EPOCH + jobs.EVERY * (turn + 1)
        self._said.note("begun", number, kind.name.replace(" ", "-"), key)
        try:
            with _breaking(self._backend, call, fault):
                outcome = self._dispatched(kind.name, key, numbers, _DELAY if behind == 1 else 0)
        except BackendUnavailable:
            self._said.note("raised", number)
            if fault is None:  # the server is away
                time.sleep(_PAUSE)
            return
        self._said.note(*outcome)
        if outcome[0] == "accepted" and kind.name not in {"debounced", "schedule"}:
            for each in numbers:
                jobs.ledger.note("E", each)

    def _dispatched(
        self, kind: str, key: str, numbers: Sequence[int], delay: float
    ) -> tuple[str, int, str]:
        number = numbers[0]
        if kind == "chain":
            return "accepted", number, str(chain([*map(_work, numbers)]).dispatch())
        if kind == "batch":
            *members, last = map(_work, numbers)
            return "accepted", number, batch(members).finally_(last).dispatch().id
        if kind == "flow":
            made = Flow()
            first, *middle, last = map(_work, numbers)
            before = made.add(first)
            made.add(last, after=[made.add(each, after=[before]) for each in middle])
            return "accepted", number, made.dispatch().id
        if kind == "schedule":
            while self._scheduler.turn() == 0:
                pass
            return "accepted", number, "-"
        return dispatched(kind, number, key, delay)


def _work(number: int) -> Queueable:
    return jobs.Work(number=number)


@contextmanager
def _breaking(backend: Backend, call: int, fault: Fault | None) -> Iterator[None]:
    """Bring a fault about at a call of the parts that a backend has."""
    if fault is None:
        yield
        return
    parts = [backend]
    if isinstance(backend, OrderedBackend):
        parts = [backend.messages, backend.facts, backend.failed]
    with Deadly({id(each): each for each in parts}.values(), call, fault) as faulty:
        yield
    if faulty.raised is not None:
        raise faulty.raised


def _queues() -> QueueManager:
    found = manager.current()
    assert found is not None  # noqa: S101 (`main` has made it)
    return found


def main() -> None:
    """Fork processes that dispatch until all is dispatched."""
    spec = json.loads(sys.argv[1])
    manager.use(QueueManager(config.load(Path("qframe.toml"))))
    with suppress(BackendUnavailable):
        _queues().connection().backend.check()  # what it imports is there then
    _queues().close()
    shared = mmap.mmap(-1, 8)
    while (place := struct.unpack("q", shared[:8])[0]) < spec["count"]:
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            if status not in {0, signal.SIGKILL}:
                sys.exit(f"a dispatcher ended with {status}")
            continue
        dispatcher = Dispatcher(spec["first"], spec["ahead"], Path(spec["said"]))
        for each in range(place, spec["count"]):
            shared[:8] = struct.pack("q", each + 1)
            dispatcher.make(each)
        _queues().close()
        os._exit(0)


if __name__ == "__main__":
    main()
