"""Rules of alerts in plain text, such as `wait > 60s on mail`.

A rule is a subject, for some with a comparison, and clauses in any order: `in 5m`, `on QUEUES`, `of
CLASS`, `at CONNECTION`, `for 2m`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from qframe.exceptions import ConfigurationError
from qframe.payload.text import is_queue_pattern, nearest, one_line, queue_pattern

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOKEN = re.compile(r"[<>]=?|=+|[^\s<>=]+")
_SHORTEST_SPAN, _LONGEST_SPAN = 60.0, 86400.0
_LONGEST = 366 * 86400.0
_LARGEST = 10**12


class InvalidRule(ConfigurationError, ValueError):
    """A rule of alerts is empty or has an unknown part."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a rule."""

    words: str
    value: str = ""
    """The type of its limit: `time`, `number`, `count` (in a time, also `%`); "": none."""
    clauses: tuple[str, ...] = ()
    example: str = ""


COUNTED = {
    "failed": "failed",
    "retried": "retried",
    "released": "released",
    "skipped": "skipped",
    "cancelled": "cancelled",
    "lost": "lost",
    "timed out": "timed out",
    "done": "done",
    "started": "started",
    "pushed": "pushed",
}
"""Subjects that the metrics count, and their names there."""
SIZES = ("size", "ready", "delayed", "reserved", "buried")
OF_OUTBOX = ("lag of the relay", "set aside")
DOWN = "down"
BEHIND = "behind"

