"""What a job class may declare: its options, each checked, and names that are taken."""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from qframe.exceptions import JobDefinitionError
from qframe.payload import timing
from qframe.payload.text import nearest, one_line, queue_name


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _priority(value: object) -> bool:
    return _count(value) and value in _PRIORITIES


def _duration(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def _durations(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return bool(value) and all(_duration(each) for each in value)
    return _duration(value)


def _when(value: object) -> bool:
    try:
        timing.moment(value, "")  # type: ignore[arg-type] # what it is, is the question
    except (TypeError, ValueError):
        return False
    return True


def _kept(value: object) -> bool:
    if isinstance(value, bool):
        return True
    return not isinstance(value, datetime) and _when(value) and bool(value)


def _bounded(value: object) -> bool:
    if isinstance(value, timedelta):
        return value > timedelta()
    return _duration(value) and bool(value)


def _queue(value: object) -> bool:
    return isinstance(value, str) and bool(queue_name(value))


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(_text(each) for each in value)


def _middleware(value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(callable(each) and not isinstance(each, type) for each in value)


_PRIORITIES = range(2**32)

_OPTIONS: dict[str, tuple[Callable[[object], bool], str]] = {
    "connection": (_text, "the name of a connection"),
    "queue": (_queue, "the name of a queue"),
    "delay": (_when, "seconds, a timedelta or an aware datetime"),
    "priority": (_priority, "a whole number from 0, the first, to 4294967295"),
    "tries": (_count, "a whole number, 0 or more"),
    "max_exceptions": (lambda v: _count(v) and bool(v), "a whole number, 1 or more"),
    "backoff": (_durations, "seconds, a sequence of seconds, or a method"),
    "timeout": (_duration, "seconds, 0 or more"),
    "fail_on_timeout": (lambda v: isinstance(v, bool), "True or False"),
    "retry_until": (_when, "seconds, a timedelta, an aware datetime, or a method"),
    "expires": (_when, "seconds, a timedelta or an aware datetime"),
    "track": (_kept, "True, or for how many seconds, as a number or timedelta"),
    "unique": (lambda v: isinstance(v, bool), "True or False"),
    "unique_id": (lambda v: _text(v) or _count(v), "a text, a whole number, or a method"),
    "unique_for": (_bounded, "more than 0 seconds, or a timedelta"),
    "unique_until": (lambda v: v in ("handled", "started"), "'handled' or 'started'"),
    "debounce": (_bounded, "more than 0 seconds, or a timedelta"),
    "encrypted": (lambda v: isinstance(v, bool), "True or False"),
    "job_name": (_text, "a name"),
    "display_name": (_text, "a name, or a method"),
    "tags": (_texts, "a list of names, or a method"),
    "middleware": (
        _middleware,
        "a list of middleware (each callable, and no class), or a method",
    ),
}
_METHODS = {"backoff", "retry_until", "display_name", "tags", "middleware", "unique_id"}
_HOOKS = {"handle", "set_up", "tear_down", "succeeded", "failed"}
_NEVER_NONE = {
    "delay", "encrypted", "fail_on_timeout", "middleware", "tags", "track", "unique", "unique_for",
    "unique_until",
}  # fmt: skip


def options() -> list[str]:
    """Name the options of a job class."""
    return list(_OPTIONS)


def check_declaration(cls: type, base: type) -> None:
    """Raise `JobDefinitionError` for what a subclass of `base` (Queueable) may not declare."""
    members = {name for each in base.__mro__ if each is not object for name in vars(each)}
    public = {name for name in members if not name.startswith("_")} | {"handle"}
    annotations = annotations_of(cls)
    for name, annotation in annotations.items():
        if name in public and "ClassVar" not in str(annotation):
            raise JobDefinitionError(_reserved_message(cls, name))
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if name in _OPTIONS:
            check_option(cls.__name__, name, value)
        elif name in public - _HOOKS:
            raise JobDefinitionError(
                f"{cls.__name__}.{name}: the name is Queueable's own; choose another"
            )
        elif name not in annotations:
            _check_stray(cls, name, value)


def _reserved_message(cls: type, name: str) -> str:
    if name in _OPTIONS:
        return (
            f"{cls.__name__}.{name}: {name!r} is an option of every job and cannot be a field; "
            f"set the option without annotation ({name} = ...), or name the field differently"
        )
    return (
        f"{cls.__name__}.{name}: a field cannot be called {name!r}, which is Queueable's own; "
        "name it differently"
    )


def check_option(owner: str, name: str, value: object) -> None:
    """Raise `JobDefinitionError` for an option that is unknown or of the wrong kind."""
    if name not in _OPTIONS:
        raise JobDefinitionError(f"{owner}: unknown option {name!r}{nearest(name, _OPTIONS)}")
    valid, wanted = _OPTIONS[name]
    if name in _METHODS and isinstance(value, types.FunctionType):
        return
    if value is None and name not in _NEVER_NONE:
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
    """Refuse what was meant as an option, hook or field but is none."""
    if isinstance(value, types.FunctionType):
        if (meant := _near_hook(cls, name)) is not None:
            raise JobDefinitionError(
                f"{cls.__name__}.{name} is never called (did you mean {meant!r}?)"
            )
    elif name.islower() and not callable(value) and not hasattr(value, "__get__"):
        raise JobDefinitionError(
            f"{cls.__name__}.{name} is no option{nearest(name, _OPTIONS)}; annotate it as a field "
            f"({name}: {type(value).__name__} = ...) or as a ClassVar"
        )


def _near_hook(cls: type, name: str) -> str | None:
    plain = name.replace("_", "").lower()
    for hook in _HOOKS | _METHODS:
        if plain == hook.replace("_", "") and hook not in vars(cls):
            return hook
    return None


def annotations_of(cls: type) -> dict[str, Any]:
    """Give the class's own annotations, without evaluating names that are defined later."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 (new in 3.14)

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)
