"""Sources: the project's files that define jobs, read without importing any."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qframe.jobs import project, syntax

_MOST = 5000
"""The most files of a project that are read."""


class SourceFile(NamedTuple):
    """A Python file of the project, and the name by which it is imported."""

    module: str
    file: Path


def found(modules: Sequence[str] = ()) -> Iterator[SourceFile]:
    """Yield the project's files: those of `modules` and below them, or without any all."""
    if not modules:
        yield from _below(project.root(), "")
        return
    for name in modules:
        file = project.source_of(name)
        if file is None:
            continue
        yield SourceFile(name, file)
        if file.name == "__init__.py":
            for each in _below(file.parent, f"{name}."):
                if each.file != file:
                    yield each


def job_names(modules: Sequence[str] = (), seconds: float = float("inf")) -> list[str]:
    """Return the names of the jobs that these files show, as far as they are read in time."""
    names: list[str] = []
    until = time.monotonic() + seconds
    for module, file in found(modules):
        names += [f"{module}.{each}" for each in syntax.jobs_of(file, module)]
        if time.monotonic() > until:
            break
    return names


def _below(folder: Path, prefix: str) -> Iterator[SourceFile]:
    """Yield the files in and below a folder, whose modules' names begin with `prefix`."""
    left = _MOST
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if _may_hold_modules(Path(place, each)))
        for name in sorted(files):
            if not name.endswith(".py") or name == "__main__.py":
                continue
            parts = [*Path(place).relative_to(folder).parts, name.removesuffix(".py")]
            if parts[-1] == "__init__":
                parts.pop()
            if not parts or not all(part.isidentifier() for part in parts):
                continue
            left -= 1
            if left < 0:
                return
            yield SourceFile(prefix + ".".join(parts), Path(place, name))


def _may_hold_modules(folder: Path) -> bool:
    return (
        folder.name.isidentifier()
        and project.holds(folder / "x")
        and not (folder / "pyvenv.cfg").exists()
    )
