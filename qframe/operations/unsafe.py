"""Unsafe: what works until something goes wrong, for `qframe check` and the overview."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.backend import Capability, Health
from qframe.drivers.failover.settings import FailoverSettings
from qframe.exceptions import ConfigurationError
from qframe.jobs import definition
from qframe.manager import QueueManager
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule
from qframe.schedules.known import MOST, calendar_of, summaries
from qframe.schedules.rows import ScheduleRows
from qframe.schedules.schedulers import warnings_of

_SHORT_LEASE = 3
_REFUSED = "the schedule %s is refused (qframe schedule sign, once it was looked at): %s"
_LATE = 60
"""Seconds a dispatch may wait in the outbox before that is reported."""


class Unsafe(NamedTuple):
    """What is unsafe, in a sentence, and its subject: a connection, `signing` or a schedule."""

    about: str
    text: str


def of_signing(queues: QueueManager) -> list[Unsafe]:
    """Returns what is unsafe about how payloads are signed."""
    if queues.signer is None or queues.signer.require:
        return []
    return [Unsafe("signing", "payloads without a signature are accepted (accept-unsigned)")]


def of_connection(queues: QueueManager, connection: Connection, health: Health) -> list[Unsafe]:
    """Returns what is unsafe about a connection, given its backend's health.

    Raises `QframeError`.
    """
    texts = [*health.warnings, *_of_long_jobs(queues, connection, health.longest_job)]
    if connection.name == queues.settings.outbox.connection:
        texts += _of_outbox(queues)
    if isinstance(connection.settings, FailoverSettings):
        texts += _of_failover(queues, connection.settings)
    if Capability.RESERVE in connection.capabilities and connection.retry_after < _SHORT_LEASE:
        texts.append(
            f"retry_after = {connection.retry_after:g} is short: a job that holds the interpreter "
            "for as long keeps its lease from being renewed, and runs twice"
        )
    if queues.signer is not None and Capability.FACTS in connection.capabilities:
        refused = [each for each in ScheduleRows(queues).summaries(connection) if each.refused]
        texts += [_REFUSED % (one_line(each.name, 150), each.refused) for each in refused[:MOST]]
    return [Unsafe(connection.name, text) for text in texts]


def _of_failover(queues: QueueManager, settings: FailoverSettings) -> Iterator[str]:
    place = queues.settings.store.driver
    if place == "auto":
        yield (
            "no [store] is set: it and a worker of one of its connections look for locks, chains "
            "and pushes in doubt in different places"
        )
    store = "database" if place == "auto" else place
    on_servers = any(queues.backend(each).path() is None for each in settings.connections)
    if on_servers and queues.backend(store).path() is not None:
        yield (
            f"the store {store!r} is a file of this host: a job whose push was in doubt may run "
            "once on each host"
        )


def of_schedule(schedule: Schedule) -> list[Unsafe]:
    """Returns likely mistakes in a schedule of the code."""
    options = schedule.options
    found = warnings_of(options.calendar, spread=options.spread, overlap=options.overlap)
    return [Unsafe(schedule.title, text) for text in found]


def of_known_schedules(queues: QueueManager, connection: Connection) -> list[Unsafe]:
    """Returns the same for schedules in the store, without importing their code."""
    found: list[Unsafe] = []
    for each in summaries(queues, connection)[:MOST]:
        if not each.module:
            continue  # a row: `qframe check` only sees the code
        try:
            calendar = calendar_of(each)
        except ConfigurationError:  # of another version
            continue
        texts = warnings_of(calendar, spread=each.spread, overlap=each.overlap)
        found += [Unsafe(each.name, text) for text in texts]
    return found


def _of_long_jobs(queues: QueueManager, connection: Connection, longest: float) -> list[str]:
    """Return which job classes, of those imported by now, may run longer than the server allows."""
    default, found = queues.settings.default, list[str]()
    for each in definition.index.values():
        timeout = each.timeout
        is_here = (each.connection or default) == connection.name
        if is_here and timeout is not None and (timeout or math.inf) > longest:
            limit = f"timeout = {timeout:g}" if timeout else "no timeout"
            found.append(
                f"{one_line(each.own_name(), 150)} has {limit}, and the server gives a "
                f"job to another worker after {longest:g} s"
            )
    return found[:MOST]


def _of_outbox(queues: QueueManager) -> list[str]:
    outbox, found = queues.outbox(), list[str]()
    for lag in () if outbox is None else outbox.lags():
        if lag.set_aside:
            found.append(
                f"{lag.set_aside} dispatches for the connection {lag.connection!r} were set aside "
                f"(qframe relay --retry retries them): {lag.error}"
            )
        if lag.oldest > _LATE:
            found.append(
                f"{lag.waiting} dispatches wait for the connection {lag.connection!r}, the oldest "
                f"for {lag.oldest:.0f} s: does a worker or `qframe relay` run that reaches both?"
            )
    return found
