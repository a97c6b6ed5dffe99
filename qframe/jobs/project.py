"""The project root, and which of its files define jobs; imports none of them."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from qframe.payload import tracebacks

_root: Path | None = None
_is_assumed = False
_is_announced = False
_advice: Callable[[], str] | None = None


def set_root(root: Path, *, assumed: bool = False) -> None:
    """Set the root folder of this process's jobs.

    `assumed`: nothing configures it, so it is the working directory.
    """
    global _root, _is_assumed, _is_announced
    _root, _is_assumed, _is_announced = root.resolve(), assumed, False


def is_assumed() -> bool:
    """Whether the root is the working directory because nothing is configured."""
    return _is_assumed


def announce() -> None:
    """Note that the command has shown its database and configuration."""
    global _is_announced  # noqa: PLW0603 (of the process, as the root)
    _is_announced = True


def is_announced() -> bool:
    return _is_announced


def advise(advice: Callable[[], str] | None) -> None:
    """Set what a command says of a likely mistake once it makes a database; None: it has said it.

    The advice is asked for only then, and is "" if there is none.
    """
    global _advice  # noqa: PLW0603 (of the process, as the root)
    _advice = advice


def advice() -> str:
    """Return a likely mistake of the command that runs; "" outside a command."""
    return _advice() if _advice else ""


def root() -> Path:
    """Return the project root: the configuration's folder, otherwise the working directory."""
    return _root or Path.cwd()


def put_on_path() -> None:
    """Make the modules under the root importable, as `python -m` does."""
    folder = str(root())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def holds(file: str | Path | None) -> bool:
    """Whether a file is the project's own: under the root, outside libraries and hidden folders."""
    if file is None:
        return False
    try:
        parts = Path(file).resolve().relative_to(root().resolve()).parts
    except (ValueError, OSError):
        return False
    return not any(part.startswith(".") or part in _LIBRARIES for part in parts)


_LIBRARIES = {"site-packages", "dist-packages", "node_modules", "__pycache__"}


def source_of(module: str) -> Path | None:
    """Find a module's file in the project by its name, without imports."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for folder in _import_folders():
        base = folder.joinpath(*parts)
        for file in (base / "__init__.py", base.with_name(base.name + ".py")):
            if os.path.isfile(file) and holds(file):  # noqa: PTH113 (false for too long a name)
                return file
    return None


def _import_folders() -> Iterator[Path]:
    """Iterate over the root and the folders under it on the import path (such as `src`)."""
    yield root()
    for entry in sys.path:
        folder = Path(entry or ".")
        if folder.is_dir() and holds(folder / "x"):
            yield folder


def unreadable(file: Path) -> str:
    """Return why a file is not valid Python, with the line; "" if it is."""
    try:
        ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, RecursionError) as error:
        return tracebacks.placed(error)
    except OSError as error:
        return f"{error.strerror} ({file})"
    return ""


def statements(file: Path) -> list[ast.stmt]:
    """Return the top-level statements of a file; [] if it is not valid Python."""
    try:
        return ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


def main_module() -> tuple[str, str]:
    """Return the importable name of the script run as `__main__`, or why it has none."""
    return _main_module(root())


@functools.cache
def _main_module(root: Path) -> tuple[str, str]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    if file is None or str(file).startswith("<"):
        return "", "is defined in an interactive session; put it into a module"
    path = Path(file).resolve()
    if spec is not None and not spec.name.endswith("__main__"):
        module = str(spec.name)
    elif not holds(path):
        return "", (
            f"is defined in {path.name}, outside the project root {root}; "
            "put it into a module there"
        )
    else:
        module = ".".join(path.relative_to(root.resolve()).with_suffix("").parts)
    if source_of(module) is None:
        return "", (
            f"is defined in {path.name}, which cannot be imported by that name; "
            "put it into a module of its own"
        )
    if not _has_main_guard(path):
        return "", (
            f"is defined in the script {path.name}, which a worker would run again by importing "
            'it; put the script\'s last part under `if __name__ == "__main__":`, or the job into '
            "a module of its own"
        )
    return module, ""


def _has_main_guard(file: Path) -> bool:
    return any(
        isinstance(node, ast.If)
        and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))
        for node in statements(file)
    )
