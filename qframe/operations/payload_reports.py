"""Payload reports: what the last checks of stored payloads found, kept for those who look later.

They are a few facts with fixed keys, which a page reads at once. A report has counts, sentences,
names and ids, and no value of a payload.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable, InvalidSignature, QframeError
from qframe.features.base import attempts
from qframe.manager import QueueManager
from qframe.operations.payloads import PayloadCheck, PayloadTrouble, places_in_words
from qframe.payload.text import count_of, one_line

COMMAND = "the command"
KEEP = 7 * 86400.0
"""Seconds for which a report is kept."""
_OF_COMMANDS = tuple(f"payload-check:{number}" for number in range(5))
_OF_PAGES = tuple(f"payload-check:page-{number}" for number in range(2))
KEYS = _OF_COMMANDS + _OF_PAGES
"""The facts with the last reports: a new one replaces the oldest, a page's only another page's."""
_LARGEST = 30_000
"""Bytes of a report at most."""
_MOST_LINES = 50
_MOST_SILENT = 10

_Count = Annotated[int, Field(ge=0, le=10**12)]
_Lines = Annotated[list[str], Field(max_length=_MOST_LINES)]


class ReportedTrouble(BaseModel):
    """Jobs of one class that the code could not run, for one reason."""

    job: str
    """The name in the payload; "" for what has none."""
    kind: str
    """As `PayloadTrouble.kind`."""
    sentence: str
    """`31 of app.Ship lack 'carrier' (due until ...)`, without values."""
    count: _Count
    where: str
    """Where most of them are: `20 ready in database:mail, 11 failed in database:mail`."""
    example: str
    """The uuid of one of them."""

    @classmethod
    def of(cls, trouble: PayloadTrouble) -> ReportedTrouble:
        return cls(
            job=trouble.job,
            kind=trouble.kind,
            sentence=one_line(trouble.plain_sentence, 800),
            count=trouble.count,
            where=one_line(places_in_words(trouble.places), 600),
            example=one_line(trouble.example, 100),
        )


class PayloadReport(BaseModel):
    """What one check of the stored payloads found."""

    format: Literal[1] = 1
    id: str
    at: str
    """When it ended: UTC, with milliseconds."""
    who: str
    where: str
    """From where it was asked for: `the command`, `the page` or `the API`."""
    host: str
    version: str
    """The version of the code that checked; "" if it is unknown."""
    connection: str
    """The connection that was checked; "" for all."""
    at_most: _Count
    """How many of each queue and place were read at most; 0: all."""
    with_failed: bool
    """Whether failed jobs were read."""
    read: _Count
    """How many payloads were read."""
    counted: str
    """The same in words, with how many were carried over or passed over."""
    cannot: _Count
    """How many of them the code could not run."""
    troubles: Annotated[list[ReportedTrouble], Field(max_length=_MOST_LINES)]
    """Those with the most jobs first."""
    others: _Count
    """How many more jobs could not be run, for reasons that are not listed."""
    left_out: _Lines
    """A sentence for each key for which a class has no field."""
    notes: _Lines
    """What was not read."""
    silent: Annotated[dict[str, str], Field(max_length=_MOST_SILENT)]
    """Why each connection that did not answer did not."""
    unlisted: _Count = 0
    """How many more lines of `left_out`, `notes` and `silent` there were."""

    @field_validator("at")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if datetime.fromisoformat(value).isoformat(" ", "milliseconds") != value:
            raise ValueError("it is no time with milliseconds")
        return value

    @property
    def is_good(self) -> bool:
        """Whether all was read that answers, and can be run."""
        return not self.cannot and not self.silent

    @property
    def code(self) -> str:
        """The code that checked, in words."""
        return f"version {self.version}" if self.version else "the code"


def report_of(
    found: PayloadCheck,
    *,
    who: str,
    where: str,
    version: str,
    connection: str = "",
    at_most: int = 0,
    with_failed: bool = True,
) -> PayloadReport:
    """Return the report of a check that has just ended, of limited size."""
    troubles = [ReportedTrouble.of(each) for each in _without_values(found.troubles)]
    left_out = [one_line(each, 400) for each in found.left_out_said()]
    notes = [one_line(each, 400) for each in found.notes]
    silent = {one_line(name, 100): one_line(why, 200) for name, why in found.silent.items()}
    report = PayloadReport(
        id=secrets.token_hex(5),
        at=datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds"),
        who=one_line(who, 100),
        where=where,
        host=one_line(process.NAME, 100),
        version=one_line(version, 100),
        connection=one_line(connection, 100),
        at_most=at_most,
        with_failed=with_failed,
        read=found.read,
        counted=found.counted(),
        cannot=found.cannot,
        troubles=troubles[:_MOST_LINES],
        others=0,
        left_out=left_out[:_MOST_LINES],
        notes=notes[:_MOST_LINES],
        silent=dict([*silent.items()][:_MOST_SILENT]),
    )
    lists: list[list[Any]] = [report.left_out, report.notes, report.troubles]
    while len(report.model_dump_json().encode()) > _LARGEST and any(lists):
        max(lists, key=len).pop()
    report.others = report.cannot - sum(each.count for each in report.troubles)
    listed = len(report.left_out) + len(report.notes) + len(report.silent)
    report.unlisted = len(left_out) + len(notes) + len(silent) - listed
    return report


def _without_values(troubles: Iterable[PayloadTrouble]) -> list[PayloadTrouble]:
    """Return troubles, those that differ in a value alone put together."""
    found: dict[tuple[str, str], PayloadTrouble] = {}
    for each in troubles:
        key = (each.job, each.plain)
        found[key] = found[key].and_also(each) if key in found else each
    return sorted(found.values(), key=lambda each: -each.count)


# -- the facts ------------------------------------------------------------------------------------


def keep(queues: QueueManager, report: PayloadReport, but: Iterable[str] = ()) -> str:
    """Keep a report in the first store that answers. Returns the name of its connection.

    It asks the checked connection first, then the default one, and none of `but`, which did not
    answer. Raises `QframeError`.
    """
    trouble: QframeError = BackendUnavailable("no connection that answers has a store")
    asked = set[str](but)
    for connection in _keepers(queues, report.connection):
        if connection.name in asked:
            continue
        asked.add(connection.name)
        try:
            _keep_at(connection, report)
        except QframeError as error:
            trouble = error
        else:
            return connection.name
    raise trouble


def _keepers(queues: QueueManager, first: str) -> Iterator[Connection]:
    names = [queues.connection(first)] if first else []
    for each in (*names, queues.connection(), *queues.holding_jobs()):
        if Capability.FACTS in each.capabilities:
            yield each


def _keep_at(connection: Connection, report: PayloadReport) -> None:
    text = report.model_dump_json()
    keys = _OF_COMMANDS if report.where == COMMAND else _OF_PAGES
    for _ in attempts("the last reports"):
        texts = connection.store.get(*keys)
        ages = [_age(connection, key, kept) for key, kept in zip(keys, texts, strict=True)]
        at = ages.index(min(ages))
        kept = connection.context.sealed(keys[at], text)
        if connection.store.swap({keys[at]: (texts[at], kept)}, KEEP):
            return


def _age(connection: Connection, key: str, text: str | None) -> tuple[bool, str]:
    """Return by what the first place to be replaced is chosen: none, then unreadable, then old."""
    report = None if text is None else _read(connection, key, text)
    return text is not None, "" if report is None else report.at


def reports_of(connection: Connection) -> list[PayloadReport]:
    """Return the reports in a connection's store. Raises `BackendUnavailable`.

    One of another format, without a valid signature, or changed by others is passed over.
    """
    texts = connection.store.get(*KEYS)
    found = (
        _read(connection, key, text)
        for key, text in zip(KEYS, texts, strict=True)
        if text is not None
    )
    return [each for each in found if each is not None]


def _read(connection: Connection, key: str, text: str) -> PayloadReport | None:
    if len(text) > 2 * _LARGEST:
        return None
    try:
        return PayloadReport.model_validate_json(connection.context.opened(key, text).text)
    except (ValidationError, InvalidSignature):
        return None


def put_together(reports: Iterable[PayloadReport]) -> list[PayloadReport]:
    """Return reports of several stores, each once, the latest first."""
    found = {each.id: each for each in reports}
    return sorted(found.values(), key=lambda each: each.at, reverse=True)[: len(KEYS)]


def that_tell(reports: Iterable[PayloadReport], since: str) -> list[PayloadReport]:
    """Return those with failures that are the last of their kind and later than a time.

    The command and the page, and the check of one connection, do not replace each other. `since` is
    when another version was deployed: what an earlier check found is decided by then.
    """
    last: dict[tuple[bool, str], PayloadReport] = {}
    for each in reports:
        last.setdefault((each.where == COMMAND, each.connection), each)
    return [each for each in last.values() if each.cannot and each.at > since]


def sentence_of(report: PayloadReport) -> str:
    """Return what is wrong by a report, in a sentence."""
    jobs = count_of(report.cannot, "stored job", "stored jobs")
    said = f"{report.code}, checked by {report.who}, cannot run {jobs}"
    return f"{said}: {report.troubles[0].sentence}" if report.troubles else said
