"""Jobs that run beside others; they leave notes in the ledger of the project they are copied to."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import itertools
import os
import signal
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any, ClassVar

import redis
from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable, events, middleware

whose: ContextVar[str] = ContextVar("whose", default="nobody")


@events.listen(events.WorkerInterrupted)
def told(_: events.WorkerInterrupted) -> None:
    note("told")


class Waits(Queueable):
    """Waits, as most jobs do."""

    word: str = "a"
    seconds: float = 0.5

    async def handle(self) -> None:
        try:  # whatever ends it from its first note on is seen
            note("start", self.word, self.attempts, time.time(), os.getpid())
            await asyncio.sleep(self.seconds)
        except BaseException as error:
            note("saw", self.word, *(kind.__name__ for kind in type(error).__mro__))
            raise
        finally:
            note("end", self.word, self.attempts, time.time())


class Blocks(Queueable):
    """Waits in a thread of its own, in steps between which it can be interrupted."""

    word: str = "a"
    seconds: float = 0.5

    def handle(self) -> None:
        until = time.monotonic() + self.seconds
        try:  # as above
            note("start", self.word, self.attempts, time.time(), os.getpid())
            while time.monotonic() < until:
                time.sleep(0.01)
        except BaseException as error:
            note("saw", self.word, *(kind.__name__ for kind in type(error).__mro__))
            raise
        finally:
            note("end", self.word, self.attempts, time.time())


class Late(Queueable):
    """Does not end in time."""

    timeout: ClassVar[float | None] = 2
    how: str

    async def handle(self) -> None:
        try:  # as above
            note("start", self.how, self.attempts)
            await getattr(self, self.how)()
        except BaseException as error:
            note("saw", self.how, *(kind.__name__ for kind in type(error).__mro__))
            raise
        finally:
            note("end", self.how)

    async def awaits(self) -> None:
        await asyncio.sleep(60)

    async def computes(self) -> None:
        while True:
            sum(range(1000))

    async def has_a_task_compute(self) -> None:
        await asyncio.create_task(self.computes())

    async def has_another_task_compute(self) -> None:
        task = asyncio.create_task(self.computes())
        await asyncio.sleep(60)
        await task

    async def has_a_group(self) -> None:
        async def one() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                note("cleaned up")

        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            group.create_task(one())

    async def swallows(self) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException as error:  # noqa: BLE001 (that is what it does)
                note("swallowed", type(error).__name__)

    async def is_in_c_code(self) -> None:
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 100_000_000)


class Computes(Queueable):
    """Keeps the loop from everybody else."""

    seconds: float = 5

    async def handle(self) -> None:
        note("start", "computes", self.attempts)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            sum(range(1000))
        note("end", "computes")


def keep_the_interpreter(seconds: float, how: str) -> None:
    """Let no other thread run: in C code that holds the lock, and computes, or sleeps."""
    if how == "sleeps":
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    else:
        any(map((time.monotonic() + seconds).__le__, iter(time.monotonic, None)))


class Keeps(Queueable):
    """Keeps the interpreter to itself, again and again, until it is ended."""

    seconds: float
    how: str = "computes"

    def handle(self) -> None:
        try:  # as above
            note("start", "keeps", time.time())
            time.sleep(0.5)  # the others begin
            while True:
                keep_the_interpreter(self.seconds, self.how)
                time.sleep(0.1)
        finally:
            note("end", "keeps", time.time())


class KeepsOnLoop(Keeps):
    async def handle(self) -> None:  # type: ignore[override]
        try:  # as above
            note("start", "keeps", time.time())
            await asyncio.sleep(0.5)
            while True:
                keep_the_interpreter(self.seconds, self.how)
                await asyncio.sleep(0.1)
        finally:
            note("end", "keeps", time.time())


class NeedsTurns(Queueable):
    """Is done after so many turns, in a thread of its own."""

    turns: int

    def handle(self) -> None:
        note("start", "turns")
        for _ in range(self.turns):
            time.sleep(0.1)
        note("end", "turns")


class NeedsTurnsOnLoop(NeedsTurns):
    async def handle(self) -> None:  # type: ignore[override]
        note("start", "turns")
        for _ in range(self.turns):
            await asyncio.sleep(0.1)
        note("end", "turns")


class Sleeps(Queueable):
    """Sleeps in the system, where no exception reaches a thread."""

    timeout: ClassVar[float | None] = 2

    def handle(self) -> None:
        note("start", "sleeps", self.attempts)
        time.sleep(60)


class Leaves(Queueable):
    """Raises what would end a process."""

    how: str

    async def handle(self) -> None:
        whose.set(self.how)
        await asyncio.sleep(0.1)
        match self.how:
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "group":
                raise BaseExceptionGroup("two", [KeyboardInterrupt(), SystemExit()])
            case "task":
                await asyncio.create_task(self._exit())

    async def _exit(self) -> None:
        sys.exit(4)


class Hogs(Queueable):
    """Keeps the interpreter's lock for ever, from its first moment."""

    timeout: ClassVar[float | None] = 1

    def handle(self) -> None:
        all(itertools.repeat(1))


