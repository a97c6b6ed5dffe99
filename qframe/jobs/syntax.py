"""Reads from a source file whether it defines a job, before importing it.

A payload may name any class of any file in the project. Importing a file runs it, so a file is
imported only if its syntax tree shows that the name is a job: its bases or decorators lead to
qframe.
"""

from __future__ import annotations

import ast
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from qframe.jobs import project

_OURS = "qframe"
_DECORATORS = {"queueable", "shared_task"}
_TASKS = {("django.tasks", "task"), ("django_tasks", "task")}
"""Decorators of other libraries whose functions adapters make jobs of."""
_BASES = {"Queueable", "JobDefinition"}
_CELERY = "qframe.celery"
_DECORATOR_OF_APP = "task"
_MOST = 100
"""The most names to follow from file to file."""


class Name(NamedTuple):
    """A name in a module."""

    module: str
    attribute: str


def shows_job(file: Path, module: str, attribute: str) -> bool:
    """Whether a module's file defines a job of this name at its top level."""
    return _SyntaxReader(file, module).shows(Name(module, attribute))


def jobs_of(file: Path, module: str) -> list[str]:
    """Return the names of the jobs that a module's file defines at its top level."""
    reader = _SyntaxReader(file, module)
    return [each for each in reader.defined(module) if reader.shows(Name(module, each))]


