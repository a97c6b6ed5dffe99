"""Registry: finds the class for a job's name, importing only modules that may define jobs."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from qframe import forks
from qframe.exceptions import ConfigurationError, InvalidJob, UnknownJob
from qframe.hooks import Hooks, of_process
from qframe.jobs import definition, project, syntax
from qframe.jobs.definition import JobDefinition
from qframe.payload import tracebacks
from qframe.payload.text import nearest, one_line

_OWN = {
    "qframe.features.batch_jobs",
    "qframe.features.flow_jobs",
    "qframe.features.group_jobs",
}
"""The modules of qframe's own jobs, which every worker runs."""


class _Importing(threading.local):
    here = False


importing = _Importing()
"""Whether a worker imports a job module on this thread; other threads may dispatch meanwhile."""


class Registry:
    """The jobs that a worker may run.

    With `modules`, only the jobs in these modules and below. Without, a job whose module is a file
    of the project (under its root, outside libraries and hidden folders) that defines it at its top
    level, as its syntax tree shows before the import.
    """

    def __init__(self, modules: Sequence[str] = (), hooks: Hooks = of_process) -> None:
        self._modules = tuple(modules)
        self._hooks = hooks
        self._is_loaded = not self.modules
        self._found: dict[str, type[JobDefinition]] = {}
        # One thread at a time reads and imports: CPython 3.11 fails with two in `ast.parse` at
        # once.
        self._importing = forks.rlock()

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of `jobs`, and those that a framework added."""
        return (*self._modules, *self._hooks.modules)

    def load(self) -> None:
        """Import the modules of `jobs`. Raises `ConfigurationError` with the one that fails."""
        project.put_on_path()
        done = set[str]()
        while left := [each for each in self.modules if each not in done]:
            self.import_all(left, "jobs")  # which may add modules to the hooks
            done.update(left)
        self._is_loaded = True

    def import_all(self, names: Sequence[str], key: str) -> None:
        """Import the modules in a setting, and those below them. Raises as `load`."""
        project.put_on_path()
        for name in names:
            try:
                module = _imported(name)
                for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
                    if not each.name.endswith(".__main__"):  # a program, not a module of jobs
                        _imported(each.name)
            except (Exception, SystemExit) as error:
                raise ConfigurationError(
                    f"{key}: {name!r} cannot be imported: {tracebacks.placed(error)}"
                ) from error

    def known(self, name: str) -> type[JobDefinition] | None:
        """Return the class of a job whose module is already imported; None otherwise."""
        found = self._found.get(name) or own_job(name)
        if found is None:
            found = definition.index.get(name) or defined_in_main(name) or self._adapted_by(name)
            if found is None or not self._allowed(found):
                return None
            self._found[name] = found
        return found

    def find(self, name: str) -> type[JobDefinition]:
        """Return the class of a job, importing its module. Raises `UnknownJob` if it must not run.

        If `load` was not called, it is called for a name that does not tell the module.
        """
        found = self.known(name)
        if found is not None:
            return found
        with forks.undisturbed(), self._importing:
            return self.known(name) or self._searched(name)

    def _searched(self, name: str) -> type[JobDefinition]:
        try:
            return self._by_module(name)
        except UnknownJob:
            if self._is_loaded:
                raise
        try:
            self.load()
        except ConfigurationError as error:
            raise UnknownJob(str(error)) from error
        return self.known(name) or self._by_module(name)

    def _by_module(self, name: str) -> type[JobDefinition]:
        """Import the module at the beginning of the name."""
        shown, (module_name, _, attribute) = one_line(name, 200), name.rpartition(".")
        file = project.source_of(module_name) if module_name else None
        if not self._may_import(module_name):
            raise UnknownJob(f"{shown} is not in the modules listed under `jobs`")
        if file is not None and (trouble := project.unreadable(file)):
            raise UnknownJob(f"{shown}: its module cannot be imported: {trouble}")
        if file is None or not syntax.shows_job(file, module_name, attribute):
            raise UnknownJob(
                f"{shown} is not a job of this project"
                f"{nearest(name, definition.index)}: start where its module is, or give two "
                f"projects a prefix each; no module under {project.root()} defines it as one"
            )
        try:
            value = getattr(_imported(module_name), attribute, None)
        except (Exception, SystemExit) as error:
            raise UnknownJob(
                f"{shown}: its module cannot be imported: {tracebacks.placed(error)}"
            ) from error
        value = self._adapted(value)
        if not (isinstance(value, type) and issubclass(value, JobDefinition)):
            raise UnknownJob(f"{shown} is not a Queueable")
        if not value.is_runnable():
            raise UnknownJob(f"{shown} has no handle method")
        if not self._allowed(value):
            raise UnknownJob(f"{shown} was imported from another file than {file}")
        self._found[name] = value
        return value

    def _adapted(self, value: object) -> object:
        """Return the job class of a `@queueable` function, or of an object an adapter knows."""
        value = getattr(value, "job_class", value)
        adapters = self._hooks.adapters
        return next((found for adapt in adapters if (found := adapt(value)) is not None), value)

    def _adapted_by(self, name: str) -> type[JobDefinition] | None:
        """Return what an adapter makes of the object with this name in an imported module."""
        if not self._hooks.adapters:
            return None
        module, _, attribute = name.rpartition(".")
        found = self._adapted(getattr(sys.modules.get(module), attribute, None))
        return found if isinstance(found, type) and issubclass(found, JobDefinition) else None

    def _allowed(self, job_class: type[JobDefinition]) -> bool:
        module = job_class.__module__
        if self._modules:
            return self._may_import(project.main_module()[0] if module == "__main__" else module)
        return _is_below(module, self._hooks.modules) or project.holds(
            getattr(sys.modules.get(module), "__file__", None)
        )

    def _may_import(self, module: str) -> bool:
        return not self._modules or _is_below(module, self.modules)


def _is_below(module: str, modules: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in modules)


def defined_in_main(name: str) -> type[JobDefinition] | None:
    """Find a job of the script that started this process, which cannot be imported."""
    module, _, attribute = name.rpartition(".")
    main = definition.index.get(f"__main__.{attribute}")
    return main if main is not None and project.main_module()[0] == module else None


def own_job(name: str) -> type[JobDefinition] | None:
    module, _, attribute = name.rpartition(".")
    if module not in _OWN:
        return None
    found = getattr(importlib.import_module(module), attribute, None)
    return found if isinstance(found, type) and issubclass(found, JobDefinition) else None


def refuse_while_importing() -> None:
    """Refuse a dispatch by a job module while a worker imports it.

    Every worker that imports the module would repeat it.
    """
    if importing.here:
        raise InvalidJob(
            "a job was dispatched while a worker imports the module: "
            'put that line under `if __name__ == "__main__":` or into a function'
        )


def _imported(name: str) -> ModuleType:
    before, importing.here = importing.here, True
    try:
        return importlib.import_module(name)
    finally:
        importing.here = before
