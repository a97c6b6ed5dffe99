"""The jobs that the conformance suite pushes."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from qframe import Queueable, timing

ran: list[int] = []
"""What ran in this process."""


class Plain(Queueable):
    number: int = 0

    def handle(self) -> int:
        ran.append(self.number)
        return self.number


class ToEmails(Plain):
    queue = "emails"


class Late(Plain):
    delay: ClassVar[timing.When] = timedelta(seconds=30)
