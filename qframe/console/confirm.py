"""Confirm: asks on a terminal before jobs are deleted, or only says what would be done."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from qframe.console.text import encodable, say


def stopped(what: Callable[[], str], *, dry_run: bool, yes: bool) -> int | None:
    """Returns the exit code if nothing is to be done; None: go on.

    `what` returns what is about to be done: "delete 4 jobs from database:mail". Where nobody sits
    at a terminal there is no question. A "no" is exit code 1.
    """
    if dry_run:
        say(f"would {what()}")
        return 0
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    words = what()
    if typer.confirm(encodable(f"{words[0].upper()}{words[1:]}?"), err=True):
        return None
    say("nothing was changed")
    return 1
