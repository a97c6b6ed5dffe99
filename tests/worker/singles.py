"""Unique and debounced jobs, copied into the projects of `test_unique` as their module `singles`.

Each has the name that it has there, so that the tests can push it from their own process.
"""

from __future__ import annotations

import os
import signal
import time
from typing import ClassVar

from qframe import DontHandle, Queueable, events

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words: object) -> None:
    """Add a line to the ledger, in one write."""
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


class Once(Queueable):
    """Does what its word says."""

    word: str = ""
    key: str = "the only one"

    job_name = "singles.Once"
    unique = True
    tries = 2

    def unique_id(self) -> str:
        return self.key

    def handle(self) -> None:
        note("start", self.word, self.attempts)
        if self.word == "raises":
            raise ValueError("not today")
        if self.word == "skips":
            raise DontHandle("not today")
        if self.word == "deletes":
            self.delete()
        if self.word == "fails":
            self.fail("for good")
        if self.word == "releases" and self.attempts == 1:
            self.release()
        note("end", self.word, self.attempts)


class Long(Queueable):
    """Runs longer than its lock would last."""

    seconds: float = 9.0

    job_name = "singles.Long"
    unique = True
    unique_id = "long"
    unique_for = 6

    def handle(self) -> None:
        note("start", "long")
        time.sleep(self.seconds)
        note("end", "long")


class Begun(Queueable):
    """Is alone until it starts."""

    number: int = 0

    job_name = "singles.Begun"
    unique = True
    unique_id = "begun"
    unique_until = "started"

    def handle(self) -> None:
        note("start", "begun", self.number)
        if not self.number:
            time.sleep(3)
        note("end", "begun", self.number)


class Last(Queueable):
    """The last of them runs."""

    text: str

    job_name = "singles.Last"
    unique_id = "last"
    debounce: ClassVar[float] = 1

    def handle(self) -> None:
        note("last", self.text)


def hear_skipped(event: events.JobSkipped) -> None:
    note("skipped", *event.reason.split())


def die_once(event: events.JobEvent) -> None:
    """Kill the worker, the first time that this is told of a job."""
    if event.job.payload["job"] != "singles.Once":
        return
    try:
        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note("died")
    os.kill(os.getpid(), signal.SIGKILL)
