"""Channel: one way to send a notification, in a limited time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qframe.alerts.life import RESOLVED, Notification
from qframe.drivers import process
from qframe.payload.text import one_line

if TYPE_CHECKING:
    import ssl

_GRACE = 15.0
"""Seconds beyond its timeout after which an unfinished notification counts as lost."""


class NotSent(Exception):
    """The channel did not accept the notification; the message says why, without secrets."""


class Channel(ABC):
    """One way to send notifications."""

    timeout: float = 30.0

    @property
    def longest(self) -> float:
        """Seconds after which an unfinished notification counts as lost."""
        return self.timeout + _GRACE

    @abstractmethod
    def send(self, notification: Notification) -> None:
        """Send the notification. Raises `NotTold`, or errors of the library below."""


def message(notification: Notification) -> dict[str, Any]:
    """Return the JSON fields for the webhook and the command."""
    alert = notification.alert
    return {
        "id": notification.id,
        "event": notification.event,
        "text": f"{headline(notification)} [{alert.rule}]",
        "alert": alert.id,
        "rule": alert.rule,
        "connection": alert.connection,
        "subject": alert.what,
        "value": alert.value,
        "since": alert.since,
        "at": notification.at,
        "host": process.NAME,
    }


def headline(notification: Notification) -> str:
    """Return the notification in one line."""
    before = {RESOLVED: "over: "}.get(notification.event, "")
    return one_line(before + notification.alert.text, 300)


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates and their host name."""
    import ssl  # noqa: PLC0415 (only a channel needs it)

    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def why(error: Exception) -> str:
    """Describe an error; for a certificate, what is wrong with it."""
    detail = getattr(error, "verify_message", "")
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__
