"""Which Python files of this repository import which, read from their source: nothing is run."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules(*folders: str, root: Path = ROOT) -> dict[str, Path]:
    """Give each module of these folders and its file."""
    found = {}
    for folder in folders:
        for path in (root / folder).rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Give the parsed source of a file."""
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Give the known modules that a file imports, type-only and delayed imports included.

    Where it imports a name from a package that has it from elsewhere, that is the module.
    """
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {_origin(node.module, each.name, known) for each in node.names}
    return found & known.keys()


def _origin(module: str, name: str, known: dict[str, Path]) -> str:
    if f"{module}.{name}" in known:
        return f"{module}.{name}"
    path = known.get(module)
    if path is None or path.name != "__init__.py":
        return module
    origin = _passed_on(path).get(name)
    return module if origin is None else _origin(*origin, known)


@cache
def _passed_on(package: Path) -> dict[str, tuple[str, str]]:
    """Give the names that a package imports, each with its module and its name there."""
    return {
        each.asname or each.name: (node.module, each.name)
        for node in ast.walk(tree(package))
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }
