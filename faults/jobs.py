"""The jobs that run while things break; what each did is in the ledger."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from qframe import Queueable, dispatch
from qframe.middleware import WithoutOverlapping
from tests.support.ledger import Ledger

ledger = Ledger(Path(os.environ.get("LEDGER", os.devnull)))
uuids = Ledger(Path(os.environ.get("UUIDS", os.devnull)))


class Noted(Queueable):
    """Notes its start, does something, and notes its end as its last act."""

    number: int

    def handle(self) -> None:
        """Do it, between two lines."""
        ledger.note("S", self.own_number(), self.attempts, os.getpid())
        self.act()
        ledger.note("D", self.own_number(), self.attempts, os.getpid())

    def own_number(self) -> int:
        """Give the number that no other job has."""
        return self.number

    def act(self) -> None:
        """Do what this kind of job is there for."""


class Work(Noted):
    """Takes some time, as often as it must."""

    seconds: float = 0.0
    tries = 0
    timeout = 0

    def act(self) -> None:
        """Sleep, also through signals."""
        time.sleep(self.seconds)


LOCKED_FOR = 2.0
"""Seconds after which a lock is free whose holder was killed."""


class Alone(Work):
    """Takes some time, in which no other of its kind runs."""

    middleware = (WithoutOverlapping(lease=LOCKED_FOR),)


class OnlyOne(Work):
    """Takes some time, and has a lock of its own meanwhile."""

    unique = True

    def unique_id(self) -> int:
        """Give its number."""
        return self.number


class Named(Work):
    """Notes its uuid, too: a dispatch may be told of it."""

    key: str = ""

    def act(self) -> None:
        """Note it, and take some time."""
        uuids.note("R", self.job.uuid, self.number)
        super().act()


class Once(Named):
    """Is the only one of its key."""

    unique = True

    def unique_id(self) -> str:
        """Give its key."""
        return self.key


class OnceUntilStarted(Once):
    """Is the only one of its key that waits."""

    unique_until = "started"


class OnceTracked(Once):
    """Is the only one of its key, and has a status."""

    track = 3600


class Tracked(Named):
    """Has a status."""

    track = 3600


class Last(Named):
    """Runs in the place of those of its key that were dispatched before."""

    debounce = 2

    def unique_id(self) -> str:
        """Give its key."""
        return self.key


STRICT = "strict"
"""A queue in which the jobs of a group run one after the other."""


class InGroup(Named):
    """Takes its turn in the group of its key, and has a status."""

    queue = STRICT
    track = 3600
    group = "{key}"


EPOCH = 1_800_000_000.0
"""The time at which schedules begin, by a clock of their own."""
EVERY = 60
"""Seconds of that clock between two runs of a schedule."""


class Tick(Work):
    """Is a run of a schedule, whose planned time says which: numbers are so many apart."""

    apart: int
    track = 3600
    group = "{number}"

    def own_number(self) -> int:
        """Give that of this run."""
        assert self.scheduled_for is not None  # noqa: S101 (a scheduler dispatches it)
        return number_of(self.number, self.apart, self.scheduled_for.timestamp())


def number_of(first: int, apart: int, at: float) -> int:
    """Give the number of a schedule's run at a planned time."""
    return first + apart * round((at - EPOCH) / EVERY - 1)


class TriedTwice(Work):
    """Takes some time, and may be started twice."""

    tries = 2


class Carries(Noted):
    """Has a value of any kind."""

    value: Any


class Poison(Noted):
    """Kills whoever runs it."""

    tries = 3

    def act(self) -> None:
        """End the process at once."""
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Noted):
    """Raises in its first attempts."""

    failures: int = 10**6
    tries = 2

    def act(self) -> None:
        """Raise, or not."""
        if self.attempts <= self.failures:
            raise ValueError(f"attempt {self.attempts} of {self.number}")


class RaisesFreely(Raises):
    """Does so, and may be started as often as it must."""

    tries = 0


class StuckInC(Noted):
    """Holds the interpreter lock for ever."""

    tries = 2
    timeout = 1

    def act(self) -> None:
        """Loop where no Python code runs and no signal handler either."""
        all(itertools.repeat(1))


class Swallows(Noted):
    """Takes no `Exception` for an end."""

    tries = 2
    timeout = 0.5

    def act(self) -> None:
        """Sleep for ever, swallowing what it can."""
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.05)


class Ends(Noted):
    """Ends its process, or tries to, in one of many ways."""

    how: str
    tries = 2

    def act(self) -> None:
        """Do it."""
        _ENDS[self.how]()


def _raise(error: BaseException) -> None:
    raise error


def _recurse() -> None:
    _recurse()


_ENDS: dict[str, Any] = {
    "os._exit(0)": lambda: os._exit(0),
    "sys.exit(0)": lambda: sys.exit(0),
    "os.abort()": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "SystemExit": lambda: _raise(SystemExit()),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "RecursionError": _recurse,
    "MemoryError": lambda: bytearray(2**62),
}
WAYS_TO_END = tuple(_ENDS)
CLOSES = "closed files"


def _close() -> None:
    os.closerange(0, 21)
    raise ValueError


_ENDS[CLOSES] = _close


class Leaks(Noted):
    """Leaves something behind in its process."""

    what: str
    tries = 0

    def act(self) -> None:
        """Leave it."""
        _LEAKS[self.what]()


_kept: list[Any] = []

_LEAKS: dict[str, Any] = {
    "10 MB": lambda: _kept.append(os.urandom(10 * 1024 * 1024)),
    "50 descriptors": lambda: _kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(50)),
    "a thread": lambda: threading.Thread(target=time.sleep, args=(3600,)).start(),
}
WAYS_TO_LEAK = tuple(_LEAKS)


class Makes(Noted):
    """Dispatches a few jobs, and notes each before and after."""

    count: int
    tries = 0

    def act(self) -> None:
        """Give them numbers that no others have."""
        for place in range(self.count):
            number = (self.number * 100 + self.attempts) * 100 + place + 10**6
            ledger.note("P", number)
            dispatch(Work(number=number)).on_queue("made").send()
            ledger.note("E", number)


class Dispatches(Queueable):
    """Dispatches in a tight loop until its time is up."""

    series: int
    tries = 0

    def handle(self) -> None:
        """Note each job before and after it was sent."""
        for count in itertools.count():
            number = int(f"{self.series}{self.attempts:03}{count:05}")
            ledger.note("P", number)
            dispatch(Work(number=number)).on_queue("made").send()
            ledger.note("E", number)
