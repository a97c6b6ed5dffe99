"""Dispatchable: the jobs that a program can dispatch, with their fields."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qframe.exceptions import UnknownJob
from qframe.jobs import definition, project, sources, syntax
from qframe.jobs.definition import JobDefinition
from qframe.manager import QueueManager
from qframe.models.fields import without_marks
from qframe.payload.text import one_line

_OPTIONS = ("tries", "timeout", "backoff", "delay", "priority", "group", "unique", "encrypted")
_HARMLESS = (
    ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign,
    ast.AnnAssign, ast.If, ast.Try, ast.Pass,
)  # fmt: skip
_LONGEST = 200
_INTERNAL = "qframe."
"""How the modules of qframe's own jobs begin."""


class JobField(BaseModel):
    """One field of a job."""

    name: str
    type: str
    required: bool
    default: str
    """As Python writes it; "" if there is none."""


class JobKind(BaseModel):
    """One class or function that can be dispatched, by its name on the wire."""

    job: str
    about: str
    """The first line of its docstring."""
    connection: str
    """"" for the default connection."""
    queue: str
    """"" for the connection's own."""
    options: dict[str, str]
    """The options that it sets, as Python writes them."""
    fields: list[JobField]

    @classmethod
    def of(cls, job_class: type[JobDefinition]) -> JobKind:
        return cls(
            job=job_class.own_name(),
            about=_about(job_class),
            connection=job_class.connection or "",
            queue=job_class.queue or "",
            options=dict(_options(job_class)),
            fields=[*_fields(job_class)],
        )


class Dispatchable(BaseModel):
    """What can be dispatched, and what could not be looked at."""

    jobs: list[JobKind]
    unread: dict[str, str]
    """By module, why its jobs are not known."""


def dispatchable(queues: QueueManager, pattern: str = "") -> Dispatchable:
    """Returns the jobs whose names fit, by name. Raises `ConfigurationError`.

    It imports the modules of `jobs`. Without any, it imports the project's files that define jobs,
    unless a file does more at its top level than define, import and assign.
    """
    unread: dict[str, str] = {}
    if any(not each.startswith(_INTERNAL) for each in queues.registry.modules):
        queues.registry.load()
    else:
        project.put_on_path()
        for module, file in sources.found():
            names = syntax.jobs_of(file, module)
            if names:
                _look_into(queues, module, file, names, unread)
    known = {
        found.own_name(): found
        for name in [*definition.index]
        if (found := queues.registry.known(name)) is not None
        and not found.__module__.startswith(_INTERNAL)
    }
    wanted = sorted(name for name in known if not pattern or _fits(name, pattern))
    return Dispatchable(jobs=[JobKind.of(known[name]) for name in wanted], unread=unread)


def _look_into(
    queues: QueueManager, module: str, file: Path, names: Iterable[str], unread: dict[str, str]
) -> None:
    if (acts := _first_act(file)) is not None:
        unread[module] = f"importing it would run line {acts}: name it under `jobs` if it may"
        return
    for name in names:
        try:
            queues.registry.find(f"{module}.{name}")
        except UnknownJob as error:
            if module not in sys.modules:  # otherwise it is a base of jobs
                unread[module] = str(error)


def _first_act(file: Path) -> int | None:
    """Returns the first line at the top level of a file that does something."""
    for node in project.statements(file):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or isinstance(node, _HARMLESS)):
            return node.lineno
    return None


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.endswith(f".{pattern}")


def _about(job_class: type[JobDefinition]) -> str:
    text = inspect.cleandoc(vars(job_class).get("__doc__") or "")
    is_made = text.startswith(f"{job_class.__name__}(")  # by `dataclasses`
    return "" if is_made else one_line(text.partition("\n")[0], _LONGEST)


def _options(job_class: type[JobDefinition]) -> Iterator[tuple[str, str]]:
    for name in _OPTIONS:
        value, usual = getattr(job_class, name, None), getattr(JobDefinition, name, None)
        if value != usual:
            yield name, "a method" if callable(value) else one_line(repr(value), _LONGEST)


def _fields(job_class: type[JobDefinition]) -> Iterator[JobField]:
    known: dict[str, FieldInfo] = getattr(job_class, "__pydantic_fields__", {})
    for name in job_class.field_names():
        info = known.get(name)
        if info is None:
            yield JobField(name=name, type="", required=True, default="")
            continue
        yield JobField(
            name=name,
            type=one_line(_type_of(info.annotation), _LONGEST),
            required=info.is_required(),
            default="" if info.is_required() else _default_of(info),
        )


def _type_of(annotation: Any) -> str:  # noqa: ANN401 (any type there is)
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(without_marks(annotation))


def _default_of(info: FieldInfo) -> str:
    value, factory = info.default, info.default_factory
    if isinstance(factory, partial):  # copies what the class has
        value = info.get_default(call_default_factory=True, validated_data={})
    elif factory is not None:
        return f"{getattr(factory, '__name__', 'a function')}()"
    return one_line(repr(value), _LONGEST)
