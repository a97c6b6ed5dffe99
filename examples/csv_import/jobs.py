"""The jobs: a member of the batch for each slice of the file, and what follows them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from examples.csv_import.rows import read_slice, slices
from examples.csv_import.table import Table
from qframe import Batch, Queueable, batch


class ImportSlice(Queueable):
    """Import some hundred rows. Bad ones are counted; a slice that cannot be read at all fails."""

    file: Path
    database: Path
    start: int
    length: int

    def handle(self) -> None:
        """Do it; a second run writes the same rows."""
        _opened(self.database).save(self.start, read_slice(self.file, self.start, self.length))


class Tell(Queueable):
    """Something that follows the batch, and tells of it."""

    database: Path

    def tell(self, event: str, text: str) -> None:
        """Keep it in the database, once: a callback may run twice."""
        _opened(self.database).note(event, text)


class TellProgress(Tell):
    """Follow as slices are done."""

    def handle(self) -> None:
        """Say how far it is."""
        rows = self.batch()
        if rows is not None:
            self.tell("progress", f"{rows.progress:.0%}")


class TellFailure(Tell):
    """Follow the first slice that fails."""

    def handle(self) -> None:
        """Say which, and why."""
        if self.caught is not None:
            self.tell("catch", self.caught.error)


class TellEnd(Tell):
    """Follow when every slice has ended, one way or the other."""

    def handle(self) -> None:
        """Say how many did how."""
        rows = self.batch()
        if rows is not None:
            self.tell("finally", f"{rows.done} done, {rows.failed} failed")


class CountCategories(Tell):
    """Follow when every slice is in the database: only now the sums are right."""

    def handle(self) -> None:
        """Count."""
        self.tell("then", json.dumps(_opened(self.database).categories()))


def import_file(file: Path, database: Path, lines: int) -> Batch:
    """Import a CSV file, so many lines in a job. It is read while the jobs are pushed."""
    parts = (
        ImportSlice(file=file, database=database, start=start, length=length)
        for start, length in slices(file, lines)
    )
    return (
        batch(parts)
        .name(file.name)
        .allow_failures()
        .progress(TellProgress(database=database))
        .catch(TellFailure(database=database))
        .then(CountCategories(database=database))
        .finally_(TellEnd(database=database))
        .dispatch()
    )


@functools.cache
def _opened(file: Path) -> Table:
    return Table(file)
