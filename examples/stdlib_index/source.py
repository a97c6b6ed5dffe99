"""Source files: which there are, and what is known about one from its bytes alone."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

STDLIB = Path(sysconfig.get_path("stdlib"))
PACKAGES = Path(sysconfig.get_path("purelib"))
ENOUGH = 1000
"""A standard library with fewer files was stripped by its distributor."""
NOT_PYTHON = {".txt", ".rst", ".css", ".ps1", ".csh", ".fish"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the index says about one file."""

    path: str
    sha256: str
    lines: int
    functions: int
    classes: int


def facts_of(path: Path) -> Facts:
    """Read and parse one file; raises `SyntaxError` where it is not valid source."""
    source = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "\d" in an old string: not our business
        tree = ast.parse(source, filename=str(path))
    kinds = Counter(type(node) for node in ast.walk(tree))
    return Facts(
        path=str(path),
        sha256=hashlib.sha256(source).hexdigest(),
        lines=len(source.splitlines()),
        functions=kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        classes=kinds[ast.ClassDef],
    )


def source_files(limit: int = 0) -> list[Path]:
    """Find the standard library's files, largest first; with `limit`, the smallest ones only.

    Its test data has files that are broken on purpose. Many distributors leave the tests out; then
    the library's text files stand in for those (they are no Python, so they fail as truly), and
    the installed packages make up the number.
    """
    files = [path for path in STDLIB.rglob("*.py") if not _installed(path)]
    if not (STDLIB / "test" / "tokenizedata").is_dir():
        files += [path for path in STDLIB.rglob("*") if path.suffix in NOT_PYTHON]
        files = [path for path in files if not _installed(path)]
    if not limit and len(files) < ENOUGH:
        files += sorted(PACKAGES.rglob("*.py"))[:ENOUGH]
    files.sort(key=lambda path: (-path.stat().st_size, path))
    return files[-limit:] if limit else files


def short(path: str | Path) -> str:
    """Give a file's name inside the library it belongs to."""
    for library in (PACKAGES, STDLIB):
        if Path(path).is_relative_to(library):
            return str(Path(path).relative_to(library))
    return str(path)


def _installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.relative_to(STDLIB).parts)
