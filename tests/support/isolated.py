"""Jobs that only a process of their own survives, copied into projects as their module `iso`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable, dispatch, events
from qframe.contracts.step import Delete, Step
from qframe.exceptions import JobAlreadySettled

note("imported", os.getpid())

_kept: list[Any] = []


@events.listen(events.JobProcessed)
def hear_own(_event: events.JobProcessed) -> None:
    note("own", os.getpid())


class Look(Queueable):
    """Notes what its process is like, and spoils what it can of it."""

    def handle(self) -> None:
        stdin = Path("/proc/self/fd/0").readlink()
        score = Path("/proc/self/oom_score_adj").read_text().strip()
        umask = os.umask(0o77)
        note("look", os.getpid(), os.getppid(), os.getpgrp(), stdin, score)
        spoilt = len(_kept), os.environ.get("SPOILT"), Path.cwd().name, umask
        note("clean" if spoilt == (0, None, "app", 0o22) else f"spoilt {spoilt}")
        note("random", random.random())
        os.environ["SPOILT"] = "1"
        os.chdir("/")
        _kept.append(1)
        signal.alarm(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Leave(Queueable):
    """Ends its process in a way no job should."""

    how: str

    def handle(self) -> None:
        note("start", self.how, self.attempts, os.getpid())
        if self.how == "fds":
            os.closerange(3, 4096)
            return
        self._leave()

    def _leave(self) -> None:
        if self.how == "exit 0":
            os._exit(0)
        if self.how == "exit 3":
            os._exit(3)
        if self.how == "segfault":
            ctypes.string_at(0)
        if self.how == "abort":
            os.abort()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "group":
            os.killpg(0, signal.SIGKILL)
        if self.how == "exec":
            os.execv(sys.executable, [sys.executable, "-c", ""])

    def failed(self, error: BaseException) -> None:
        note("failed", type(error).__name__, os.getpid())


class AsksBackoff(Queueable):
    """Is asked for its backoff, though its process is dead."""

    tries = 2

    def backoff(self, attempt: int, error: BaseException) -> float:
        note("backoff", attempt, type(error).__name__)
        return 60

    def handle(self) -> None:
        os._exit(1)


class Settle(Queueable):
    """Settles itself, twice."""

    how: str

    def handle(self) -> None:
        note("start", self.how, self.attempts)
        if self.attempts > 1:
            return
        getattr(self.job, self.how)()
        try:
            self.delete()
        except JobAlreadySettled:
            state = self.job.is_deleted, self.job.is_released, self.job.has_failed
            note("refused", *map(int, (*state, self.job.is_settled)))


class Family(Queueable):
    """Leaves processes behind: its own, and one that has left for good."""

    def handle(self) -> None:
        near = subprocess.Popen(["sleep", "600"])
        note("left", near.pid)
        reader, writer = os.pipe()
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            os.write(writer, str(os.getpid()).encode())
            time.sleep(600)
            os._exit(0)
        note("left", os.read(reader, 20).decode())


class Sockets(Queueable):
    """Counts what it has open to others."""

    seconds: float = 1

    def handle(self) -> None:
        places = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        note("sockets", sum(str(place).startswith(("socket", "anon")) for place in places))
        time.sleep(self.seconds)


class Keeps(Queueable):
    """Needs a process that has left it, and is its child again: for as long as it runs."""

    seconds: float = 2

    def handle(self) -> None:
        reader, writer = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.write(writer, str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        os.wait()
        helper = int(os.read(reader, 20))
        note("helper", helper)
        time.sleep(self.seconds)
        os.kill(helper, 0)
        note("kept", helper)


class LeavesSocket(Queueable):
    """Dies, but somebody who has left it holds what it had open, and writes rubbish to all that."""

    def handle(self) -> None:
        if not os.fork():
            os.setsid()
            note("left", os.getpid())
            time.sleep(0.5)
            while True:
                for descriptor in range(3, 30):
                    with contextlib.suppress(OSError):
                        os.set_blocking(descriptor, False)
                        os.write(descriptor, b"rubbish\n" * 1000)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)


class Floods(Queueable):
    """Says more than anybody can hear."""

    seconds: float = 2
    track = True

    def handle(self) -> str:
        note("start", "floods", self.attempts)
        self.progress(0.5, "x" * 10_000_000)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            self.progress(0.5, "x")
            self.job.renew()
        return "y" * 10_000_000


class Disowned(Queueable):
    """Gives its job away, as if its lease had been lost, and goes on."""

    def handle(self) -> None:
        job: Any = self.job
        note("start", "disowned", os.getpid())
        job.context.backend.apply(Step(job.reservation, Delete()))
        time.sleep(60)
        note("end", "disowned")


class Cleans(Queueable):
    """Fails, or dies, and takes its time to hear that."""

    dies: bool = False
    tries = 1

    def handle(self) -> None:
        note("start", "cleans", os.getpid())
        if self.dies:
            os._exit(3)
        raise ValueError("no")

    def failed(self, error: BaseException) -> None:
        note("hears", type(error).__name__, time.time())
        time.sleep(2)
        note("heard", type(error).__name__, time.time())


class ReturnsTwice(Queueable):
    """Forks, and both come back from the job."""

    def handle(self) -> None:
        if not os.fork():
            note("second", os.getpid())
        else:
            time.sleep(0.3)


class Busy(Queueable):
    """Holds the interpreter lock for some seconds."""

    seconds: float

    def handle(self) -> None:
        note("start", "busy", self.attempts, os.getpid())
        # A C function called without the lock being given up.
        ctypes.PyDLL(None).usleep(int(self.seconds * 1e6))
        note("end", "busy", self.attempts)


class Hog(Queueable):
    """Asks for more memory than it may have."""

    def handle(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
        bytearray(2**30)


class Cycle:
    """Keeps something from being dropped until somebody looks for it."""

    def __init__(self, kept: object) -> None:
        self.kept = kept
        self.me = self


class Drops(Queueable):
    """Dispatches, and keeps what it should drop: in a list, and in a cycle."""

    def handle(self) -> None:
        from jobs import Note

        gc.disable()
        dispatch(Note(word="sent")).on_queue("made").send()
        _kept.append(dispatch(Note(word="kept")).on_queue("made"))
        Cycle(dispatch(Note(word="cycle")).on_queue("made"))


class Deaf(Queueable):
    """Hears no signal, and has swallowed every end."""

    def handle(self) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        note("start", "deaf", self.attempts, os.getpid())
        for _ in itertools.count():
            time.sleep(0.1)


class Reports(Queueable):
    """Tells of its progress, and gives a result."""

    def handle(self) -> dict[str, int]:
        self.job.progress(0.5, "half")
        return {"answer": 42}


def hear(event: Any) -> None:
    note("heard", type(event).__name__, os.getpid())


def rescue(event: events.JobExceptionOccurred) -> None:
    event.job.delete()
    note("rescued", os.getpid())


def refuse(event: events.JobExceptionOccurred) -> None:
    event.job.fail(event.error)


def lose(event: events.JobExceptionOccurred) -> None:
    job: Any = event.job
    job.context.backend.apply(Step(job.reservation, Delete()))
