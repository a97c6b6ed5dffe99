"""The files that have settings: where they are found, and how they are read."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from qframe.exceptions import ConfigurationError
from qframe.payload.text import one_line

FILE = "qframe.toml"
_PROJECT = "pyproject.toml"
_SHOWN = 3
"""The most environment variables to name in a description of what was read."""


class Origin(NamedTuple):
    """Where settings came from: a file or a framework; neither if both are missing."""

    file: Path | None = None
    framework: str = ""
    """The framework's name for them, such as `settings.QFRAME`."""
    looked_in: Path | None = None
    """The folder where the search upward began; None without a search."""
    variables: tuple[str, ...] = ()
    """The environment variables that are settings."""
    could_be: str = ""
    """What the process's framework could have as settings."""

    @property
    def is_nothing(self) -> bool:
        """Whether a search found no file."""
        return self.looked_in is not None and not (self.file or self.framework)

    def described(self) -> str:
        """Describe in a line what was read, and what follows if it was nothing."""
        read = str(self.file or self.framework)
        if self.is_nothing:
            lacked = f"no {self.could_be}, and " if self.could_be else ""
            read = f"none: {lacked}neither {FILE} nor [tool.qframe] in {self.looked_in} or above"
        shown = ", ".join(self.variables[:_SHOWN])
        more = len(self.variables) - _SHOWN
        variables = f"{shown} and {more} more" if more > 0 else shown
        return ", and ".join(filter(None, (read or "none", variables)))

    def ignored(self) -> list[Path]:
        """Return the files that would count if the used one did not exist, nearest first."""
        found = []
        for path in candidates(self.looked_in or Path.cwd()):
            with suppress(ConfigurationError):  # another user's file may be unreadable
                if path != self.file and read(path) is not None:
                    found.append(path)
        return found


def find(start: Path) -> Path | None:
    """Find the nearest `qframe.toml`, or pyproject.toml with `[tool.qframe]`, here or above."""
    return next((path for path in candidates(start) if read(path) is not None), None)


def candidates(start: Path) -> Iterator[Path]:
    """Iterate over the files here and above that may have settings, in order of precedence."""
    for folder in (start, *start.parents):
        yield from filter(Path.is_file, (folder / FILE, folder / _PROJECT))


def read(path: Path) -> dict[str, Any] | None:
    """Read the settings of one file; None for a pyproject.toml without any.

    Raises `ConfigurationError` if it cannot be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {one_line(str(error))}") from None
    for key in ("tool", "qframe") if path.name == _PROJECT else ():
        if key not in values:
            return None
        values = values[key]
        if not isinstance(values, dict):
            raise ConfigurationError(f"{path}: {key!r} must be a table")
    return values
