"""The pytest plugin: the fixtures `queued` and `qframe_database`, available wherever qframe is.

It loads the conformance suite's own plugin where that suite is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qframe.manager import QueueManager
    from qframe.testing.fakes import Fake


_SUITE = "qframe.testing.conformance"

pytest.register_assert_rewrite(_SUITE)


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Add `--backend` for drivers' authors only: programs have options of that name."""
    if any(each.startswith(_SUITE) for each in args):
        early_config.pluginmanager.import_plugin(f"{_SUITE}.plugin")


@pytest.fixture
def queued() -> Iterator[Fake]:
    """Records what the test dispatches instead of pushing it: `qframe.testing.fake()`."""
    from qframe.testing.fakes import fake  # noqa: PLC0415 (pytest loads this for every test run)

    with fake() as recorded:
        yield recorded


@pytest.fixture
def qframe_database(tmp_path: Path) -> Iterator[QueueManager]:
    """Gives the test queues of its own, in SQLite files: `qframe.testing.embedded()`."""
    from qframe.testing.embedding import embedded  # noqa: PLC0415 (as above)

    folder = tmp_path / "qframe"
    folder.mkdir()
    with embedded(folder) as queues:
        yield queues
