"""An SQLite file, and backends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qframe.contracts.backend import Timing
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings

Opener = Callable[[], DatabaseBackend]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite3"


@pytest.fixture
def timing() -> Timing:
    return Timing()


@pytest.fixture
def another(file: Path, timing: Timing) -> Iterator[Opener]:
    """Open one more backend, as another process has it."""
    opened = []

    def open_one() -> DatabaseBackend:
        settings = DatabaseSettings(url=f"sqlite:///{file}", busy_timeout=5)
        opened.append(DatabaseBackend("here", settings, timing))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def backend(another: Opener) -> DatabaseBackend:
    return another()
