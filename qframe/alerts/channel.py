"""Channel: one way to send a notification, in a limited time."""

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
"""Seconds beyond its timeout after which an unfinished notification counts as lost."""


class NotTold(Exception):
    """The channel did not accept the notification; the message says why, without secrets."""


class Channel(ABC):
    """One way to send notifications."""

    timeout: float = 30.0

    @property
    def longest(self) -> float:
        """Seconds after which an unfinished notification counts as lost."""
        return self.timeout + _GRACE

    @abstractmethod
    def tell(self, telling: Telling) -> None:
        """Send the notification. Raises `NotTold`, or errors of the library below."""


def message(telling: Telling) -> dict[str, Any]:
    """Return the JSON fields for the webhook and the command."""
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
    """Return the notification in one line."""
    before = {RESOLVED: "over: "}.get(telling.event, "")
    return one_line(before + telling.alert.text, 300)


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates and their host name."""
    import ssl  # noqa: PLC0415 (only a channel needs it)

    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def why(error: Exception) -> str:
    """Describe an error; for a certificate, what is wrong with it."""
    said = getattr(error, "verify_message", "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
