"""Jobs that are handled in chunks, for `test_chunks`; copied into its projects."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qframe import Chunk, Queueable

log = logging.getLogger("chunking")
_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND)


def note(*words: object) -> None:
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


class Insert(Queueable):
    """Inserts rows together; a negative one fails them all."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10, within=0.5)
    tries: ClassVar[int | None] = 2

    @classmethod
    def handle_many(cls, jobs: Sequence[Insert]) -> list[int]:
        note("call", len(jobs), *(job.row for job in jobs))
        if any(job.row < 0 for job in jobs):
            raise ValueError("a negative row")
        for job in jobs:
            note("row", job.row, job.attempts)
        return [job.row * 2 for job in jobs]


class InsertAsync(Insert):
    @classmethod
    async def handle_many(cls, jobs: Sequence[Insert]) -> list[int]:  # type: ignore[override] # as users write it
        return super().handle_many(jobs)


class Chooses(Queueable):
    """Fails and releases some by themselves."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10, within=0.5)
    tries: ClassVar[int | None] = 2

    @classmethod
    def handle_many(cls, jobs: Sequence[Chooses]) -> None:
        note("call", len(jobs))
        for job in jobs:
            if job.row == 1:
                job.fail(ValueError("one"))
            elif job.row == 2 and job.attempts == 1:
                job.release()
            else:
                note("row", job.row, job.attempts)


class Plain(Queueable):
    def handle(self) -> None:
        note("plain")


class Hangs(Queueable):
    """Row 3 hangs."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(4, within=0.3)
    tries: ClassVar[int | None] = 1
    timeout: ClassVar[Any] = 1.5

    @classmethod
    def handle_many(cls, jobs: Sequence[Hangs]) -> None:
        note("call", *(job.row for job in jobs))
        if any(job.row == 3 for job in jobs):
            time.sleep(60)
        for job in jobs:
            note("row", job.row)


class Slow(Queueable):
    """Takes longer than a lease, the first time."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(5, within=0.3)
    tries: ClassVar[int | None] = 0

    @classmethod
    def handle_many(cls, jobs: Sequence[Slow]) -> None:
        note("begun", len(jobs), os.getpid())
        if any(job.attempts == 1 for job in jobs):
            time.sleep(30)
        for job in jobs:
            note("row", job.row, job.attempts)


class Kills(Queueable):
    """Row 2 kills its worker."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10, within=0.3)
    tries: ClassVar[int | None] = 3

    @classmethod
    def handle_many(cls, jobs: Sequence[Kills]) -> None:
        note("call", len(jobs))
        if any(job.row == 2 for job in jobs):
            os.kill(os.getpid(), signal.SIGKILL)
        for job in jobs:
            note("row", job.row, job.attempts)


class Stuck(Queueable):
    """Row 0 does not end at its timeout."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10, within=0.3)
    tries: ClassVar[int | None] = 3
    timeout: ClassVar[Any] = 1.5
    fail_on_timeout: ClassVar[bool] = True

    @classmethod
    def handle_many(cls, jobs: Sequence[Stuck]) -> None:
        note("call", len(jobs))
        if any(job.row == 0 for job in jobs):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(60)
        for job in jobs:
            note("row", job.row, job.attempts)


class Dies(Queueable):
    """Ends in one of these ways once its stacks are taken, if its row is 1 or there are several."""

    row: int
    way: str
    chunk: ClassVar[Chunk | None] = Chunk(10, within=0.3)
    tries: ClassVar[int | None] = 1
    timeout: ClassVar[Any] = 3

    @classmethod
    def handle_many(cls, jobs: Sequence[Dies]) -> None:
        way = jobs[0].way
        if not any(job.row == 1 for job in jobs):
            return
        log.warning("%d jobs are to end by %s", len(jobs), way)
        kept = bytearray(80_000_000)
        until = time.monotonic() + 1.7
        while time.monotonic() < until:
            sum(range(1000))
        if way == "memory":
            bytearray(1 << 60)
        elif way == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(60)
        elif way == "timeout":
            time.sleep(60)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        del kept


class Sleeps(Queueable):
    """Sleeps the first time."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(5, within=0.3)
    tries: ClassVar[int | None] = 1

    @classmethod
    def handle_many(cls, jobs: Sequence[Sleeps]) -> None:
        note("call", len(jobs))
        if Path(os.environ["LEDGER"]).read_text().count("call") == 1:
            time.sleep(60)
        for job in jobs:
            note("row", job.row, job.attempts)
