"""NamedRun: the run of a schedule that a payload belongs to, and its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from qframe.payload import envelope

SCHEDULE = "schedule"
PREFIX = "schedule:"
ENDS = 5
"""The number of last runs whose ends are kept."""


@dataclass(slots=True)
class NamedRun:
    """One run of a schedule, as a payload names it."""

    name: str
    at: float
    """The planned time in epoch seconds."""
    number: int
    scope: str = ""
    """Prefix of its facts' keys: the connection, after the program's name."""
    zone: str = "UTC"
    lock: float = 0.0
    """Seconds that its lock on the next run lasts; 0 for none."""
    claims: bool = False
    """Whether there may be two messages of the run."""
    push: int = 0
    """The number of this message."""
    kept_until: float = 0.0

    def wire(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "at": self.at, "number": self.number}
        if self.scope:
            fields["scope"] = self.scope
        if self.zone != "UTC":
            fields["zone"] = self.zone
        if self.lock:
            fields["lock"] = self.lock
        if self.claims:
            fields |= {"claims": True, "push": self.push}
        return fields

    def scheduled_for(self) -> datetime:
        """Return the planned time in the zone of the schedule."""
        try:
            return datetime.fromtimestamp(self.at, UTC if self.zone == "UTC" else _zone(self.zone))
        except (ValueError, OverflowError, OSError):  # a payload may have any number
            return datetime.fromtimestamp(0, UTC)

    @property
    def lock_key(self) -> str:
        """The key of the fact that blocks the next run, if runs must not overlap."""
        return f"{PREFIX}{self.scope}:lock:{self.name}"

    @property
    def end_key(self) -> str:
        """The key of the fact that records how the run ended."""
        return f"{PREFIX}{self.scope}:end:{self.number % ENDS}:{self.name}"

    def claim_key(self, uuid: str) -> str:
        """Return the key of the fact that names the one message to run."""
        return f"{PREFIX}{self.scope}:claim:{uuid}"

    def claim(self, id: str) -> str:  # noqa: A002 (the backend's name for a message)
        """Return the value with which a message claims the run."""
        return f"{id} {self.push}"

    def is_claim(self, held: str | None) -> bool:
        """Whether this message has claimed the run, perhaps under another id.

        A message has another id once it stood in the line of a group.
        """
        return held is not None and held.rpartition(" ")[2] == str(self.push)


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 (few jobs have a zone)

    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:  # the name comes from outside
        raise ValueError(str(error)) from None


def named_run(message: Mapping[str, Any]) -> NamedRun | None:
    """Return the run that a payload belongs to; None if it has none."""
    given = message.get(SCHEDULE)
    if not isinstance(given, dict):
        return None
    name, at = envelope.text(given, "name"), envelope.number(given, "at")
    number = given.get("number")
    if name is None or at is None or type(number) is not int or not 0 <= number < 2**53:
        return None
    return NamedRun(
        name,
        at,
        number,
        envelope.text(given, "scope") or "",
        envelope.text(given, "zone", 60) or "UTC",
        max(0.0, envelope.number(given, "lock") or 0.0),
        given.get("claims") is True,
        int(envelope.number(given, "push") or 0),
    )
