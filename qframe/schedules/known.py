"""Known: the schedules of a connection in the store, without their code."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.manager import QueueManager
from qframe.schedules.calendar import Calendar
from qframe.schedules.parser import read
from qframe.schedules.rows import ScheduleRows, keys_of
from qframe.schedules.state import ScheduleSummary

MOST = 500
"""So many schedules of a connection are shown."""


def summaries(queues: QueueManager, connection: Connection) -> list[ScheduleSummary]:
    """Returns the schedules of a connection in the store: its workers', and the rows."""
    if Capability.FACTS not in connection.capabilities:
        return []
    keys, store = keys_of(queues, connection), connection.store
    found = [
        about
        for _, text in islice(store.items(keys.summary()), MOST * 4)
        if (about := ScheduleSummary.read(text)) is not None
    ]
    modules = sorted({each.module for each in found})
    releases = dict(zip(modules, store.get(*(keys.release(each) for each in modules)), strict=True))
    current = {each.name: each for each in found if releases[each.module] == each.fact}
    for row in ScheduleRows(queues).summaries(connection):
        current.setdefault(row.name, row)
    return [current[name] for name in sorted(current)]


def calendar_of(about: ScheduleSummary) -> Calendar:
    """Returns the calendar of a schedule. Raises `ConfigurationError`."""
    return replace(read(about.when), zone=about.zone)
