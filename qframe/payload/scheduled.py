"""NamedRun: which run of a schedule a payload is, and the facts that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from qframe.payload import envelope

SCHEDULE = "schedule"
PREFIX = "schedule:"
ENDS = 5
"""So many of the last runs' ends are kept."""


@dataclass(slots=True)
class NamedRun:
    """One run of a schedule, as a payload names it."""

    name: str
    at: float
    """The planned time, as epoch seconds."""
    number: int
    scope: str = ""
    """What the keys of its facts begin with: the connection, behind the program's name."""
    zone: str = "UTC"
    lock: float = 0.0
    """The seconds that its lock on the next run lasts; 0: it has none."""
    claims: bool = False
    """Whether there may be two messages of it."""
    push: int = 0
    """Which of them it is."""
    kept_until: float = 0.0

    def wire(self) -> dict[str, Any]:
        """Give what the payload has under its key."""
        told: dict[str, Any] = {"name": self.name, "at": self.at, "number": self.number}
        if self.scope:
            told["scope"] = self.scope
        if self.zone != "UTC":
            told["zone"] = self.zone
        if self.lock:
            told["lock"] = self.lock
        if self.claims:
            told |= {"claims": True, "push": self.push}
        return told

    def scheduled_for(self) -> datetime:
        """Give the planned time in the zone of the schedule."""
        try:
            return datetime.fromtimestamp(self.at, UTC if self.zone == "UTC" else _zone(self.zone))
        except (ValueError, OverflowError, OSError):  # a payload may say anything
            return datetime.fromtimestamp(0, UTC)

    @property
    def lock_key(self) -> str:
        """The fact that the next run waits for, where runs must not overlap."""
        return f"{PREFIX}{self.scope}:lock:{self.name}"

    @property
    def end_key(self) -> str:
        """The fact that says how the run ended."""
        return f"{PREFIX}{self.scope}:end:{self.number % ENDS}:{self.name}"

    def claim_key(self, uuid: str) -> str:
        """Give the fact that names the one message that is run."""
        return f"{PREFIX}{self.scope}:claim:{uuid}"

    def claim(self, id: str) -> str:  # noqa: A002 (the backend's name for a message)
        """Give what a message of it claims the run with."""
        return f"{id} {self.push}"


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 (few jobs have a zone)

    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:  # a name from outside
        raise ValueError(str(error)) from None


def named_run(message: Mapping[str, Any]) -> NamedRun | None:
    """Read which run of a schedule a payload is; None where it is none."""
    said = message.get(SCHEDULE)
    if not isinstance(said, dict):
        return None
    name, at = envelope.text(said, "name"), envelope.number(said, "at")
    number = said.get("number")
    if name is None or at is None or type(number) is not int or not 0 <= number < 2**53:
        return None
    return NamedRun(
        name,
        at,
        number,
        envelope.text(said, "scope") or "",
        envelope.text(said, "zone", 60) or "UTC",
        max(0.0, envelope.number(said, "lock") or 0.0),
        said.get("claims") is True,
        int(envelope.number(said, "push") or 0),
    )
