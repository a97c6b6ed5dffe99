"""Options: what a job class may declare, with checks of each option and of names."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

from qframe.contracts.queue import LARGEST_BOUND
from qframe.contracts.status import MOST_LINES
from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.jobs import groups
from qframe.jobs.chunk import Chunk
from qframe.jobs.exponential import Exponential
from qframe.jobs.hooks import is_generator
from qframe.jobs.typed import MYPY
from qframe.jobs.uniqueness import DEFAULT_FOR, OnceRule, UniqueRule
from qframe.payload import timing
from qframe.payload.envelope import LARGEST_VERSION
from qframe.payload.text import nearest, one_line, queue_name

Seconds = int | float
Delays = Seconds | Sequence[Seconds] | Exponential
"""Seconds before a retry: always as many, or after the first, second, ... failure."""
Backoff = Delays | Callable[..., Delays]
Deadline = Seconds | timedelta | datetime | Callable[..., Seconds | timedelta | datetime]

Middleware = Callable[..., Any]
"""Called in a job's place, with the job and `call_next` (`qframe.middleware`)."""
Middlewares = Sequence[Middleware] | Callable[..., Iterable[Middleware] | None]
Identity = str | int | Callable[..., str | int]
Tags = Sequence[str] | Callable[..., Sequence[str]]

T = TypeVar("T")


class OrMethod(Generic[T]):
    """To type checkers: an option that a class sets to a value, or defines as a method."""

    def __get__(self, job: object, owner: object) -> T:
        """Return its value, or the method."""
        raise NotImplementedError


