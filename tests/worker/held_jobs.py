"""Jobs that run until they are let go, and one that tells what its log records carry."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from pathlib import Path
from typing import ClassVar

from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable, current_job, events, job_log_fields, queueable


def _is_held(word: str) -> bool:
    return not Path(f"let-{word}").exists()


class Held(Queueable):
    """Runs until there is a file of its name."""

    timeout: ClassVar[float | None] = 0
    word: str

    async def handle(self) -> None:
        note("start", self.word, self.attempts)
        while _is_held(self.word):  # noqa: ASYNC110 (by another process)
            await asyncio.sleep(0.02)
        note("end", self.word, self.attempts)


class HeldInThread(Queueable):
    """Does so in a thread, or as the one job of a worker."""

    timeout: ClassVar[float | None] = 0
    word: str

    def handle(self) -> None:
        note("start", self.word, self.attempts)
        while _is_held(self.word):
            time.sleep(0.02)
        note("end", self.word, self.attempts)


class ClosesScoreboard(Queueable):
    """Closes what its worker shares with its pool."""

    def handle(self) -> None:
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if "qframe-scoreboard" in str(file.readlink()):
                    os.close(int(file.name))
        note("closed")


def told(where: str) -> None:
    """Note what a record would carry here."""
    fields = job_log_fields()
    job = current_job()
    note(where, *(fields[name] for name in sorted(fields)), job is not None and job.uuid)
    logging.getLogger("shop").warning("told %s", where)


class Tells(Queueable):
    """Notes that from wherever its code runs."""

    def handle(self) -> None:
        told("handle")
        note("same", current_job() is self.job)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(told, "thread"))
        thread.start()
        thread.join()
        raise ValueError("boom")

    def failed(self, error: BaseException) -> None:
        told("failed")


class TellsOnLoop(Queueable):
    async def handle(self) -> None:
        told("handle")
        note("same", current_job() is self.job)
        await asyncio.create_task(self._on())
        await asyncio.to_thread(told, "thread")
        raise ValueError("boom")

    async def _on(self) -> None:
        await asyncio.sleep(0.05)
        told("task")

    async def failed(self, error: BaseException) -> None:
        told("failed")


@queueable
def tell() -> None:
    told("function")


def hear(event: events.JobEvent) -> None:
    """Do so as a listener."""
    told(type(event).__name__)


def hear_idle(_: events.WorkerIdle) -> None:
    """Do so where no job is."""
    told("idle")
