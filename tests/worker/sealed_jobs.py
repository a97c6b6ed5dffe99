"""Jobs with something to hide, copied into the projects of `test_sealed` as their module `sealed`.

Each has the name that it has there, so that the tests can push it from their own process.
"""

from __future__ import annotations

import os
from typing import ClassVar

from qframe import Queueable, Secret, dispatch


def note(*words: object) -> None:
    """Add a line to the ledger."""
    with open(os.environ["LEDGER"], "a") as ledger:  # noqa: PTH123 (one write)
        ledger.write(" ".join(map(str, words)) + "\n")


class Send(Queueable):
    token: str

    job_name = "sealed.Send"
    encrypted = True

    def handle(self) -> None:
        note("sent", self.token[::-1])


class Fails(Send):
    job_name = "sealed.Fails"
    track = True

    def handle(self) -> None:
        self.progress(0.5, "half")
        raise RuntimeError("it failed")

    def failed(self, error: BaseException) -> None:
        note("told", self.token[::-1])


class Hides(Queueable):
    token: Secret[str]

    job_name = "sealed.Hides"
    track = True
    encrypted = False

    def handle(self) -> None:
        note("hid", self.token.reveal()[::-1])
        raise RuntimeError(f"no {self.token}")


class Again(Send):
    job_name = "sealed.Again"
    tries: ClassVar[int | None] = 2

    def handle(self) -> None:
        note("attempt", self.attempts)
        if self.attempts == 1:
            raise RuntimeError("once more")
        dispatch(Send(token=self.token)).send()
