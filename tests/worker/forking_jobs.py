"""Jobs that have children: each says how the child ended, and how long that took."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ClassVar

from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable

_LONG = 30


def sleep_long(ready: int) -> None:
    os.write(ready, b".")
    os.close(ready)
    until = time.monotonic() + _LONG
    while time.monotonic() < until:
        time.sleep(0.05)  # a signal that comes as a sleep begins does not end it


def terminated() -> object:
    """End a child of `multiprocessing` that sleeps; gives its exit code."""
    there, here = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=sleep_long, args=(here,))
    child.start()
    os.read(there, 1)
    child.terminate()
    child.join()
    return child.exitcode


def terminated_at_once() -> object:
    """End it as soon as it is there, wherever it is."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(_LONG,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


def pooled(method: str = "fork") -> object:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(abs, [-1, -2])


def executed(method: str = "fork") -> object:
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as executor:
        return list(executor.map(abs, [-1, -2]))


def ended() -> object:
    """Let a child end by itself, and one that dispatches leave by `sys.exit`."""
    child = multiprocessing.get_context("fork").Process(target=abs, args=(1,))
    child.start()
    child.join()
    pid = os.fork()
    if not pid:
        Said.dispatch()
        sys.exit(0)
    os.waitpid(pid, 0)
    return child.exitcode


class Said(Queueable):
    """Says that it ran."""

    def handle(self) -> None:
        note("said")


def _code_after(number: int, run: Callable[[int], object] = sleep_long) -> int:
    """Send a signal to a forked child that runs this, and sleeps; gives its exit code."""
    there, here = os.pipe()
    pid = os.fork()
    if not pid:
        run(here)
        os._exit(0)
    os.close(here)
    os.read(there, 1)
    os.close(there)
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(*numbers: int) -> object:
    """Fork by hand, and send each signal to a child of its own; gives what they died of."""
    return [-_code_after(number) for number in numbers or (15, 3, 10, 12, 14, 1, 26)]


def interrupted() -> object:
    """Send a child SIGINT: like any program of Python, it raises KeyboardInterrupt."""

    def run(here: int) -> None:
        try:
            sleep_long(here)
        except KeyboardInterrupt:
            os._exit(77)

    return _code_after(signal.SIGINT, run)


def ran() -> object:
    """End a program, and one that Python starts by way of a fork of its own."""
    codes = []
    for before in (None, os.getpid):  # the latter has Python fork by itself
        child = subprocess.Popen(["sleep", str(_LONG)], preexec_fn=before)  # noqa: PLW1509
        child.terminate()
        codes.append(child.wait())
    return codes


def ignored() -> bool:
    """Whether a child ignores what the program around the worker ignores."""
    pid = os.fork()
    if not pid:
        os._exit(signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def wakes_nobody() -> object:
    """Have a signal come to a child that handles it; says who was woken."""

    def run(here: int) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0 if signal.set_wakeup_fd(-1) < 0 else 1))
        sleep_long(here)
        os._exit(2)

    return _code_after(signal.SIGUSR1, run)


def own_handler_stays() -> object:
    """A handler of the job's own is inherited, as anywhere."""
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(55))
    try:
        return _code_after(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def watches_by_itself() -> object:
    """Use faulthandler in a child, whose parent's watchdog uses it."""
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(60)
        faulthandler.cancel_dump_traceback_later()
        os._exit(0)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


class HasChildren(Queueable):
    """Runs one of the above."""

    timeout: ClassVar[float | None] = 25
    how: str
    args: list[object] = []  # noqa: RUF012 (each job has its own)

    def handle(self) -> None:
        began = time.monotonic()
        note("has", self.how, os.getpid())
        result = globals()[self.how](*self.args)
        note("gave", self.how, str(result).replace(" ", ""), f"{time.monotonic() - began:.2f}")


class HasChildrenOnLoop(HasChildren):
    """On the event loop."""

    async def handle(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().handle()


class HasChildrenInThread(HasChildren):
    """In a thread of its own."""

    def handle(self) -> None:
        thread = threading.Thread(target=super().handle)
        thread.start()
        thread.join()


class ForksAndIsLate(Queueable):
    """Forks all the time, and ends in time no more."""

    timeout: ClassVar[float | None] = 1
    tries: ClassVar[int | None] = 1

    def handle(self) -> None:
        note("forks")
        while True:
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)


class StuckAfterFork(Queueable):
    """Keeps the interpreter to itself, after a fork: the watchdog is still there."""

    timeout: ClassVar[float | None] = 5  # a busy machine forks within it
    tries: ClassVar[int | None] = 1

    def handle(self) -> None:
        note("stuck")
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        all(itertools.repeat(1))
