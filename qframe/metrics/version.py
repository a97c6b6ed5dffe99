"""The version of the application: configured, the commit of its root, or as installed."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from qframe.config import Settings

_COMMIT = 12
"""The digits of a commit that are shown."""


def of(settings: Settings) -> str:
    """Return the version of the application; "" if unknown. Reads a few small files."""
    return settings.version or _commit(settings.root) or _installed(settings.root)


def _commit(root: Path) -> str:
    try:
        folder = root / ".git"
        if folder.is_file():  # a linked worktree
            folder = root / folder.read_text().partition("gitdir:")[2].strip()
        head = (folder / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name != head:
            common = folder / "commondir"
            shared = folder / common.read_text().strip() if common.is_file() else folder
            head = _reference(shared, name)
    except (OSError, ValueError):
        return ""
    return head[:_COMMIT] if head.isalnum() else ""


def _reference(folder: Path, name: str) -> str:
    loose = folder / name
    if loose.is_file():
        return loose.read_text().strip()
    for line in (folder / "packed-refs").read_text().splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return commit
    return ""


def _installed(root: Path) -> str:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        return metadata.version(project["project"]["name"])
    except (OSError, ValueError, KeyError, TypeError, metadata.PackageNotFoundError):
        return ""
