"""Place: where a command works: the database, the configuration, and whose project this is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qframe import config
from qframe.console.text import print_error, say
from qframe.jobs import project
from qframe.manager import QueueManager
from qframe.payload.text import one_line

_MANAGE = "manage.py"
_DJANGO = "DJANGO_SETTINGS_MODULE"
_FLASK = "FLASK_APP"
_FLASK_FILES = ("app.py", "wsgi.py")
_IMPORTS_FLASK = re.compile(r"^\s*(?:from|import)\s+(?:qframe\.)?flask\b", re.MULTILINE)
_READ = 100_000
"""So many characters of a file are searched."""


class JobsPlace(NamedTuple):
    """Where jobs are, and which setting decides that."""

    connection: str
    described: str
    file: Path | None
    """The file of the jobs, if they are in one."""
    is_new: bool
    """Whether that file is missing, and made now."""
    origin: config.Origin
    hint: str
    """A likely mistake."""

    def title(self) -> str:
        """Returns the connection's name, and where its jobs are."""
        return f"{self.connection} ({self.described})"

    def first_line(self) -> str:
        """Returns the same for people, with whether the file is new."""
        return f"{self.title()[:-1]}, just created)" if self.is_new else self.title()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yields which configuration was read, and a likely mistake."""
        yield "config", one_line(self.origin.described(), 500)
        if self.hint:
            yield "note", self.hint

    def fields(self) -> dict[str, Any]:
        """Returns the same for JSON."""
        return {
            "database": self.described if self.file is None else str(self.file),
            "created": self.is_new,
            **origin_fields(self.origin),
            **({"note": self.hint} if self.hint else {}),
        }


def of(queues: QueueManager, command: str, connection: str | None = None) -> JobsPlace:
    """Returns where the jobs of a connection are, before anything of it is opened."""
    found = queues.connection(connection)
    file = found.backend.path()
    return JobsPlace(
        found.name,
        found.described(),
        file,
        file is not None and not file.exists(),
        queues.settings.origin,
        hint(queues.settings.root, command) or _other_file(file, queues.settings.origin, command),
    )


def origin_fields(origin: config.Origin) -> dict[str, Any]:
    """Returns for JSON which configuration was read; `config` is None if none was."""
    return {
        "config": str(origin.file or origin.framework) or None if not origin.is_nothing else None,
        "looked_in": str(origin.looked_in) if origin.is_nothing else None,
        "variables": list(origin.variables),
    }


def hint(root: Path, command: str) -> str:
    """Returns the command that is likely meant if a framework's project has not joined qframe."""
    if config.framework.source is not None:
        return ""
    words = f"qframe {command}".strip()
    if found := _django():
        return (
            f"this is a Django project ({found}), whose settings are not read: with qframe.django "
            f"in INSTALLED_APPS use python manage.py {words}"
        )
    if found := _flask(root):
        return (
            f"this is a Flask application ({found}), whose settings are not read: with the "
            f"extension qframe.flask.QFrame use flask {words}"
        )
    return ""


def configuration_lines(queues: QueueManager, command: str) -> Iterator[str]:
    """Yields which configuration was read, and a likely mistake."""
    yield f"config  {queues.settings.origin.described()}"
    project.advise(None)
    if found := hint(queues.settings.root, command):
        yield f"note    {found}"


def print_configuration(queues: QueueManager, command: str) -> None:
    for line in configuration_lines(queues, command):
        say(line)


def print_new(new: list[JobsPlace]) -> None:
    """Prints which databases were made just now, and by which configuration."""
    for each in new:
        say(each.first_line())
    for key, text in dict(line for each in new for line in each.lines()).items():
        say(f"{key:<6}  {text}")


def advise(words: Sequence[str]) -> None:
    """Makes a command that creates a database say whose project this is."""
    command = " ".join(words[: 2 if words[:1] == ["schedule"] else 1])
    project.advise(lambda: hint(project.root(), command))


def print_hint(root: Path, command: str) -> None:
    project.advise(None)
    if found := hint(root, command):
        print_error(found, 0)


def _other_file(file: Path | None, origin: config.Origin, command: str) -> str:
    """Says what a database may mean that is made here for want of configuration."""
    if file is None or file.exists() or not origin.is_nothing:
        return ""
    above = (folder / file.name for folder in file.parent.parents)
    there = (one_line(str(path), 200) for path in above if path.is_file())
    found = next((f"{path} is there already: is this the right folder?" for path in there), "")
    if found or command == "migrate":  # which is to make a new one
        return found
    return "no job waits in a new database: start where the program that dispatches does"


def _django() -> str:
    if os.environ.get(_DJANGO):
        return f"{_DJANGO}={one_line(os.environ[_DJANGO], 80)}"
    here = Path.cwd()
    found = (folder / _MANAGE for folder in (here, *here.parents))
    return next((one_line(str(path), 200) for path in found if _DJANGO in _text(path)), "")


def _flask(root: Path) -> str:
    if os.environ.get(_FLASK):
        return f"{_FLASK}={one_line(os.environ[_FLASK], 80)}"
    folders = dict.fromkeys((Path.cwd(), root))
    found = (folder / name for folder in folders for name in _FLASK_FILES)
    return next(
        (one_line(str(path), 200) for path in found if _IMPORTS_FLASK.search(_text(path))), ""
    )


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_READ)
    except OSError:
        return ""
