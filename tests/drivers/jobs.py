"""Jobs that run on the sync connection."""

from __future__ import annotations

from typing import ClassVar

from qframe import Queueable
from qframe.exceptions import DontHandle


class Told(Queueable):
    """A job that notes what happens to it."""

    number: int = 0
    notes: ClassVar[list[object]] = []

    def handle(self) -> None:
        self.notes.append(self.number)

    def failed(self, error: BaseException) -> None:
        self.notes.append(error)


class Broken(Told):
    def handle(self) -> None:
        raise ValueError("broken")


class Skipped(Told):
    def handle(self) -> None:
        raise DontHandle("not today")


class Settling(Told):
    """Calls a method of its reservation."""

    method: str

    def handle(self) -> None:
        assert self.job is not None
        getattr(self.job, self.method)()
        self.notes.append(self.method)


class Curious(Told):
    def handle(self) -> None:
        assert self.job is not None
        self.notes.append((self.job.queue, self.job.connection_name, self.job.attempts()))
