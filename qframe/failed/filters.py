"""Filter: the jobs that `queue:mail class:app.* error:Timeout older:5m args.user_id:7` chooses."""

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


class Filtered(Protocol):
    """What a filter sees of a job: a failed one has all of it, one that waits no exception."""

    @property
    def uuid(self) -> str: ...  # noqa: D102 (as `FailedJob` says)
    @property
    def connection(self) -> str: ...  # noqa: D102
    @property
    def queue(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def payload(self) -> bytes: ...  # noqa: D102
    @property
    def exception(self) -> str: ...  # noqa: D102
    @property
    def failed_at(self) -> float: ...  # noqa: D102
    @property
    def hosts(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102


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
    """Give the tags of a job, as its payload has them."""
    return tags.read(_message(record))


def _message(record: Filtered) -> Mapping[str, Any]:
    read: Mapping[str, Any] | None = getattr(record, "message", None)
    if read is not None:  # one that waits: its payload is read once
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
"""What is compared whole; `*`, `?` and `[abc]` in a value are a pattern's."""
NAMES = (*_TEXTS, "error", "older", "newer", f"{_ARGS}NAME", "text")
"""What can be asked for."""
STATES = (
    *("ready", "delayed", "held", "running", "buried"),
    *("complete", "skipped", "failed", "cancelled"),
)


class JobList(NamedTuple):
    """A list of jobs: who is in it, and by what they can be chosen."""

    who: str
    names: tuple[str, ...]

    @classmethod
    def without(cls, who: str, *unknown: str) -> JobList:
        """Give a list that does not know everything of its jobs."""
        return cls(who, tuple(each for each in NAMES if each not in unknown))

    def check(self, name: str) -> None:
        """Raise `ConfigurationError` where the jobs cannot be chosen by that."""
        asked = f"{_ARGS}NAME" if name.startswith(_ARGS) and name != _ARGS else name
        if name and asked not in self.names:
            raise unknown(name, self.names, f" of {self.who}" if asked in NAMES else "")


FAILED = JobList("failed jobs", NAMES)
WAITING = JobList.without("jobs that wait", "cause", "error", "host")
RUNNING = JobList.without("jobs that run", "cause", "error")
ENDED = JobList.without("jobs that have ended", "cause", f"{_ARGS}NAME")


class Term(NamedTuple):
    """One term of a filter."""

    name: str
    """"" of a word without one."""
    values: list[str]
    turned: bool
    """Whether it is to hold nowhere."""


def terms(text: str) -> Iterator[Term]:
    """Read the terms of a filter; raises `ConfigurationError` for what is none."""
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
    """Give the error for a name that a list has no filter of."""
    near = of or nearest(name, names)
    return ConfigurationError(
        f"there is no filter {name}:{near}; there are {', '.join(f'{each}:' for each in names)}"
    )


def check_state(values: Iterable[str], states: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a state that nothing can have."""
    for each in values:
        if not fits(states, [each]):
            raise ConfigurationError(
                f"there is no state {one_line(each, 60)!r}{nearest(each, states)}; "
                f"there are {', '.join(states)}"
            )


def moment(name: str, values: Sequence[str]) -> float:
    """Give the epoch time that `older:` or `newer:` says; raises `ConfigurationError`."""
    (span,) = values if len(values) == 1 else ("",)
    found = _SPAN.match(span)
    if found is None:
        raise ConfigurationError(f"{name}: takes a time like 90s, 5m, 2h, 3d or 1w, not {span!r}")
    return time.time() - float(found[1]) * _UNITS[found[2]]


def fits(texts: Iterable[str], values: Iterable[str]) -> bool:
    """Whether one of some texts is one of the values, which may be patterns."""
    several = [*values]
    return any(fnmatchcase(text, each) for text in texts for each in several)


def quoted(name: str) -> str:
    """Give a value that chooses a name, whatever is in it: `?` is what a filter cannot say."""
    return f'"{re.sub(_UNSAID, "?", name)}"'


class Filter:
    """Chooses jobs by terms, all of which have to hold.

    `name:value` compares; of several values, by commas, one has to. `!` before a term turns it
    round, quotes keep spaces and commas. `error:` is contained in the error, whatever its case;
    `older:` and `newer:` are since when it failed, or is due (90s, 5m, 2h, 3d, 1w); `tag:` is one
    of the payload's tags; `args.a.b:` looks into its data, where secrets are not seen. A word
    without a name, or after `text:`, is in the uuid, the class or the error. No term chooses all.
    Raises `ConfigurationError` for a name that `listed` has none of, or a value that is none.
    """

    def __init__(self, text: str, listed: JobList = FAILED) -> None:
        self.queue: str | None = None
        """The one queue they are in, where the terms say so."""
        self.cause: str | None = None
        """The one cause they have, where the terms say so."""
        self.asks_data = False
        """Whether it looks into the payload's data."""
        self._where: list[Term] = []
        """The terms about the queue or the connection they are in."""
        self._tests: list[_Test] = []
        for term in terms(text):
            listed.check(term.name)
            self._add(term)

    @property
    def is_empty(self) -> bool:
        """Whether it chooses all."""
        return not self._tests

    def fits(self, record: Filtered) -> bool:
        """Whether a job is chosen."""
        return all(test(record) for test in self._tests)

    def allows(self, name: str, value: str) -> bool:
        """Whether jobs of a `queue` or a `connection` can be chosen."""
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
    """Whether there is one of the values at a path, or in a list that is there."""
    for part in path:
        data = data.get(part, _NOTHING) if isinstance(data, dict) else _NOTHING
    found = data if isinstance(data, list) else [data]
    return any(each is not _NOTHING and _text(each) in values for each in found)


def _text(value: object) -> str:
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
