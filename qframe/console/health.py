"""`qframe health`: whether a worker is alive, or ready.

`qframe_health` answers it before this is imported; this has its help, and reports wrong options.
"""

from __future__ import annotations

from typing import Annotated

import typer

import qframe_health
from qframe.console.text import say
from qframe.exceptions import ConfigurationError

HealthFileOption = Annotated[
    str,
    typer.Option(
        "--health-file",
        envvar=qframe_health.VARIABLE,
        help="File for `qframe health`.",
        show_default=False,
    ),
]


def health(
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Exit 0 if the worker is alive (default).")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Exit 0 if it is alive, connected and takes jobs.")
    ] = False,
    health_file: HealthFileOption = "",
) -> int:
    """Check whether a worker is alive or ready; for probes.

    It reads the file that the worker writes, --health-file; without any, those of all workers of
    this user on this host, which must all be alive. It prints the reason in one line, and exits 0
    or 1.

      qframe health --live
      qframe health --ready --health-file /run/qframe/mail
    """
    if live and ready:
        raise ConfigurationError("give --live or --ready, not both")
    code, line = qframe_health.told(health_file, ready=ready)
    say(line)
    return code
