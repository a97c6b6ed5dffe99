"""Channel: one way to tell, in a bounded time; and what is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qframe.alerts.life import RESOLVED, Telling
from qframe.drivers import process
from qframe.payload.text import one_line

if TYPE_CHECKING:
    import ssl

_GRACE = 15.0
"""Seconds beyond its own time after which a telling that is not said to have ended never will."""


class NotTold(Exception):
    """The channel did not take it; says why, without secrets."""


class Channel(ABC):
    """One way to tell."""

    timeout: float = 30.0

    @property
    def longest(self) -> float:
        """After how many seconds one that has not ended never will."""
        return self.timeout + _GRACE

    @abstractmethod
    def tell(self, telling: Telling) -> None:
        """Tell it; raises `NotTold`, or whatever the library below raises."""


def message(telling: Telling) -> dict[str, Any]:
    """Give what is told, as the webhook and the command get it."""
    alert = telling.alert
    return {
        "id": telling.id,
        "event": telling.event,
        "text": f"{headline(telling)} [{alert.rule}]",
        "alert": alert.id,
        "rule": alert.rule,
        "connection": alert.connection,
        "subject": alert.what,
        "value": alert.value,
        "since": alert.since,
        "at": telling.at,
        "host": process.NAME,
    }


def headline(telling: Telling) -> str:
    """Say it in one line."""
    before = {RESOLVED: "over: "}.get(telling.event, "")
    return one_line(before + telling.alert.text, 300)


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Give what checks certificates, and that they name the host."""
    import ssl  # noqa: PLC0415 (only who tells needs it)

    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def why(error: Exception) -> str:
    """Name an error; of a certificate say what is wrong with it."""
    said = getattr(error, "verify_message", "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