class _Source:
    """The top level of one file: its definitions, and what its names refer to."""

    def __init__(self, file: Path, module: str) -> None:
        self.module = module
        self._package = module if file.stem == "__init__" else module.rpartition(".")[0]
        self.defined: dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.imported: dict[str, Name] = {}
        self.assigned: dict[str, ast.expr] = {}
        self.stars: list[str] = []
        body = project.statements(file)
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.defined[node.name] = node
        for node in _flat(body):
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.partition(".")[0]
                self.imported[each.asname or root] = Name(each.name if each.asname else root, "")
        elif isinstance(node, ast.ImportFrom):
            module = self._absolute(node)
            for each in node.names:
                if each.name == "*":
                    self.stars.append(module)
                else:
                    self.imported[each.asname or each.name] = Name(module, each.name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.assigned[target.id] = node.value

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        base = parts[: len(parts) - (node.level - 1)]
        return ".".join([*base, *([node.module] if node.module else [])])

    @property
    def uses_us(self) -> bool:
        """Whether it imports anything from qframe, or from libraries with adapters."""
        modules = {*(each.module for each in self.imported.values()), *self.stars}
        return any(_is_ours(each) or each in {name for name, _ in _TASKS} for each in modules)


class _SyntaxReader:
    """Follows names from file to file, reading each file once."""

    def __init__(self, file: Path, module: str) -> None:
        self._sources: dict[str, _Source | None] = {module: _Source(file, module)}
        self._left = _MOST

    def defined(self, module: str) -> list[str]:
        """Return the names of the classes and functions at the top level of a module."""
        source = self._source(module)
        return [] if source is None else [*source.defined]

    def shows(self, name: Name) -> bool:
        """Whether the name is a job, defined at the top level of its own file."""
        self._left = _MOST
        source = self._source(name.module)
        node = None if source is None else source.defined.get(_normal(name.attribute))
        if source is None or node is None or _normal(name.attribute) != name.attribute:
            return False
        if isinstance(node, ast.ClassDef):
            return self._is_class(source, node)
        return any(self._makes_job(source, each) for each in node.decorator_list)

    def _is_class(self, source: _Source, node: ast.ClassDef) -> bool:
        return any(self._gives_base(source, base) for base in node.bases)

    def _gives_base(self, source: _Source, given: ast.expr) -> bool:
        """Whether an expression is a base, or a call that involves one."""
        parts = [given]
        if isinstance(given, ast.Call):
            parts = [each for each in ast.walk(given) if isinstance(each, ast.Name | ast.Attribute)]
        return any(self._is_base(each) for part in parts for each in self._named(source, part))

    def _is_base(self, name: Name) -> bool:
        self._left -= 1
        if self._left < 0 or _is_ours(name.module):
            return self._left >= 0 and name.attribute in _BASES
        source = self._source(name.module)
        if source is None:
            return _is_loaded_job(name)
        node = source.defined.get(name.attribute)
        if isinstance(node, ast.ClassDef):
            return self._is_class(source, node)
        if node is not None:  # a function that makes a base
            made = [each for each in ast.walk(node) if isinstance(each, ast.ClassDef)]
            return any(self._is_class(source, each) for each in made)
        assigned = source.assigned.get(name.attribute)
        if isinstance(assigned, ast.Attribute | ast.Subscript | ast.Call):
            return self._gives_base(source, assigned)
        return any(self._is_base(each) for each in _meant(source, name.attribute))

    def _makes_job(self, source: _Source, decorator: ast.expr) -> bool:
        """Whether a decorator is `queueable`, or one of the project's made with qframe."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if any(self._is_decorator(each) for each in self._named(source, called)):
            return True
        if not isinstance(called, ast.Attribute) or called.attr != _DECORATOR_OF_APP:
            return False
        return any(map(self._is_app, self._named(source, called.value)))

    def _is_app(self, name: Name) -> bool:
        """Whether a name is an app of `qframe.celery`, whose `task` makes jobs of functions."""
        self._left -= 1
        if self._left < 0 or _is_ours(name.module):
            return self._left >= 0 and name == (_CELERY, "current_app")
        source = self._source(name.module)
        if source is None:
            return False
        assigned = source.assigned.get(name.attribute)
        if isinstance(assigned, ast.Call):
            made = self._named(source, assigned.func)
            found = (each for one in made for each in (one, *_meant(source, one.attribute)))
            return any(_is_celery(each) for each in found)
        return any(self._is_app(each) for each in _meant(source, name.attribute))

    def _is_decorator(self, name: Name) -> bool:
        self._left -= 1
        if self._left < 0 or _is_ours(name.module):
            return self._left >= 0 and name.attribute in _DECORATORS
        source = None if name in _TASKS else self._source(name.module)
        if source is None:
            return name in _TASKS
        if name.attribute in source.defined or _is_made(source, name.attribute):
            made = source.defined.get(name.attribute)
            return source.uses_us and not isinstance(made, ast.ClassDef)
        return any(self._is_decorator(each) for each in _meant(source, name.attribute))

    def _named(self, source: _Source, node: ast.expr) -> Iterator[Name]:
        """Iterate over what an expression may refer to: `Base`, `module.Base`, `Base[int]`."""
        if isinstance(node, ast.Subscript):
            node = node.value
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return
        if not path:
            yield Name(source.module, node.id)
            return
        *inner, last = path
        for found in _meant(source, node.id):
            module = ".".join(filter(None, (found.module, found.attribute, *inner)))
            yield Name(module, last)

    def _source(self, module: str) -> _Source | None:
        """Read the file of the project's or a library's module; None if there is none."""
        if module not in self._sources:
            file = project.source_of(module) or _library_file(module)
            self._sources[module] = None if file is None else _Source(file, module)
        return self._sources[module]


def _is_made(source: _Source, name: str) -> bool:
    """Whether a name is assigned something other than a name."""
    return not isinstance(source.assigned.get(name), ast.Name | None)


def _meant(source: _Source, name: str) -> Iterator[Name]:
    """Iterate over what a name not defined in this file may be elsewhere."""
    if name in source.imported:
        yield source.imported[name]
    elif isinstance(alias := source.assigned.get(name), ast.Name) and alias.id != name:
        yield Name(source.module, alias.id)
    else:
        yield from (Name(module, name) for module in source.stars)


def _is_ours(module: str) -> bool:
    return module == _OURS or module.startswith(f"{_OURS}.")


def _is_celery(name: Name) -> bool:
    return name.module.startswith(_CELERY) and name.attribute == "Celery"


def _is_loaded_job(name: Name) -> bool:
    """Whether this is a job in an imported module without a source file here."""
    from qframe.jobs.definition import JobDefinition  # noqa: PLC0415 (most names never come here)

    found = getattr(sys.modules.get(name.module), name.attribute, None)
    return isinstance(found, type) and issubclass(found, JobDefinition)


def _library_file(module: str) -> Path | None:
    """Find the file of a library's module by its name, without imports."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for entry in sys.path:
        base = Path(entry or ".").joinpath(*parts)
        for file in (base / "__init__.py", base.with_name(base.name + ".py")):
            if os.path.isfile(file):  # noqa: PTH113 (false for too long a name)
                return file
    return None


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Iterate over statements, including those in `if` and `try`, which may have imports."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _flat((*node.body, *node.orelse))
        elif isinstance(node, ast.Try):
            handlers = (each for handler in node.handlers for each in handler.body)
            yield from _flat((*node.body, *handlers, *node.orelse, *node.finalbody))


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name)
