"""Programs under gevent: all drivers dispatch there, and a worker runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import environment_of

pytest.importorskip("gevent", reason="there is no wheel of it here")

_REPOSITORY = Path(__file__).parents[2]


def test_every_driver_works_under_gevent(
    each_connection: dict[str, object], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.support.under_gevent"],
        cwd=_REPOSITORY,
        env=os.environ | environment_of(each_connection, tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert "all right" in done.stdout, done.stdout + done.stderr
    assert "deaf" not in done.stderr
