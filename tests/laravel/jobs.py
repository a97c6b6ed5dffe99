"""The Python application's jobs, copied into the projects of these tests as `app.jobs`."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from pydantic import Field

from qframe import Queueable, events

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event: str, **more: object) -> None:
    """Add a line to the ledger, in one write."""
    entry = {"side": "python", "event": event, "pid": os.getpid(), "time": time.time(), **more}
    os.write(_ledger, (json.dumps(entry, ensure_ascii=False) + "\n").encode())


class SendWelcome(Queueable):
    """Notes what it gets and does what its data says, as the handler in PHP does."""

    word: str = ""
    data: Any = None
    pause: float = Field(0, alias="sleep")
    python_fails: int = 0
    php_fails: int = 0

    def handle(self) -> None:
        self._note("start")
        time.sleep(self.pause)
        if self.attempts <= self.python_fails:
            raise RuntimeError(f"Python does not like attempt {self.attempts}")
        self._note("end")

    def failed(self, error: BaseException) -> None:
        self._note("failed", error=str(error))

    def _note(self, event: str, **more: object) -> None:
        note(
            event,
            name=type(self).own_name(),
            uuid=self.job.uuid,
            queue=self.job.queue,
            attempts=self.attempts,
            data=self.to_data(),
            **more,
        )


class Shared(SendWelcome):
    """A job that the PHP application has too, under the same name."""


class Careful(SendWelcome):
    """A job whose class says how often and when it is tried."""

    tries = 3
    backoff = (0.2, 0.5)


class Renamed(SendWelcome):
    """A job that answers to a name that reads well in PHP."""

    job_name = "App\\Jobs\\ImportFeed"


def hear_idle(_event: events.WorkerIdle) -> None:
    note("idle")
