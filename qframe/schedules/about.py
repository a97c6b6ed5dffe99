"""ScheduleAbout: describes a schedule for programs without its code, one fact for each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from qframe.schedules.definition import Schedule


@dataclass(frozen=True, slots=True)
class ScheduleAbout:
    """The description of a schedule."""

    name: str
    job: str
    when: str
    zone: str
    queue: str
    missed: str
    grace: float
    overlap: float
    spread: int
    maintenance: bool
    environments: tuple[str, ...]
    conditions: int
    """The number of functions that decide at the planned time."""
    place: str
    module: str
    """"" for a schedule that was added at run time."""
    fact: str = ""
    """The fact of its release, or its row."""
    refused: str = ""
    """Why a row is not used; the other fields are then unsigned text."""

    @classmethod
    def of(cls, schedule: Schedule, default_queue: str, fact: str = "") -> ScheduleAbout:
        """Describe a schedule."""
        terms = schedule.terms
        return cls(
            name=schedule.title,
            job=schedule.job_name,
            when=terms.calendar.text(),
            zone=terms.calendar.zone,
            queue=terms.queue or schedule.job.queue or default_queue,
            missed=terms.missed,
            grace=terms.grace,
            overlap=terms.overlap,
            spread=terms.spread,
            maintenance=terms.in_maintenance,
            environments=terms.environments,
            conditions=len(terms.conditions),
            place=schedule.place,
            module=schedule.module,
            fact=fact,
        )

    def text(self) -> str:
        """Encode as a fact."""
        fields = asdict(self)
        del fields["refused"]  # only for rows; earlier versions do not know it
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> ScheduleAbout | None:
        """Decode the result of `text`; None for what another version wrote."""
        try:
            told: dict[str, Any] = json.loads(text)
            return cls(**{**told, "environments": tuple(told["environments"])})
        except (ValueError, TypeError, KeyError):
            return None