class Options:
    """The options of a job with their defaults, and their values in the payload."""

    connection: ClassVar[str | None] = None
    queue: ClassVar[str | None] = None
    delay: ClassVar[timing.When] = 0
    priority: ClassVar[int | None] = None
    tries: ClassVar[int | None] = None
    max_exceptions: ClassVar[int | None] = None
    timeout: ClassVar[Seconds | None] = None
    concurrency: ClassVar[int | None] = None
    fail_on_timeout: ClassVar[bool] = False
    expires: ClassVar[Seconds | timedelta | datetime | None] = None
    track: ClassVar[bool | Seconds | timedelta] = False
    keep_log: ClassVar[int] = 0
    unique: ClassVar[bool] = False
    unique_for: ClassVar[Seconds | timedelta] = DEFAULT_FOR
    unique_until: ClassVar[Literal["handled", "started"]] = "handled"
    debounce: ClassVar[Seconds | timedelta | None] = None
    once: ClassVar[Seconds | timedelta | None] = None
    chunk: ClassVar[Chunk | None] = None
    encrypted: ClassVar[bool] = False
    give_back: ClassVar[bool] = False
    missing: ClassVar[Literal["skip", "fail", "retry"]] = "fail"
    job_name: ClassVar[str | None] = None

    # What may also be a method. Declared with its type, a method in its place would be an error to
    # pyright, since it is no ClassVar, and to ty, since one could write to it. So it is told to
    # each of them in the one way that it accepts; mypy alone checks all types.
    if MYPY or not TYPE_CHECKING:
        backoff: ClassVar = cast("Backoff | None", None)
        retry_until: ClassVar = cast("Deadline | None", None)
        unique_id: ClassVar = cast("Identity | None", None)
        group: ClassVar = cast("str | Callable[..., str] | None", None)
        display_name: ClassVar = cast("str | Callable[..., str] | None", None)
        tags: ClassVar = cast("Tags", ())
        middleware: ClassVar = cast("Middlewares", ())
    else:
        backoff = OrMethod["Backoff | None"]()
        retry_until = OrMethod["Deadline | None"]()
        unique_id = OrMethod["Identity | None"]()
        group = OrMethod["str | Callable[..., str] | None"]()
        display_name = OrMethod["str | Callable[..., str] | None"]()
        tags = OrMethod["Tags"]()
        middleware = OrMethod["Middlewares"]()

    fixed_name: ClassVar[str] = ""
    """The name on the wire, if it is known beforehand."""
    is_reachable: ClassVar[bool] = True
    """Whether a worker can certainly find it."""
    besides: Mapping[str, Any] | None = None
    """Additional keys of its payload, set by something other than its class."""
    unique_rule: ClassVar[UniqueRule | None] = None
    """The uniqueness rule of the options."""
    once_rule: ClassVar[OnceRule | None] = None
    """The rule of the option `once`."""
    written_version: ClassVar[int | None] = None
    """The option `version`: the version of its data, which its payloads carry."""
    model_fields: ClassVar[Mapping[str, str]] = {}
    """The fields that are or hold models, each with the name of its model."""
    secret_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that are or hold a `Secret`."""
    in_clear: ClassVar[bool] = False
    """Whether it has such fields and does not set `encrypted`."""

    def wire_besides(
        self,
        more: Mapping[str, Any] | None,
        seal: Callable[[Any], dict[str, str]] | None,  # noqa: ARG002 (for jobs that have more to hide)
    ) -> dict[str, Any]:
        """Return `besides` and `more` as the payload has them; `seal` encrypts a value."""
        return {**(self.besides or {}), **(more or {})}

    def wire_backoff(self) -> str | None:
        """Return the backoff as Laravel writes it.

        None for a method, which is called at a failure.
        """
        backoff = self.backoff
        if backoff is None or callable(backoff):
            return None
        if isinstance(backoff, Exponential):
            backoff = backoff.on_the_wire()
        seconds = backoff if isinstance(backoff, Sequence) else (backoff,)
        return ",".join(str(value).removesuffix(".0") for value in seconds)

    def wire_group(self) -> str:
        """Return the group of the job. Raises `InvalidJob`."""
        return groups.name_of(self)

    def retry_deadline(self) -> float | None:
        """Return `retry_until` as an epoch time. Raises `InvalidJob`."""
        until = self._retry_until()
        return None if until is None else seconds(until, _deadline)

    def _retry_until(self) -> timing.When | None:
        until = self.retry_until
        if not callable(until):
            return until
        given: timing.When | None = until()
        if given is not None:
            seconds(given, lambda it: timing.moment(it, f"{type(self).__name__}.retry_until"))
        return given

    def relative_deadlines(self) -> dict[str, float]:
        """Return the deadlines that count from the dispatch, in seconds, by payload key.

        Raises `InvalidJob`.
        """
        if self.retry_until is None and self.expires is None:
            return {}
        dates = {"retryUntil": self._retry_until(), "expiresAt": self.expires}
        return {
            key: seconds(value)
            for key, value in dates.items()
            if value is not None and not isinstance(value, datetime)
        }


def seconds(given: Any, read: Callable[[Any], float] = timing.seconds_until) -> float:  # noqa: ANN401 (what `read` takes)
    """Return a delay, or what `read` reads, in seconds. Raises `InvalidJob`."""
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from None


def _deadline(until: Any) -> float:  # noqa: ANN401 (what it is, is the question)
    return timing.moment(until, "retry_until")


def _is(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _count(value: Any) -> bool:  # noqa: ANN401 (what it is, is the question)
    return _is(value, int) and value >= 0


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _duration(value: Any) -> bool:  # noqa: ANN401 (as above)
    return _is(value, int, float) and 0 <= value <= timing.LONGEST


def _durations(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return bool(value) and all(_duration(each) for each in value)
    return isinstance(value, Exponential) or _duration(value)


def _when(value: Any) -> bool:  # noqa: ANN401 (as above)
    try:
        timing.moment(value, "")
    except (TypeError, ValueError):
        return False
    return True


def _bounded(value: object) -> bool:
    return not isinstance(value, datetime) and bool(value) and _when(value)


def _queue(value: object) -> bool:
    return isinstance(value, str) and bool(queue_name(value))


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(_text(each) for each in value)


MIDDLEWARE_YIELDS = (
    "a middleware has `yield` in it, so calling it would run nothing: it returns call_next(job)"
)


def _middleware(value: object) -> bool:
    if isinstance(value, list | tuple) and any(map(is_generator, value)):
        raise ValueError(MIDDLEWARE_YIELDS)
    return isinstance(value, list | tuple) and all(
        callable(each) and not isinstance(each, type) for each in value
    )


_MOST = 1_000_000
"""The most tries of a job: more than anybody waits for, and what every backend can count."""

OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "connection": (_text, "the name of a connection"),
    "queue": (_queue, "the name of a queue"),
    "delay": (_when, "seconds, a timedelta or an aware datetime"),
    "priority": (
        lambda v: _count(v) and v < 2**32,
        "a whole number from 0, the first, to 4294967295",
    ),
    "tries": (lambda v: _count(v) and v <= _MOST, f"a whole number from 0 to {_MOST:,}"),
    "max_exceptions": (
        lambda v: _count(v) and 1 <= v <= _MOST,
        f"a whole number from 1 to {_MOST:,}",
    ),
    "backoff": (_durations, "seconds, a sequence of seconds, an Exponential, or a method"),
    "timeout": (_duration, "seconds, from 0 to 100 years"),
    "concurrency": (
        lambda v: _count(v) and 1 <= v <= LARGEST_BOUND,
        f"a whole number from 1 to {LARGEST_BOUND}",
    ),
    "fail_on_timeout": (_flag, "True or False"),
    "retry_until": (_when, "seconds, a timedelta, an aware datetime, or a method"),
    "expires": (_when, "seconds, a timedelta or an aware datetime"),
    "track": (
        lambda v: _flag(v) or _bounded(v),
        "True, or for how many seconds, as a number or timedelta",
    ),
    "keep_log": (
        lambda v: _count(v) and 0 <= v <= MOST_LINES,
        f"how many lines, from 0 to {MOST_LINES}",
    ),
    "unique": (_flag, "True or False"),
    "unique_id": (lambda v: _text(v) or _count(v), "a text, a whole number, or a method"),
    "unique_for": (_bounded, "more than 0 seconds, or a timedelta"),
    "unique_until": (lambda v: v in ("handled", "started"), "'handled' or 'started'"),
    "debounce": (_bounded, "more than 0 seconds, or a timedelta"),
    "once": (_bounded, "more than 0 seconds, or a timedelta"),
    "chunk": (lambda v: isinstance(v, Chunk), "a Chunk, such as Chunk(100, within=2)"),
    "group": (groups.is_name, "a text like 'shop:{shop}', or a method"),
    "encrypted": (_flag, "True or False"),
    "give_back": (_flag, "True or False"),
    "missing": (lambda v: v in ("skip", "fail", "retry"), "'skip', 'fail' or 'retry'"),
    "version": (
        lambda v: _count(v) and 1 <= v <= LARGEST_VERSION,
        f"a whole number from 1 to {LARGEST_VERSION}",
    ),
    "job_name": (
        lambda v: _text(v) and v.isprintable(),
        "a name of printable characters",
    ),
    "display_name": (_text, "a name, or a method"),
    "tags": (_texts, "a list of names, or a method"),
    "middleware": (
        _middleware,
        "a list of middleware (each callable, and no class), or a method",
    ),
}
_METHODS = {"backoff", "retry_until", "display_name", "tags", "middleware", "unique_id", "group"}
_HOOKS = {"handle", "set_up", "tear_down", "succeeded", "failed"}


def check_declaration(cls: type, base: type) -> None:
    """Raise `JobDefinitionError` for declarations that a subclass of `base` must not have."""
    public = {name for name in dir(base) if not name.startswith("_")} | {"handle"}
    annotations = annotations_of(cls)
    if "__init__" in vars(cls):
        raise JobDefinitionError(
            f"{cls.__name__}.__init__ would never be called: declare the job's fields as annotated "
            "attributes, such as user_id: int"
        )
    for name, annotation in annotations.items():
        if name in public and "ClassVar" not in str(annotation):
            raise JobDefinitionError(f"{cls.__name__}.{name}: {_no_field(name)}")
        if "InitVar[" in str(annotation):
            raise JobDefinitionError(
                f"{cls.__name__}.{name}: an InitVar is no field, so a worker would not have its "
                "value; make it a field"
            )
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if name in OPTIONS:
            check_option(cls.__name__, name, value)
        elif name in public - _HOOKS:
            raise JobDefinitionError(
                f"{cls.__name__}.{name}: the name is Queueable's own; choose another"
            )
        elif name not in annotations:
            _check_stray(cls, name, value)


def _no_field(name: str) -> str:
    if name in OPTIONS:
        return (
            f"{name!r} is an option of every job and cannot be a field; set the option without "
            f"annotation ({name} = ...), or name the field differently"
        )
    return f"a field cannot be called {name!r}, which is Queueable's own; name it differently"


def check_given(owner: str, name: str, value: object) -> None:
    """Raise `InvalidJob` for a wrong value of an option that a call sets."""
    try:
        check_option(owner, name, value)
    except JobDefinitionError as error:
        raise InvalidJob(str(error)) from None


def check_option(owner: str, name: str, value: object) -> None:
    """Raise `JobDefinitionError` for an unknown option or a wrong type."""
    if name not in OPTIONS:
        raise JobDefinitionError(f"{owner}: unknown option {name!r}{nearest(name, OPTIONS)}")
    valid, wanted = OPTIONS[name]
    if name in _METHODS and isinstance(value, types.FunctionType):
        return
    if value is None and getattr(Options, name, None) is None:
        return
    try:
        right = valid(value)
    except ValueError as error:
        raise JobDefinitionError(f"{owner}.{name}: {error}") from None
    if not right:
        raise JobDefinitionError(
            f"{owner}.{name} must be {wanted}, not {one_line(repr(value), 60)}"
        )


def _check_stray(cls: type, name: str, value: object) -> None:
    """Refuse a misspelt option, hook or field."""
    if isinstance(value, types.FunctionType):
        plain = name.replace("_", "").lower()
        for hook in _HOOKS | _METHODS:
            if plain == hook.replace("_", "") and hook not in vars(cls):
                raise JobDefinitionError(
                    f"{cls.__name__}.{name} is never called (did you mean {hook!r}?)"
                )
    elif name.islower() and not callable(value) and not hasattr(value, "__get__"):
        raise JobDefinitionError(
            f"{cls.__name__}.{name} is no option{nearest(name, OPTIONS)}; annotate it as a field "
            f"({name}: {type(value).__name__} = ...) or as a ClassVar"
        )


def annotations_of(cls: type) -> dict[str, Any]:
    """Return the class's own annotations, without evaluating names that are defined later."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 (new in 3.14)

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)