class Kills(Queueable):
    """Ends the process before any job that comes to the loop after it."""

    async def handle(self) -> None:
        note("start", "kills", self.attempts)
        os.kill(os.getpid(), signal.SIGKILL)


class ExitsInThread(Queueable):
    def handle(self) -> None:
        sys.exit(5)


class Asks(Queueable):
    """Notes whose context it runs in, also in its thread."""

    async def handle(self) -> None:
        before = whose.get()
        whose.set(self.job.uuid)
        await asyncio.sleep(0.1)
        note(
            "context",
            before,
            whose.get() == self.job.uuid,
            await asyncio.to_thread(whose.get) == self.job.uuid,
        )


class AsksInThread(Queueable):
    def handle(self) -> None:
        before = whose.get()
        whose.set(self.job.uuid)
        time.sleep(0.1)
        note("context", before, whose.get() == self.job.uuid, True)


def outer(job: Queueable, call_next: Any) -> Any:
    note("outer", threading.current_thread() is threading.main_thread())
    return call_next(job)


class Mixed(Queueable):
    """Has a middleware that is not async around a handler that is."""

    middleware = (outer,)

    async def handle(self) -> int:
        note("loop", id(asyncio.get_running_loop()))
        await asyncio.sleep(0.05)
        return 1


class OneAtATime(Queueable):
    middleware = (middleware.WithoutOverlapping("it"),)
    tries: ClassVar[int | None] = 0

    async def handle(self) -> None:
        note("loop", id(asyncio.get_running_loop()))


class LeavesATask(Queueable):
    async def handle(self) -> None:
        asyncio.create_task(self._goes_on(), name="goes on")  # noqa: RUF006 (it leaves it)

    async def _goes_on(self) -> None:
        await asyncio.sleep(0.3)
        raise ValueError("nobody hears this")


class Flaky(Queueable):
    tries: ClassVar[int | None] = 3
    is_async: bool = True

    async def handle(self) -> None:
        if self.attempts < 3:
            raise ValueError("boom")
        note("done", self.attempts)

    async def succeeded(self) -> None:
        note("succeeded")


class Fails(Queueable):
    async def handle(self) -> None:
        raise ValueError("boom")

    async def failed(self, error: BaseException) -> None:
        await asyncio.sleep(0.01)
        note("failed", type(error).__name__)


class Few(Waits):
    """Of which so many run at once over all workers."""

    concurrency = 2


class FewInThread(Blocks):
    concurrency = 2


class Ends(Queueable):
    """Comes to each end there is."""

    tries: ClassVar[int | None] = 2
    timeout: ClassVar[float | None] = 1
    concurrency = 2
    how: str

    def handle(self) -> None:
        note("ending", self.how, self.attempts)
        match self.how:
            case "fails":
                raise ValueError("boom")
            case "releases" if self.attempts == 1:
                self.release()
            case "deletes":
                self.delete()
            case "late":
                while True:
                    time.sleep(0.01)
            case "stays":
                time.sleep(60)
            case "dies":
                os.kill(os.getpid(), 9)


class Ticks(Queueable):
    """Notes for how long at most the loop was kept from it."""

    seconds: float

    async def handle(self) -> None:
        until, last, longest = time.monotonic() + self.seconds, time.monotonic(), 0.0
        while last < until:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        note("kept", longest)


class PausesTheServer(Queueable):
    """Ends while Redis answers nobody."""

    url: str
    seconds: float

    async def handle(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.client_pause(int(self.seconds * 1000))
        note("paused")


class KillsTheServer(Queueable):
    """Ends while the server is away."""

    pid: int

    async def handle(self) -> None:
        note("killed", self.attempts)
        os.kill(self.pid, signal.SIGKILL)


class KillsTheServerInThread(Queueable):
    pid: int

    def handle(self) -> None:
        note("killed", self.attempts)
        os.kill(self.pid, signal.SIGKILL)


class ClosesAll(Queueable):
    """Closes what is its worker's."""

    async def handle(self) -> None:
        note("closes")
        os.closerange(3, 1024)


class ClosesAllInThread(Queueable):
    def handle(self) -> None:
        note("closes")
        time.sleep(0.2)  # the loop waits for something to do
        os.closerange(3, 1024)
