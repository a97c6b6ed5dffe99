"""Jobs of groups, for `test_groups`; copied into its projects."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable


class Sync(Queueable):
    """Takes its time; every fifth fails once before it succeeds."""

    queue: ClassVar[str | None] = "mail"
    group: ClassVar[str] = "shop:{shop}"
    tries: ClassVar[int | None] = 0
    backoff: ClassVar[float] = 0.05

    shop: int
    number: int
    seconds: float = 0.05
    shaky: bool = False

    def handle(self) -> None:
        word = f"{self.shop}-{self.number}"
        note("start", word, self.attempts, time.time(), os.getpid())
        time.sleep(self.seconds)
        fails = self.shaky and self.number % 5 == 2 and self.attempts == 1
        note("failed" if fails else "done", word)
        note("end", word, self.attempts, time.time())
        if fails:
            raise ValueError("not yet")


def stop_here() -> None:
    """Stop this process, but not amid a write to SQLite, whose lock it would keep."""
    file = Path("qframe.sqlite3")
    if file.exists():
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            os.kill(os.getpid(), signal.SIGSTOP)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


class Stalls(Sync):
    """Its first attempt stops its worker, past its lease."""

    def handle(self) -> None:
        note("start", f"{self.shop}-{self.number}", self.attempts, time.time(), os.getpid())
        if self.number == 0 and self.attempts == 1:
            stop_here()
        note("done", f"{self.shop}-{self.number}", self.attempts)
