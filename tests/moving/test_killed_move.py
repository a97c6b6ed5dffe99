"""Moves that are killed beside a dispatcher and workers: each job runs once, wherever."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.process import wait_for
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
KILLS = 6


@contextmanager
def running(fresh: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "QFRAME_CONFIG": str(fresh / "qframe.toml"),
    }
    with (fresh / "said").open("ab") as said:
        made = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=fresh, env=environment, stdout=said, stderr=said
        )
    try:
        yield made
    finally:
        made.kill()
        made.wait()


@pytest.mark.slow
def test_moves_that_are_killed_lose_and_double_nothing(
    fresh: Path, redis_running: RedisServer
) -> None:
    redis_running.command("FLUSHALL")
    (fresh / "qframe.toml").write_text(
        'default = "old"\njobs = ["tests.moving.program"]\n'
        '[connections.old]\ndriver = "database"\nurl = "sqlite:///jobs.sqlite3"\n'
        f'[connections.new]\ndriver = "redis"\nurl = "{redis_running.url}"\n'
    )
    begun, work = fresh / "moving", ("qframe", "work", "--sleep", "0.05", "--quiet")
    with ExitStack() as stack:
        dispatcher = stack.enter_context(running(fresh, "tests.moving.program", "dispatch"))
        for name in ("old", "new"):
            stack.enter_context(running(fresh, *work, name))
        wait_for((fresh / "ran-old").exists, "the first job")
        for number in range(KILLS):
            with running(fresh, "tests.moving.program", "move"):
                wait_for(partial(has_begun, begun, number), "a move")
                time.sleep(random.uniform(0, 0.3))
        dispatcher.kill()
        dispatcher.wait()
        with running(fresh, "qframe", "move", "old", "new", "--wait") as last:
            assert last.wait(60) == 0, (fresh / "said").read_text()
        sent = (fresh / "sent").read_text().split()
        wait_for(lambda: {*sent} <= {*ran(fresh, "old"), *ran(fresh, "new")}, "all jobs")
    both = ran(fresh, "old") + ran(fresh, "new")
    assert [name for name, count in both.items() if count > 1] == []
    assert len(ran(fresh, "new")) > 20


def has_begun(file: Path, before: int) -> bool:
    return file.exists() and len(file.read_text()) > before


def ran(fresh: Path, connection: str) -> Counter[str]:
    file = fresh / f"ran-{connection}"
    return Counter(file.read_text().split() if file.exists() else ())
