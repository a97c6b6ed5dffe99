"""What a RabbitMQ of the tests leaves behind is in its own folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.rabbitmq_server import RabbitmqServer


@pytest.mark.slow
def test_a_command_that_crashes_leaves_nothing_where_the_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    server = RabbitmqServer(tmp_path / "server")
    (server.folder / ".erlang.cookie").mkdir()  # so Erlang cannot begin
    with pytest.raises(subprocess.CalledProcessError):
        server.ctl("version")
    assert list(here.iterdir()) == []
    assert (server.folder / "erl_crash.dump").exists()
