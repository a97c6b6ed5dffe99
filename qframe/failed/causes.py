"""Causes: groups failed jobs by what their errors have in common."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath
from typing import Protocol

from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Raise
from qframe.drivers.store import Store
from qframe.payload import envelope, tracebacks
from qframe.payload.text import one_line
from qframe.payload.tracebacks import is_of_package, is_own

HOURS = 24
"""The number of hours that are counted separately."""
_HOUR = 3600
_LONGEST = 300
_FRAME = re.compile(r'^ *File "(?P<file>.+?)", line \d+(?:, in (?P<name>.+))?$', re.MULTILINE)
_PHP_FRAME = re.compile(
    r"^#\d+ (?P<file>/.+?)\(\d+\): (?:.*(?:->|::))?(?P<name>[\w{}\\]+)\(", re.MULTILINE
)
_PHP_PLACE = re.compile(r" in (?P<file>/\S+\.php):\d+$")
_TYPE = re.compile(r"([A-Za-z_][\w.\\]*)(?:: |$)")
_DIFFERS = re.compile(
    r"""
      \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b   # a uuid
    | \b\w+://[^\s'"<>]+                                                 # a URL
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                                       # an e-mail address
    | (?<!\w)'[^']*'(?!\w) | "[^"]*" | `[^`]*`                           # what is quoted
    | \b0x[0-9a-f]+\b
    | (?<![\w:])(?=[0-9a-f:]*\d)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])  # an IPv6 address
    | \b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b                                    # an id, a digest
    | \d+(?:[.,:/-]\d+)*                                                 # numbers, times, addresses
    """,
    re.VERBOSE | re.IGNORECASE,
)


class HasError(Protocol):
    """The part of a failed job that determines its cause."""

    @property
    def name(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def exception(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a job failed: class of the job, type of exception, place, and message."""

    key: str
    """Ten hex digits, the same for the same cause, on every host and after a deploy."""
    job: str
    error: str
    """`Type: message`, with `*` for numbers, ids, addresses and quoted text."""
    place: str
    """`file.py in function`: the application's innermost frame; "" if there is none."""


def cause_of(record: HasError) -> Cause:
    """Return the cause of a failed job."""
    frames, words = tracebacks.parts_of(record.exception)
    line, *_ = words.strip().splitlines() or [""]
    place = _place(frames)
    if php := _PHP_PLACE.search(line):
        line = line[: php.start()]
        place = _shown(php) if is_own(php["file"]) else _php_place(words)
    error = one_line(_steady(line), _LONGEST)
    return _cause(envelope.wire_name(record.payload, record.name), error, place)


@lru_cache(maxsize=4096)
def _cause(job: str, error: str, place: str) -> Cause:
    text = f"{job}\0{error}\0{place}".encode("utf-8", "backslashreplace")
    return Cause(hashlib.blake2b(text, digest_size=5).hexdigest(), job, error, place)


def _steady(line: str) -> str:
    """Replace by stars what differs between jobs in the line with the exception."""
    named = _TYPE.match(line)
    at = named.end() if named else 0
    return line[:at] + _DIFFERS.sub("*", line[at:])


@lru_cache(maxsize=512)
def _place(frames: str) -> str:
    """Return the application's innermost frame, or a library's if it has none.

    Jobs often fail in the same place, with the same text of frames.
    """
    found = [*_FRAME.finditer(frames)][::-1]
    for fits in (is_own, is_of_package):
        for frame in found:
            if fits(frame["file"]):
                return _shown(frame)
    return ""


def _php_place(words: str) -> str:
    own = (frame for frame in _PHP_FRAME.finditer(words) if is_own(frame["file"]))
    return next(map(_shown, own), "")


def _shown(frame: re.Match[str]) -> str:
    # Without its folder, which may have the release in its name.
    name = frame.groupdict().get("name")
    file = PurePosixPath(frame["file"]).name
    return one_line(f"{file} in {name}" if name else file, _LONGEST)


# -- first failures of retried jobs ---------------------------------------------------------------

_SEEN = "cause:first:"
_SEEN_FOR = 90 * 86400.0
_LATEST = 2**52
_MOST_SEEN = 5_000


def noted_first(record: FailedJob) -> Raise:
    """Return the operation that records a cause's first failure, when a failed job is retried.

    It keeps the earliest time, for 90 days: a returning cause is not new.
    """
    moment = f"{record.failed_at:.3f}"
    rank = _LATEST - int(record.failed_at * 1000)
    return Raise(_SEEN + cause_of(record).key, rank, moment, _SEEN_FOR)


def first_noted(store: Store) -> Iterator[tuple[str, float]]:
    """Iterate over causes' keys and first failures. Raises `BackendUnavailable`."""
    for key, moment in islice(store.items(_SEEN), _MOST_SEEN):
        yield key.removeprefix(_SEEN), float(moment)


@dataclass(slots=True)
class Failures:
    """The failed jobs of one cause. Times are epoch seconds."""

    cause: Cause
    first: float
    last: float
    example: str
    """The uuid of the latest job."""
    count: int = 0
    _failed_in: Counter[int] = field(default_factory=Counter)
    """The number of failures by hour since 1970."""

    def add(self, uuid: str, failed_at: float) -> None:
        """Count one more."""
        self.count += 1
        self.first = min(self.first, failed_at)
        if failed_at > self.last:
            self.last, self.example = failed_at, uuid
        self._failed_in[int(failed_at // _HOUR)] += 1

    def remove(self, failed_at: float) -> None:
        """Count one less; `first`, `last` and the example stay."""
        self.count -= 1
        self._failed_in[int(failed_at // _HOUR)] -= 1

    def hours(self, now: float) -> list[int]:
        """Return the number of failures in each of the last hours, the current one last."""
        current = int(now // _HOUR)
        return [self._failed_in[hour] for hour in range(current - HOURS + 1, current + 1)]


def count_in(found: dict[str, Failures], record: FailedJob) -> Cause:
    """Count a failed job in its cause, and return the cause."""
    cause, moment = cause_of(record), record.failed_at
    if cause.key not in found:
        found[cause.key] = Failures(cause, moment, moment, record.uuid)
    found[cause.key].add(record.uuid, moment)
    return cause


def in_order(found: Iterable[Failures]) -> list[Failures]:
    """Return causes, the most frequent first."""
    return sorted(found, key=lambda each: (-each.count, -each.last))


def by_cause(records: Iterable[FailedJob]) -> list[Failures]:
    """Group failed jobs by cause, the most frequent first."""
    found: dict[str, Failures] = {}
    for record in records:
        count_in(found, record)
    return in_order(found.values())