_OF_QUEUE = ("on", "at", "for")
SUBJECTS = {
    each.words: each
    for each in (
        Subject("wait", "time", _OF_QUEUE, "wait > 60s on mail"),
        *(Subject(name, "number", _OF_QUEUE, f"{name} > 1000 on mail") for name in SIZES),
        *(
            Subject(name, "count", ("in", "of", *_OF_QUEUE), f"{name} > 10 in 5m")
            for name in COUNTED
        ),
        Subject("run", "time", ("of", *_OF_QUEUE), "run > 10m of app.SendMail"),
        Subject("paused", "time", _OF_QUEUE, "paused > 30m on mail"),
        Subject(BEHIND, "time", ("within", *_OF_QUEUE), "behind > 1h within 3h on mail"),
        Subject("no worker", "", _OF_QUEUE, "no worker on mail"),
        Subject("dead worker", "", _OF_QUEUE, "dead worker"),
        Subject("lag of the relay", "time", ("at", "for"), "lag of the relay > 30s"),
        Subject("set aside", "number", ("at", "for"), "set aside > 0"),
        Subject("connection", "", ("for",), "connection redis down"),
    )
}
_CLAUSES = ("on", "of", "at", "in", "within", "for")


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule. Times are in seconds."""

    text: str
    subject: str
    above: bool = True
    limit: float = 0.0
    percent: bool = False
    span: float = 0.0
    """The period in which it counts, or of what will be: within which it will be so."""
    queues: tuple[str, ...] = ()
    """Names and patterns; empty for all queues."""
    job: str = ""
    """A name or pattern of classes; "" for all."""
    connection: str = ""
    lasting: float = 0.0
    """How long it must be broken before the alert is raised."""

    @property
    def is_counted(self) -> bool:
        """Whether the metrics count its subject."""
        return self.subject in COUNTED

    @property
    def names(self) -> tuple[str, ...]:
        """The queues given by name, not by pattern."""
        return tuple(each for each in self.queues if not is_queue_pattern(each))

    def is_about(self, queue: str) -> bool:
        """Whether it is about a queue."""
        return not self.queues or any(fnmatchcase(queue, each) for each in self.queues)

    def is_broken_by(self, value: float) -> bool:
        """Whether a value breaks the rule."""
        return value > self.limit if self.above else value < self.limit


def parse(given: object) -> Rule:
    """Parse a rule.

    Raises `InvalidRule`, one line with the wrong part and the nearest right one.
    """
    if not isinstance(given, str) or not given.strip():
        raise InvalidRule(f"{one_line(repr(given), 60)} is no rule: write {_examples()}")
    return _RuleReader(" ".join(given.split())).rule()


class _RuleReader:
    def __init__(self, text: str) -> None:
        if len(text) > 300 or not text.isprintable():  # noqa: PLR2004 (longer than any)
            raise InvalidRule(f"{one_line(text, 60)!r} is no rule: write {_examples()}")
        self.text = text
        self.words = _TOKEN.findall(text)

    def rule(self) -> Rule:
        subject = self._subject()
        if subject.words == "connection":
            connection = self._connection()
            rule = Rule(self.text, DOWN, connection=connection)
            return self._with_clauses(rule, subject)
        above, limit, percent = self._comparison(subject)
        rule = self._with_clauses(Rule(self.text, subject.words, above, limit, percent), subject)
        if subject.value == "count" and not rule.span:
            raise self._wrong(f"says not in how long: add 'in 5m', as in {subject.example!r}")
        if subject.words == BEHIND and not rule.span:
            raise self._wrong(f"says not how soon: add 'within 3h', as in {subject.example!r}")
        return rule

    def _wrong(self, why: str) -> InvalidRule:
        return InvalidRule(f"the rule {self.text!r} {why}")

    def _next(self) -> str:
        return self.words.pop(0) if self.words else ""

    def _subject(self) -> Subject:
        for phrase in sorted(SUBJECTS, key=len, reverse=True):
            known = phrase.split()
            if self.words[: len(known)] == known:
                del self.words[: len(known)]
                return SUBJECTS[phrase]
        stop = {"<", ">", "<=", ">=", "=", "==", "on", "at", "in", "within", "for"}
        head: list[str] = []
        for word in self.words:
            if word in stop:
                break
            head.append(word)
        wording = " ".join(head) or self.words[0]
        near = nearest(wording, SUBJECTS) or nearest(head[0] if head else wording, SUBJECTS)
        raise self._wrong(f"begins with {wording!r}{near}; rules are like {_examples()}")

    def _connection(self) -> str:
        name = self._next()
        if name == DOWN and self.words[:1] != [DOWN]:
            return ""
        end = self._next()
        if end != DOWN:
            wording = f"has {end!r} where" if end else "ends where"
            raise self._wrong(
                f"{wording} 'down' belongs{nearest(end, [DOWN])}: 'connection redis down'"
            )
        return name

    def _comparison(self, subject: Subject) -> tuple[bool, float, bool]:
        if not subject.value:
            if self.words and self.words[0][0] in "<>=":
                raise self._wrong(f"compares, and {subject.words!r} is no number")
            return True, 0.0, False
        sign = self._next()
        if sign not in {"<", ">"}:
            wording = f"has {sign!r} where" if sign else "ends where"
            raise self._wrong(f"{wording} '>' or '<' belongs, as in {subject.example!r}")
        if sign == "<" and subject.value == "time":
            raise self._wrong(f"has '<' where '>' belongs, as in {subject.example!r}")
        value = self._next()
        percent = subject.value == "count" and value.endswith("%")
        if subject.value == "time":
            return True, self._time(value, subject.example), False
        number = value[:-1] if percent else value
        if not _NUMBER.fullmatch(number):
            wording = f"has {value!r} where" if value else "ends where"
            raise self._wrong(f"{wording} a number belongs, as in {subject.example!r}")
        limit = float(number)
        if limit > _LARGEST:
            raise self._wrong(f"has {one_line(value, 40)!r}, and a number is at most {_LARGEST:,}")
        return sign == ">", limit, percent

    def _time(self, text: str, example: str) -> float:
        found = _TIME.fullmatch(text)
        if found is None:
            wording = f"has {text!r} where" if text else "ends where"
            raise self._wrong(f"{wording} a time belongs (30s, 5m, 2h, 1d), as in {example!r}")
        seconds = float(found[1]) * _UNITS[found[2] or "s"]
        if seconds > _LONGEST:
            raise self._wrong(f"has {one_line(text, 40)!r}, and a time is at most 366d")
        return seconds

    def _with_clauses(self, rule: Rule, subject: Subject) -> Rule:
        found: set[str] = set()
        while word := self._next():
            if word not in subject.clauses:
                raise self._wrong(self._misplaced(word, subject))
            value = self._next()
            if not value or word in found:
                raise self._wrong(f"has {word!r} twice" if value else f"ends after {word!r}")
            found.add(word)
            rule = self._with_clause(rule, word, value)
        return rule

    def _misplaced(self, word: str, subject: Subject) -> str:
        known = [each for each in _CLAUSES if each in subject.clauses]
        if word in _CLAUSES:
            return f"has {word!r}, which {subject.words!r} does not take; it takes {_listed(known)}"
        return f"has {word!r}{nearest(word, known)} where one of {_listed(known)} belongs"

    def _with_clause(self, rule: Rule, word: str, value: str) -> Rule:
        if word == "on":
            return replace(rule, queues=self._queues(value))
        if word == "of":
            return replace(rule, job=value)
        if word == "at":
            return replace(rule, connection=value)
        seconds = self._time(value, f"{word} 5m")
        if word == "for":
            return replace(rule, lasting=seconds)
        if not _SHORTEST_SPAN <= seconds <= _LONGEST_SPAN:
            can = "be forecast" if word == "within" else "be counted in"
            does = "looks ahead" if word == "within" else "counts in"
            raise self._wrong(f"{does} {value!r}: from 1m to 1d can {can}")
        return replace(rule, span=seconds)

    def _queues(self, value: str) -> tuple[str, ...]:
        while self.words and (value.endswith(",") or self.words[0].startswith(",")):
            value += self._next()
        try:
            return tuple(queue_pattern(each) for each in value.split(","))
        except ConfigurationError as error:
            raise self._wrong(f"names a queue wrongly: {error}") from None


def check_connections(rules: Iterable[Rule], known: Sequence[str]) -> None:
    """Raise `InvalidRule` for a rule with an unknown connection."""
    for each in rules:
        if each.connection and each.connection not in known:
            raise InvalidRule(
                f"the rule {each.text!r} names the connection {each.connection!r}"
                f"{nearest(each.connection, known)}, and there is none"
            )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(repr(each) for each in words)


def _examples() -> str:
    return "'wait > 60s on mail', 'failed > 10 in 5m', 'no worker on mail', 'dead worker'"
