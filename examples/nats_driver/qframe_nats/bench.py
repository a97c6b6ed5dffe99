"""NatsBench: opens the driver for qframe's conformance suite, on the server of NATS_URL.

NATS_URL=nats://... pytest --pyargs qframe.testing.conformance --backend qframe_nats.bench:NatsBench
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from qframe.contracts.backend import Backend
from qframe.testing.conformance import Bench

from .backend import NatsBackend
from .settings import NatsSettings


class NatsBench(Bench):
    """Each test has a stream of its own."""

    skews = False  # leases end by the server's clock
    _numbers = itertools.count()

    def prepare(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._stream = f"conformance-{os.getpid()}-{next(self._numbers)}"

    def make(self) -> Backend:
        settings = NatsSettings(
            url=os.environ["NATS_URL"], stream=self._stream, retry_after=self.seconds(60)
        )
        return NatsBackend("here", settings, lambda: self.driver_facts, self.timing)
