"""What opens the driver for qframe's conformance suite; not part of the package.

pytest --pyargs qframe.testing.conformance --backend qframe_list_bench:ListBench
"""

from __future__ import annotations

from pathlib import Path

import pytest
from qframe_list import ListBackend, ListSettings, spaces

from qframe.contracts.backend import Backend
from qframe.testing.conformance import Bench


class ListBench(Bench):
    shared = False  # its lists are of one process

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        spaces.clear()

    def make(self) -> Backend:
        return ListBackend("here", ListSettings(space="tests"), self.timing)
