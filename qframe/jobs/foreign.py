"""foreign: dispatches jobs that a Laravel application runs, or Celery's workers."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from qframe.contracts.identity import JobId
from qframe.exceptions import InvalidJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.exponential import Exponential
from qframe.jobs.options import Options, check_given
from qframe.jobs.roundtrip import plain
from qframe.payload import timing
from qframe.payload.envelope import WIRE
from qframe.payload.text import nearest, one_line

log = logging.getLogger("qframe")


class ForeignOptions(TypedDict, total=False):
    """The options of a foreign job."""

    connection: str | None
    queue: str | None
    delay: timing.When
    priority: int | None
    tries: int | None
    max_exceptions: int | None
    backoff: int | Sequence[int] | Exponential | None
    timeout: int | None
    fail_on_timeout: bool
    retry_until: float | timedelta | datetime | None
    display_name: str | None
    tags: Sequence[str]
    expires: timing.When | None
    wire: Literal["laravel", "celery"]


_DEEPEST = 510
"""The deepest nesting of lists and dicts: PHP reads 511 levels, including the payload."""
_INTEGERS = range(-(2**63), 2**63)
_UNKNOWN_TO_CELERY = {
    "priority", "tries", "max_exceptions", "backoff", "fail_on_timeout", "retry_until", "tags",
}  # fmt: skip


class Foreign(Options):
    """A job of another program, made by `foreign`; `dispatch` and `bulk` accept it like any job.

    Listeners of `JobQueueing` and `JobQueued` get it as `event.job`, with its `name` and `data`.
    """

    def __init__(self, name: str, data: object, options: ForeignOptions) -> None:
        self.name = _checked_name(name)
        self.wire = options.get("wire", "laravel")
        for option, value in options.items():
            self._check(option, value)
        vars(self).update(options)
        if self.wire == "celery":
            vars(self)["besides"] = {WIRE: self.wire}
        for option in ("timeout", "backoff"):
            vars(self)[option] = self._whole(option, getattr(self, option))
        vars(self)["fixed_name"] = name
        if not self.display_name:  # the part before `@`, as in Laravel
            vars(self)["display_name"] = name.partition("@")[0]
        self.data = self._checked(data, "data")
        if self.wire == "celery":
            self._check_arguments()

    def __repr__(self) -> str:
        return f"<foreign {self.name}>"

    # -- called by `payload.create` -------------------------------------------------------------

    def check_reachable(self) -> None:
        """Do nothing: only the other program knows."""

    def wire_name(self) -> str:
        """Return the given name, with `@method`."""
        return self.name

    def shown_name(self, name: str) -> str:
        return str(self.display_name or name)

    def retry_deadline(self) -> int | None:
        """Return `retry_until` as an epoch time in whole seconds, rounded up."""
        until = super().retry_deadline()
        return None if until is None else math.ceil(until)

    def to_data(self) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the data, which was checked when the job was made."""
        return self.data

    # -- checks ---------------------------------------------------------------------------------

    def _check(self, option: str, value: object) -> None:
        if option == "wire":
            if value not in ("laravel", "celery"):
                raise InvalidJob(f"{self.name}: wire is 'laravel' or 'celery', not {value!r}")
            return
        if self.wire == "celery" and option in _UNKNOWN_TO_CELERY:
            raise InvalidJob(f"{self.name}: {option} is set on Celery's task, not in a message")
        if option == "once":
            raise InvalidJob(f"{self.name}: give the key at its dispatch, .once(key, within=...)")
        if option == "group":
            raise InvalidJob(f"{self.name}: groups are for jobs that qframe runs")
        if option == "debounce" or option.startswith("unique"):
            raise InvalidJob(
                f"{self.name}: {option} is for jobs that qframe runs: Laravel would not free the "
                "lock; let the Laravel job be unique"
            )
        if option not in ForeignOptions.__annotations__ or (
            option == "expires" and self.wire == "laravel"
        ):
            raise InvalidJob(
                f"{self.name}: Laravel's jobs have no option {one_line(option, 60)!r}"
                f"{nearest(option, ForeignOptions.__annotations__)}"
            )
        if callable(value):
            raise InvalidJob(f"{self.name}: {option} cannot be a function: PHP could not call it")
        check_given(self.name, option, value)

    def _check_arguments(self) -> None:
        if "@" in self.name:
            raise InvalidJob(f"{self.name} is no name of a task")
        if not isinstance(self.data, dict | list):
            raise InvalidJob(
                f"{self.name}: give the task's arguments, named in a dict or positional in a list"
            )

    def _whole(self, option: str, seconds: Any) -> Any:  # noqa: ANN401 (one number, or several)
        if isinstance(seconds, Exponential):
            seconds = seconds.on_the_wire()
        if isinstance(seconds, Sequence):
            return [self._whole(option, each) for each in seconds]
        if seconds is not None and seconds != int(seconds):
            raise InvalidJob(f"{self.name}: {option} must be whole seconds for PHP, not {seconds}")
        return None if seconds is None else int(seconds)

    def _checked(self, value: Any, place: str, depth: int = 1) -> Any:  # noqa: ANN401 (any JSON value)
        """Copy data. Raises `InvalidJob` with the place of a value that would change on the way."""
        if isinstance(value, dict | list | tuple) and depth > _DEEPEST:
            raise InvalidJob(f"{self.name}: the data is nested deeper than PHP reads")
        if isinstance(value, dict):
            named: dict[str, Any] = {}
            for key, each in value.items():
                if type(key) not in {str, JobId}:
                    kind = type(key).__name__
                    raise self._refused(place, f"has a key that is a {kind}; JSON's are text")
                self._check_text(key, place)
                named[key] = self._checked(each, f"{place}.{key}", depth + 1)
            return named
        if isinstance(value, list | tuple):
            items = []
            for number, each in enumerate(value):
                items.append(self._checked(each, f"{place}.{number}", depth + 1))
            return items
        self._check_scalar(value, place)
        return value

    def _check_scalar(self, value: object, place: str) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refused(place, f"is {value}, which is no number in JSON")
        if not plain(value):
            kind = type(value).__name__
            raise self._refused(
                place, f"is a {kind}; give what JSON has: text, a number, a list, a dict"
            )
        if isinstance(value, str):
            self._check_text(value, place)
        elif isinstance(value, int) and value not in _INTEGERS:
            raise self._refused(place, "is an integer beyond the 64 bits PHP has; give text")
        elif isinstance(value, int | float) and _rounded_by_lua(value):
            self._warn_of_rounding(place)

    def _check_text(self, text: str, place: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._refused(place, "holds a lone surrogate, which UTF-8 cannot carry") from None

    def _refused(self, place: str, why: str) -> InvalidJob:
        return InvalidJob(f"{self.name}: {one_line(place, 200)} {why}")

    def _warn_of_rounding(self, place: str) -> None:
        if self.name not in _warned:
            _warned.add(self.name)
            log.warning(
                "%s: %s has more digits than the 14 that Laravel's Redis driver keeps when it "
                "tries a job again; send it as text",
                self.name,
                one_line(place, 200),
            )


Dispatchable = JobDefinition | Foreign
"""Everything that can be dispatched."""

_warned: set[str] = set()


def foreign(name: str, data: Any = (), /, **options: Unpack[ForeignOptions]) -> Foreign:  # noqa: ANN401 (any JSON value)
    r"""Make a job that another program runs: `dispatch(foreign("App\\Import@handle", {"id": 7}))`.

    By default that is Laravel's worker.

    `name` is what Laravel resolves from its container, with the method after `@` (Laravel's default
    is `fire`). `data` is any JSON value; PHP sees lists and dicts as arrays.

    The options are Laravel's, with times in whole seconds; without one, the Laravel worker's own
    applies: `tries`, `max_exceptions`, `backoff` (a number or a sequence), `timeout`,
    `fail_on_timeout`, `retry_until` (seconds or timedelta after dispatch, or aware datetime),
    `display_name` (default: the part before `@`), `tags`; and for the dispatch: `connection`,
    `queue`, `delay`, `priority`.

    With `wire="celery"` it is a task of Celery, on a connection to RabbitMQ: `name` is the task's,
    and `data` its arguments, a list of positional ones or a dict of named ones. It has the options
    `timeout` (the hard limit), `expires` (seconds or timedelta after dispatch, or aware datetime),
    `display_name` (its shadow), `connection`, `queue` and `delay`. Nothing awaits its result.

    Raises `InvalidJob`, with the place, for values that JSON or PHP would change: NaN, infinities,
    keys that are not text, lone surrogates, integers beyond 64 bits, objects of any other type.
    """
    return Foreign(name, data, options)


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidJob(f"a foreign job's name is text, not {type(name).__name__}")
    shown = one_line(repr(name), 120)
    if not name.isprintable() or " " in name:
        raise InvalidJob(
            f"{shown} is no name of a job; write its backslashes as \\\\, or the text as r'...'"
        )
    class_name, at, method = name.partition("@")
    if not class_name or (at and not method.isidentifier()):
        raise InvalidJob(f"{shown} is no name of a job: give Class@method")
    return name


def _rounded_by_lua(value: float) -> bool:
    """Whether Lua's JSON would change a number: it has only floats, and writes 14 digits."""
    if isinstance(value, int):
        return abs(value) >= 10**14
    return float(f"{value:.14g}") != value
