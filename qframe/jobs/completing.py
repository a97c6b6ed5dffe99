"""Finds jobs that may complete within a transaction: a worker then waits for their start.

It does not wait for other jobs. A transaction whose snapshot is older than the start cannot remove
the job: at REPEATABLE READ and above, PostgreSQL refuses to change a row that was changed since.

A worker waits for each start of a class until one of its jobs has succeeded. From then on it waits
if a job has completed so, or if the class's code may.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from qframe.jobs import project

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition

_CALL = "complete"
_OURS = "qframe."
"""Prefix of modules whose classes do not count."""
_OUR_FOLDER = Path(__file__).resolve().parents[1]
_MOST = 2000
"""The most values of names that are looked at for a class: about 2 ms."""
_INNER: dict[type, str] = {
    staticmethod: "__func__",
    classmethod: "__func__",
    MethodType: "__func__",
    property: "fget",
    functools.cached_property: "func",
    functools.partial: "func",
    functools.partialmethod: "func",
    type(functools.cache(len)): "__wrapped__",
}
"""Where these have their function."""
_UNNAMED = frozenset(
    {"__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__await__"}
)
"""Methods that code calls without their names."""
_contents: Any = vars(ModuleType)["__dict__"].__get__
"""Returns the names of a module; loads none that loads itself on first use."""
waits: dict[str, bool] = {}
"""Whether a worker waits for the start of a job, by its name on the wire, if known."""


def learn(name: str) -> None:
    """Note that a job of this name completes within a transaction."""
    waits[name] = True


def succeeded(name: str, job_class: type[JobDefinition] | None) -> None:
    """Note that a job of this name is done without that."""
    if name not in waits and job_class is not None:
        waits[name] = may_complete(job_class)


def may_complete(job_class: type[JobDefinition]) -> bool:
    """Whether code of a class calls `complete`, or code of the project that it names.

    Follows names through the project's modules that are loaded. Imports nothing and calls nothing
    of them, so what is passed as an argument or chosen at run time is not followed.
    """
    return _Search(job_class).finds()


class _Search:
    """A look through the functions of a class, and those that their code names."""

    def __init__(self, job_class: type) -> None:
        kinds = [
            each
            for each in job_class.__mro__
            if each is not object and not each.__module__.startswith(_OURS)
        ]
        self._root = project.root().resolve()
        self._modules = {each.__module__ for each in kinds}
        """Those of the class count wherever they are."""
        self._own: dict[str, bool] = {}
        """Whether a file is the project's."""
        self._spaces: dict[int, list[Mapping[str, object]]] = {}
        self._looks = 0
        self._left: deque[tuple[object, type]] = deque(
            (value, job_class) for each in kinds for value in [*vars(each).values()]
        )
        """What may be a function, and the class that has it."""

    def finds(self) -> bool:
        seen: set[FunctionType] = set()
        while self._left and self._looks < _MOST:
            self._looks += 1
            value, owner = self._left.popleft()
            function = _function_in(value)
            if function is None or function in seen:
                continue
            seen.add(function)
            wrapped = [*_cells(function), function.__dict__.get("__wrapped__")]
            module = function.__globals__.get("__name__")
            if not self._is_own(module, function.__code__.co_filename):
                self._left += [(each, owner) for each in wrapped]
                continue
            names = _names(function.__code__)
            if _CALL in names:
                return True
            self._follow(names, function, owner, wrapped)
        return False

    def _follow(
        self, names: set[str], function: FunctionType, owner: type, closure: list[object]
    ) -> None:
        """Queue the functions that names in a function's code may mean."""
        here = function.__globals__
        left: deque[tuple[object, type]] = deque((each, owner) for each in (owner, *closure))
        left += [(each, owner) for each in (*_named(names, here), *_imported(names, here))]
        entered: set[int] = set()
        while left and self._looks < _MOST:
            self._looks += 1
            value, of = left.popleft()
            kind = type(value)  # `isinstance` asks a proxy for the class of what it stands for
            if kind is FunctionType or _inner(kind):
                self._left.append((value, of))
            elif id(value) not in entered:
                entered.add(id(value))
                if issubclass(kind, ModuleType):
                    left += [(each, owner) for each in _in_module(names, value)]
                else:
                    has: Any = value if issubclass(kind, type) else kind
                    for space in self._spaces_of(has):
                        left += [(each, has) for each in _named(names | _UNNAMED, space)]

    def _spaces_of(self, kind: type) -> list[Mapping[str, object]]:
        """Return the names in those of a class and its bases that are the project's."""
        found = self._spaces.get(id(kind))
        if found is None:
            spaces = [(vars(each).get("__module__"), vars(each)) for each in kind.__mro__]
            found = [each for module, each in spaces if self._is_own(module, _file_of(module))]
            self._spaces[id(kind)] = found
        return found

    def _is_own(self, module: object, file: str) -> bool:
        if module in self._modules:
            return True
        found = self._own.get(file)
        if found is None:
            path = Path(file)
            found = project.owns(path, self._root) and not path.is_relative_to(_OUR_FOLDER)
            self._own[file] = found
        return found


def _function_in(value: Any) -> FunctionType | None:  # noqa: ANN401 (anything a name may mean)
    """Return the function that this is, or holds."""
    while type(value) is not FunctionType:
        inner = _inner(type(value))
        if inner is None:
            return None
        value = getattr(value, inner)
    return value


def _inner(kind: type) -> str | None:
    return _INNER.get(kind) if type(kind) is type else None  # others may hash in their own way


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _names(code: CodeType) -> set[str]:
    """Return the names in a code, and in those of functions within it."""
    names = set(code.co_names)
    for each in code.co_consts:
        if type(each) is CodeType:
            names |= _names(each)
    return names


def _named(names: set[str], space: Mapping[str, object]) -> list[object]:
    return [space[name] for name in names if name in space]


def _in_module(names: set[str], module: object) -> Iterator[object]:
    """Iterate over what these names are in a module; of other modules, over those within it."""
    space = _contents(module)
    within = f"{space.get('__name__')}."
    for each in _named(names, space):
        if not issubclass(type(each), ModuleType) or (
            str(_contents(each).get("__name__")).startswith(within)
        ):
            yield each


def _imported(names: set[str], here: Mapping[str, Any]) -> Iterator[object]:
    """Iterate over the modules that code may import under these names, and that are loaded."""
    package = here.get("__package__") or ""
    while package:
        yield from _named({f"{package}.{name}" for name in names}, sys.modules)
        package = package.rpartition(".")[0]
    yield from _named(names, sys.modules)


def _file_of(module: Any) -> str:  # noqa: ANN401 (a name, unless a class has something else there)
    found = sys.modules.get(module)
    file = _contents(found).get("__file__") if issubclass(type(found), ModuleType) else None
    return file if isinstance(file, str) else ""
