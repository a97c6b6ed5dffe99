"""Filter: selects jobs by `queue:mail class:app.* error:Timeout older:5m args.user_id:7`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from qframe.exceptions import ConfigurationError, InvalidPayload
from qframe.failed.causes import cause_of
from qframe.payload import envelope, secret, tags, tracebacks
from qframe.payload.text import nearest, one_line
from qframe.payload.timing import LONGEST


class Filtered(Protocol):
    """The part of a job that filters use: failed jobs have all of it, waiting ones no exception."""

    @property
    def uuid(self) -> str: ...
    @property
    def connection(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def exception(self) -> str: ...
    @property
    def failed_at(self) -> float: ...
    @property
    def hosts(self) -> Sequence[str]: ...
    @property
    def state(self) -> str: ...


_Test = Callable[[Filtered], bool]

_TERM = re.compile(
    r'\s*(?P<no>!?)(?:(?P<key>[A-Za-z][\w.-]*):)?(?P<value>"[^"]*"|[^\s"]+)(?=\s|\Z)'
)
_UNSAID = re.compile(r'["*?\[]')
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(_UNITS)}]?)\Z")
_ARGS = "args."
_LONGEST_ERROR = 1000
_NOTHING = object()


def tags_of(record: Filtered) -> list[str]:
    """Return the tags in a job's payload."""
    return tags.read(_message(record))


def _message(record: Filtered) -> Mapping[str, Any]:
    read: Mapping[str, Any] | None = getattr(record, "message", None)
    if read is not None:  # a waiting job, whose payload is parsed once
        return read
    try:
        return envelope.parse(record.payload)
    except InvalidPayload:
        return {}


_TEXTS: dict[str, Callable[[Filtered], Iterable[str]]] = {
    "uuid": lambda record: (record.uuid,),
    "queue": lambda record: (record.queue,),
    "class": lambda record: {record.name, envelope.wire_name(record.payload, record.name)},
    "connection": lambda record: (record.connection,),
    "cause": lambda record: (cause_of(record).key,),
    "tag": tags_of,
    "id": lambda record: (record.uuid,),
    "host": lambda record: record.hosts,
    "state": lambda record: (record.state,),
}
"""Compared as a whole; `*`, `?` and `[abc]` make a value a pattern."""
NAMES = (*_TEXTS, "error", "older", "newer", f"{_ARGS}NAME", "text")
"""The names of all filters."""
IN_LINE = "in line"
"""The state of a job that stands in the line of its group."""
STATES = (
    *("ready", IN_LINE, "delayed", "held", "running", "buried"),
    *("complete", "skipped", "failed", "cancelled"),
)


class JobList(NamedTuple):
    """A list of jobs: what it lists, and the filters that it supports."""

    who: str
    names: tuple[str, ...]

    @classmethod
    def without(cls, who: str, *unknown: str) -> JobList:
        """Return a list without some of the filters."""
        return cls(who, tuple(each for each in NAMES if each not in unknown))

    def check(self, name: str) -> None:
        """Raise `ConfigurationError` for a filter that the list does not support."""
        asked = f"{_ARGS}NAME" if name.startswith(_ARGS) and name != _ARGS else name
        if name and asked not in self.names:
            raise unknown(name, self.names, f" of {self.who}" if asked in NAMES else "")


FAILED = JobList("failed jobs", NAMES)
WAITING = JobList.without("jobs that wait", "cause", "error", "host")
RUNNING = JobList.without("jobs that run", "cause", "error")
HELD = JobList.without("jobs to hold", "cause", "error", "host", "state", "older", "newer")
ENDED = JobList.without("jobs that have ended", "cause", f"{_ARGS}NAME")


class Term(NamedTuple):
    """One term of a filter."""

    name: str
    """"" for a word without a name."""
    values: list[str]
    turned: bool
    """Whether it is negated."""


def terms(text: str) -> Iterator[Term]:
    """Parse the terms of a filter. Raises `ConfigurationError`."""
    at = 0
    text = text.strip()
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or (not term["key"] and term["value"].endswith((":", "!"))):
            raise ConfigurationError(f"the filter {text!r} cannot be read at {text[at:]!r}")
        name, value = term["key"] or "", term["value"]
        values = [value[1:-1]] if value.startswith('"') else value.split(",")
        if not all(values):
            what = f"{name}:" if name else repr(one_line(text, 80))
            raise ConfigurationError(f"the filter {what} has an empty value")
        yield Term("" if name == "text" else name, values, bool(term["no"]))
        at = term.end()


def unknown(name: str, names: Sequence[str], of: str = "") -> ConfigurationError:
    """Return the error for an unknown filter of a list."""
    near = of or nearest(name, names)
    return ConfigurationError(
        f"there is no filter {name}:{near}; there are {', '.join(f'{each}:' for each in names)}"
    )


