"""`qframe doctor`: an archive with all that a bug report needs, without secrets and payloads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.options import Config, Json
from qframe.console.text import print_json, say
from qframe.exceptions import ConfigurationError
from qframe.operations import archive
from qframe.operations import doctor as operations


def doctor(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file; default: qframe-doctor-TIME.zip.", show_default=False
        ),
    ] = None,
    *,
    payloads: Annotated[
        bool,
        typer.Option("--payloads", help="Also the latest failed jobs, with payloads and errors."),
    ] = False,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Write an archive for a bug report, without payloads.

    It has one page, report.html, with versions, configuration, `qframe check`, sizes, causes of
    failure, workers with their stacks, and the last hour's metrics. Look at it before you send it.
    Exits 1 if something could not be read: that is named in it.

      qframe doctor
      qframe doctor -o /tmp/report.zip --payloads
    """
    queues, trouble = None, ""
    try:
        queues = configured(config)
    except ConfigurationError as error:
        trouble = str(error)
    report = operations.report(queues, payloads=payloads, trouble=trouble)
    path = output or Path(archive.file_name(time.time()))
    _write(path, archive.packed(report))
    if as_json:
        print_json({"file": str(path), **report.model_dump(exclude={"sections"})})
    else:
        say(f"wrote {path}: look at its {archive.PAGE} before you send it")
        for name, why in report.unread.items():
            say(f"not read  {name}: {why}")
    return int(bool(report.unread))


def _write(path: Path, data: bytes) -> None:
    """Write a file that only this user may read; an existing one is kept."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except ValueError:
        raise ConfigurationError("a file's name has no NUL in it") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
