"""Jobs of every kind, copied into the projects of the worker's tests as their module `jobs`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from typing import Any

from qframe import DontHandle, Queueable, dispatch, events, queueable
from qframe.dispatch.pending import PendingDispatch

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words: object) -> None:
    """Add a line to the ledger, in one write."""
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


class Note(Queueable):
    """Leaves one line."""

    word: str = "word"

    def handle(self) -> None:
        note("note", self.word, self.attempts, os.getpid(), time.time())


@queueable
def add(a: int, b: int) -> None:
    note("add", a + b)


class Sleep(Queueable):
    """Sleeps between two lines."""

    seconds: float
    word: str = "sleep"

    def handle(self) -> None:
        note("start", self.word, self.attempts, os.getpid(), time.time())
        try:
            deadline = time.monotonic() + self.seconds
            while (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, 1))  # a signal that comes as a sleep begins does not end it
        finally:
            note("finally", self.word)
        note("end", self.word, self.attempts, os.getpid(), time.time())


class Held(Queueable):
    """Runs until there is a file of its name: `Project.let_go` makes it."""

    word: str | int = "held"
    timeout = 0

    def handle(self) -> None:
        note("start", self.word, self.attempts, os.getpid(), time.time())
        try:
            while not os.path.exists(f"let-{self.word}"):  # noqa: PTH110 (often, in many jobs)
                time.sleep(0.02)
        finally:
            note("finally", self.word)
        note("end", self.word, self.attempts, os.getpid(), time.time())


class Steps(Queueable):
    """Tells how far it is, more often than is kept, and gives something."""

    steps: int = 10
    pause: float = 0.02
    then_wait: float = 0
    gives: Any = None
    fails: bool = False
    settles: str = ""

    track = True

    def handle(self) -> Any:
        note("start", "steps", self.attempts, os.getpid())
        for step in range(self.steps):
            self.progress((step + 1) / self.steps, f"step {step + 1}")
            time.sleep(self.pause)
        time.sleep(self.then_wait)
        if self.settles:
            getattr(self, self.settles)()
        if self.fails:
            raise ValueError("not today")
        note("end", "steps", self.attempts)
        special = {"a set": {1, 2}, "?": object(), "long": "x" * 70_000}
        return special.get(self.gives, self.gives) if isinstance(self.gives, str) else self.gives


class Stubborn(Queueable):
    """Takes no `Exception` for an end."""

    seconds: float = 5

    def handle(self) -> None:
        note("start", "stubborn", self.attempts)
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            try:
                time.sleep(0.05)
            except Exception:  # noqa: BLE001 (the point)
                note("swallowed")
        note("end", "stubborn")


class Deaf(Queueable):
    """Swallows everything, in a loop."""

    def handle(self) -> None:
        note("start", "deaf", self.attempts)
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)
                note("slept")
            note("swallowed")


class SwallowsOnce(Queueable):
    """Takes its own end for a reason to return, as if it had done its work."""

    def handle(self) -> None:
        note("start", "swallows", self.attempts)
        with contextlib.suppress(BaseException):
            time.sleep(60)

    def succeeded(self) -> None:
        note("succeeded")

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)


def hang_in_c() -> None:
    """Hold the interpreter lock for ever, in C code that no signal ends, and let others compute."""
    functions, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    functions.pthread_mutex_init(mutex, None)
    while True:
        functions.pthread_mutex_lock(mutex)  # the second time it waits for itself


class StuckInC(Queueable):
    """Holds the interpreter lock for ever, the first time or every time."""

    always: bool = True
    computes: bool = False

    def handle(self) -> None:
        note("start", "stuck", self.attempts, os.getpid())
        if self.computes:
            all(itertools.repeat(1))
        if self.always or self.attempts == 1:
            hang_in_c()
        note("end", "stuck", self.attempts)


class HangsInFailed(Queueable):
    """Never comes back from being told that it failed."""

    def handle(self) -> None:
        raise ValueError("no")

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)
        hang_in_c()


class Flaky(Queueable):
    """Raises in its first attempts."""

    failures: int = 10**6
    word: str = "flaky"

    def handle(self) -> None:
        note("start", self.word, self.attempts, time.time())
        if self.attempts <= self.failures:
            raise ValueError(f"not the {self.attempts}. time")
        note("end", self.word, self.attempts)

    def succeeded(self) -> None:
        note("succeeded", self.word)

    def failed(self, error: BaseException) -> None:
        note("failed", self.word, type(error).__name__)


class OwnBackoff(Queueable):
    """Says after each failure how long to wait."""

    tries = 4

    def backoff(self, attempt: int, error: BaseException) -> float:
        note("backoff", attempt, type(error).__name__)
        return {1: 0.2, 2: 0.6}.get(attempt, 0.0)

    def handle(self) -> None:
        note("start", "backoff", self.attempts, time.time())
        raise KeyError(self.attempts)


class BadBackoff(Queueable):
    """Has a backoff method that raises."""

    tries = 2

    def backoff(self) -> float:
        raise RuntimeError("no idea")

    def handle(self) -> None:
        note("start", "bad backoff", self.attempts, time.time())
        raise KeyError(self.attempts)


class FailsOnTimeout(Queueable):
    tries = 5
    timeout = 1.5
    fail_on_timeout = True

    def handle(self) -> None:
        note("start", "fot", self.attempts)
        time.sleep(60)

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)


class Kill(Queueable):
    """Kills its worker in its first attempts."""

    times: int = 10**6
    word: str = "kill"

    def handle(self) -> None:
        note("start", self.word, self.attempts, os.getpid())
        if self.attempts <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        note("end", self.word, self.attempts)


class Exit(Queueable):
    """Leaves without a word."""

    def handle(self) -> None:
        note("start", "exit", self.attempts)
        os._exit(0)


class Release(Queueable):
    """Releases itself in its first attempts, then perhaps raises."""

    times: int = 1
    delay_seconds: float = 0
    then_raise: bool = False
    raise_after: bool = False

    def handle(self) -> None:
        note("start", "release", self.attempts, time.time())
        if self.attempts <= self.times:
            self.release(self.delay_seconds)
            if self.raise_after:
                raise ValueError("after the release")
            return
        if self.then_raise:
            raise ValueError("after all releases")
        note("end", "release", self.attempts)


class FailByHand(Queueable):
    tries = 5
    how: str = "text"

    def handle(self) -> None:
        note("start", "by hand", self.attempts)
        self.fail({"text": "no use", "error": ValueError("no use"), "none": None}[self.how])  # type: ignore[arg-type]

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)

    def succeeded(self) -> None:
        note("succeeded")


class DeleteByHand(Queueable):
    then_raise: bool = False

    def handle(self) -> None:
        note("start", "delete", self.attempts)
        self.delete()
        if self.then_raise:
            raise ValueError("after the delete")


class Skip(Queueable):
    in_set_up: bool = False

    def set_up(self) -> None:
        if self.in_set_up:
            raise DontHandle("not today")

    def handle(self) -> None:
        raise DontHandle("not here")

    def tear_down(self) -> None:
        note("tear_down")

    def failed(self, error: BaseException) -> None:
        note("failed", error)

    def succeeded(self) -> None:
        note("succeeded")


class Hooks(Queueable):
    """Notes the order in which it is called."""

    raise_in: str = ""

    def _do(self, hook: str) -> None:
        note(hook)
        if self.raise_in == hook:
            raise ValueError(f"in {hook}")

    def set_up(self) -> None:
        self._do("set_up")

    def handle(self) -> None:
        self._do("handle")

    def tear_down(self) -> None:
        self._do("tear_down")

    def succeeded(self) -> None:
        self._do("succeeded")

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__)
        if self.raise_in == "handle":
            raise RuntimeError("in failed")


class Later(Queueable):
    """An `async def` with a `finally`."""

    seconds: float = 0
    exits: bool = False

    async def set_up(self) -> None:
        note("set_up")

    async def handle(self) -> None:
        note("start", "later", self.attempts)
        try:
            await asyncio.sleep(self.seconds)
            if self.exits:
                raise SystemExit(3)
        finally:
            note("finally", "later")
        note("end", "later")

    async def succeeded(self) -> None:
        note("succeeded")


class Raise(Queueable):
    """Raises what is no `Exception`, or what the interpreter raises in distress."""

    kind: str

    def handle(self) -> None:
        note("start", self.kind)
        if self.kind == "RecursionError":
            self.handle_again()
        if self.kind == "MemoryError":
            bytearray(2**62)
        if self.kind == "sys.exit":
            sys.exit(0)
        kinds: dict[str, BaseException] = {
            "SystemExit": SystemExit(0),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "GeneratorExit": GeneratorExit(),
            "Silent": _Silent(),
            "StopIteration": StopIteration(),
        }
        raise kinds[self.kind]

    def handle_again(self) -> None:
        self.handle_again()

    def succeeded(self) -> None:
        note("succeeded", self.kind)

    def failed(self, error: BaseException) -> None:
        note("failed", self.kind, type(error).__name__)


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Grow(Queueable):
    """Keeps some megabytes."""

    megabytes: int

    def handle(self) -> None:
        _kept.append(os.urandom(self.megabytes * 1024 * 1024))
        note("grown")


_kept: list[bytes] = []


class Dispatcher(Queueable):
    """Dispatches in a tight loop until it is ended; notes each that was sent."""

    dropped: bool = False

    def handle(self) -> None:
        note("start", "dispatcher", self.attempts)
        for number in itertools.count():
            word = f"{os.getpid()}-{number}"
            note("sending", word)
            pending: PendingDispatch = dispatch(Note(word=word)).on_queue("made")
            if self.dropped:
                del pending
            else:
                pending.send()
            note("sent", word)


class LeavesThread(Queueable):
    """Leaves a thread behind that never ends."""

    def handle(self) -> None:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        note("left a thread")


class Typed(Queueable):
    """Has fields that data may not fit."""

    number: int
    items: list[int] = []  # noqa: RUF012 (each job has its own)

    def handle(self) -> None:
        note("typed", self.number)


class NotAJob:
    def __init__(self, **_: object) -> None:
        note("canary", "made NotAJob")

    def handle(self) -> None:
        note("canary", "ran NotAJob")


def plain(**_: object) -> None:
    note("canary", "called plain")


class Fault(Queueable):
    """A job of the fault gate: `S` at its start, `D` as its last line."""

    number: int
    seconds: float
    tries = 0

    def handle(self) -> None:
        note("S", self.number, self.attempts, os.getpid(), time.time())
        time.sleep(self.seconds)
        note("D", self.number, self.attempts, os.getpid(), time.time())


# -- listeners ----------------------------------------------------------------------------------


def hear_idle(_event: events.WorkerIdle) -> None:
    note("idle", os.getpid())


def hear(event: events.Event) -> None:
    job = getattr(event, "job", None)
    note("event", type(event).__name__, getattr(job, "uuid", "-"), getattr(event, "error", ""))


def hear_and_raise(event: events.Event) -> None:
    note("heard", type(event).__name__)
    raise RuntimeError("a listener's own trouble")


def hear_and_exit(event: events.Event) -> None:
    note("heard", type(event).__name__)
    sys.exit(4)


def veto(_event: events.Looping) -> bool:
    note("looping")
    return os.path.exists("may-work")  # noqa: PTH110 (as short as a listener gets)


def settle_by_listener(event: Any) -> None:
    event.job.delete()