def check_state(values: Iterable[str], states: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a state that no job can have."""
    for each in values:
        if not fits(states, [each]):
            raise ConfigurationError(
                f"there is no state {one_line(each, 60)!r}{nearest(each, states)}; "
                f"there are {', '.join(states)}"
            )


def moment(name: str, values: Sequence[str]) -> float:
    """Return the epoch time of `older:` or `newer:`. Raises `ConfigurationError`."""
    (span,) = values if len(values) == 1 else ("",)
    return time.time() - seconds_of_span(f"{name}:", span)


def seconds_of_span(what: str, text: str) -> float:
    """Return the seconds of a text like 90s, 5m or 2h. Raises `ConfigurationError`."""
    found = _SPAN.match(text)
    if found is None:
        shown = one_line(repr(text), 60)
        raise ConfigurationError(f"{what} takes a time like 90s, 5m, 2h, 3d or 1w, not {shown}")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > LONGEST:
        raise ConfigurationError(f"{what} takes at most 100 years, not {one_line(text, 60)}")
    return seconds


def fits(texts: Iterable[str], values: Iterable[str]) -> bool:
    """Whether one of the texts matches one of the values, which may be patterns."""
    several = [*values]
    return any(fnmatchcase(text, each) for text in texts for each in several)


def quoted(name: str) -> str:
    """Return a value that matches a name with any characters: `?` for those without an escape."""
    return f'"{re.sub(_UNSAID, "?", name)}"'


class Filter:
    """Selects jobs by terms, all of which must match.

    `name:value` compares; of several values, with commas, one must match. `!` before a term negates
    it, quotes keep spaces and commas. `error:` searches in the error, ignoring case; `older:` and
    `newer:` compare the age since it failed or was due (90s, 5m, 2h, 3d, 1w); `tag:` is one of the
    payload's tags; `args.a.b:` looks into its data, without secrets. A word without a name, or
    after `text:`, is searched in uuid, class and error. No terms select all. Raises
    `ConfigurationError` for a name that `listed` does not support, or an invalid value.
    """

    def __init__(self, text: str, listed: JobList = FAILED) -> None:
        self.queue: str | None = None
        """The only queue that can match, if the terms name one."""
        self.cause: str | None = None
        """The only cause that can match, if the terms name one."""
        self.asks_data = False
        """Whether it reads the payload's data."""
        self._where: list[Term] = []
        """The terms about queue and connection."""
        self._tests: list[_Test] = []
        for term in terms(text):
            listed.check(term.name)
            self._add(term)

    @property
    def is_empty(self) -> bool:
        """Whether it selects all jobs."""
        return not self._tests

    def fits(self, record: Filtered) -> bool:
        """Whether it selects a job."""
        return all(test(record) for test in self._tests)

    def allows(self, name: str, value: str) -> bool:
        """Whether jobs of a `queue` or a `connection` can match."""
        about_it = (each for each in self._where if each.name == name)
        return all(fits([value], each.values) is not each.turned for each in about_it)

    def _add(self, term: Term) -> None:
        name, values, turned = term
        if name in {"queue", "connection"}:
            self._where.append(term)
        self.asks_data = self.asks_data or name.startswith(_ARGS)
        if not turned and len(values) == 1 and not set("*?[") & set(values[0]):
            if name == "queue":
                self.queue = values[0]
            elif name == "cause":
                self.cause = values[0]
        test = _test(name, values)
        self._tests.append((lambda record: not test(record)) if turned else test)


def _test(name: str, values: Sequence[str]) -> _Test:
    if name == "state":
        check_state(values, STATES)
    if name in _TEXTS:
        texts = _TEXTS[name]
        return lambda record: fits(texts(record), values)
    if name in {"older", "newer"}:
        since = moment(name, values)
        if name == "older":
            return lambda record: record.failed_at < since
        return lambda record: record.failed_at >= since
    if name.startswith(_ARGS) and name != _ARGS:
        path = name.removeprefix(_ARGS).split(".")
        return lambda record: _is_at(path, _data(record), values)
    words = [each.casefold() for each in values]
    text_of = _error if name == "error" else _all_of
    return lambda record: any(each in text_of(record) for each in words)


def _error(record: Filtered) -> str:
    return tracebacks.brief_of(record.exception, _LONGEST_ERROR).casefold()


def _all_of(record: Filtered) -> str:
    return f"{record.uuid} {record.name} ".casefold() + _error(record)


def _data(record: Filtered) -> Any:  # noqa: ANN401 (any JSON value)
    message = _message(record)
    return (secret.redacted(message) or message).get("data", _NOTHING)


def _is_at(path: Sequence[str], data: Any, values: Sequence[str]) -> bool:  # noqa: ANN401 (any JSON value)
    """Whether the value at a path, or in a list there, is one of the values."""
    for part in path:
        data = data.get(part, _NOTHING) if isinstance(data, dict) else _NOTHING
    found = data if isinstance(data, list) else [data]
    return any(each is not _NOTHING and _text(each) in values for each in found)


def _text(value: object) -> str:
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
