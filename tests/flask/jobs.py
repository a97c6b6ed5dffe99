"""Jobs that look at their application context."""

from __future__ import annotations

from flask import current_app, g

from qframe import Queueable, queueable

said: list[object] = []


def note() -> None:
    """Say which application this is, and how often it was asked in this context."""
    g.count = g.get("count", 0) + 1
    said.append((current_app.name, g.count))


@queueable(queue="q")
def look(fails: bool = False) -> None:
    note()
    note()
    if fails:
        raise ValueError("as asked")


class Look(Queueable):
    """An `async` job with hooks that are none."""

    fails: bool = False
    queue = "q"

    def set_up(self) -> None:
        note()

    async def handle(self) -> None:
        note()
        if self.fails:
            raise ValueError("as asked")

    async def tear_down(self) -> None:
        note()

    def failed(self, error: BaseException) -> None:
        note()


class LookOnLoop(Queueable):
    """All of it is `async`."""

    queue = "q"

    async def handle(self) -> None:
        note()

    async def succeeded(self) -> None:
        note()
