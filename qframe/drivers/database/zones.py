"""Zones: where in `due` the messages with a priority are, and which of them are the next.

Each level but the default's has a zone of negative numbers in the one index of waiting rows: `due`
is the zone's beginning and the moment at which the message is ready. So a claim of messages without
a priority reads what it read before, and its first row shows whether there are others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, select

from qframe.drivers import levels
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.sql import param

WIDTH = 2**56
"""Microseconds of a zone: more than two thousand years."""
ZONES = tuple(
    0 if level == levels.MIDDLE else (level - len(levels.FIRST)) * WIDTH
    for level in range(len(levels.FIRST))
)
"""Where the zone of each level begins."""
LOWEST = min(ZONES)


def zone_of(priority: int | None) -> int:
    """Return the beginning of the zone of a priority."""
    return ZONES[levels.level_of(priority)]


def moment(due: int) -> int:
    """Return when a message is ready, whatever its zone."""
    return due if due >= 0 else due % WIDTH


class Zoned:
    """A column like `due`, as expressions of SQL."""

    def __init__(self, database: Database, due: ColumnElement[Any]) -> None:
        divided = "DIV" if database.is_mysql else "/"  # of whole numbers, without the rest
        zone = -WIDTH * ((-due).op(divided, precedence=8)(WIDTH) + 1)
        self.zone: ColumnElement[Any] = case((due < 0, zone), else_=0)
        self.moment: ColumnElement[Any] = due - self.zone
        aside = -WIDTH * (due - NEVER).op(divided, precedence=8)(WIDTH)
        self.zone_aside: ColumnElement[Any] = case((due >= NEVER, aside), else_=0)
        """The zone of a buried message, which is that far above `NEVER`."""


class Head(NamedTuple):
    """The first waiting message of a zone, ready or not."""

    rank: int
    """Its place among those of all zones; the lowest is the next."""
    zone: int
    moment: int


class Heads:
    """Reads the first message of each zone; `aging` is the seconds that a level is worth."""

    def __init__(self, database: Database, aging: float) -> None:
        self.behind = {
            zone: round(levels.behind(level, aging) * 1_000_000) for level, zone in enumerate(ZONES)
        }
        """Microseconds by which each zone comes behind the default's."""
        c = database.schema.jobs.c
        waits = and_(c.queue == param("queue"), c.reserved_at.is_(None))
        firsts = [
            select(c.due_at)
            .where(waits, c.due_at >= zone, c.due_at < (zone + WIDTH if zone else NEVER))
            .order_by(c.due_at)
            .limit(1)
            .scalar_subquery()
            for zone in ZONES
        ]
        self._firsts = database.statement(select(database.clock(), *firsts))
        first = select(c.due_at).where(waits).order_by(c.due_at, c.id).limit(1)
        self._first = database.statement(first)

    def has_zones(self, session: Session, queue: str) -> bool:
        """Whether messages with a priority wait: they are before all others in the index."""
        row = session.run(self._first, queue=queue).fetchone()
        return row is not None and row[0] < 0

    def read(self, session: Session, queue: str) -> tuple[int, list[Head]]:
        """Return the time and the heads, those that come next first."""
        now, *firsts = session.run(self._firsts, queue=queue, **session.at).fetchone()
        heads = [
            Head(moment(first) + self.behind[zone], zone, moment(first))
            for zone, first in zip(ZONES, firsts, strict=True)
            if first is not None
        ]
        return int(now), sorted(heads)
