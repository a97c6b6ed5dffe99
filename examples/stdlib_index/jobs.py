"""The job: one source file."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from examples.stdlib_index.results import Result, Results
from examples.stdlib_index.source import facts_of, short
from qframe import Queueable


class IndexFile(Queueable):
    """Write down what is in one source file.

    A file that is not valid source raises, is tried twice more and ends among the failed jobs.
    """

    path: Path
    results: Path

    tries = 3
    backoff = (0.2, 0.5)
    timeout = 30

    def handle(self) -> None:
        """Do it; a second run writes the same row."""
        facts = facts_of(self.path)
        _opened(self.results).save(Result(facts, self.attempts, os.getpid()))

    def display_name(self) -> str:
        """Show which file it is, in the worker's lines and in `qframe failed`."""
        return f"IndexFile {short(self.path)}"


@functools.cache
def _opened(file: Path) -> Results:
    """Open the results once in each worker."""
    return Results(file)
