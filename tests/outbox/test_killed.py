"""Relays and dispatchers that are killed: what was committed is applied once, in order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from qframe import QueueManager
from tests.outbox.conftest import count
from tests.outbox.program import POINTS, Order
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.outbox.program"]

SLOW = pytest.mark.slow

Started = list[subprocess.Popen[bytes]]


@pytest.fixture
def started(fresh: Path, queues: QueueManager, session: Session) -> Iterator[Started]:
    """Hold the processes of the test; each is killed by its own pid."""
    told = queues.settings.connections
    lines = ['default = "redis"', "[outbox]", 'connection = "main"']
    for name, values in told.items():
        lines += [f"[connections.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    (fresh / "qframe.toml").write_text("\n".join(lines))
    session.execute(text("DROP TABLE IF EXISTS orders"))
    session.execute(text("CREATE TABLE orders (name VARCHAR(50))"))
    session.commit()
    made: Started = []
    yield made
    for each in made:
        each.kill()
        each.wait()


def start(started: Started, fresh: Path, *words: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "QFRAME_CONFIG": str(fresh / "qframe.toml"),
    }
    made = subprocess.Popen([*PROGRAM, *map(str, words)], cwd=fresh, env=environment)
    started.append(made)
    return made


def queued(redis: RedisServer) -> list[str]:
    raws = redis.command("LRANGE", "queues:orders", 0, -1)
    return [json.loads(raw)["data"]["name"] for raw in raws]


def committed(session: Session) -> list[str]:
    found = [str(name) for (name,) in session.execute(text("SELECT name FROM orders"))]
    session.rollback()
    return found


@pytest.mark.parametrize(
    "point", [each if each == "applied" else pytest.param(each, marks=SLOW) for each in POINTS]
)
def test_a_relay_that_is_killed_has_applied_each_once(
    started: Started, fresh: Path, session: Session, redis_running: RedisServer, point: str
) -> None:
    from qframe import dispatch

    names = [f"a-{number}" for number in range(5)]
    for name in names:
        dispatch(Order(name=name)).within(session)
        session.commit()
    assert start(started, fresh, "relay", point).wait(60) == -9
    assert start(started, fresh, "relay", "never").wait(60) == 0
    assert queued(redis_running) == names
    assert count(session) == 0


@pytest.mark.slow
@pytest.mark.long
def test_the_ledger_of_dispatchers_and_relays_that_are_killed(
    started: Started, fresh: Path, session: Session, redis_running: RedisServer
) -> None:
    chance = random.Random(13)
    relays = [start(started, fresh, "relay", "forever") for _ in range(2)]
    programs = [start(started, fresh, "dispatch", f"p{n}", 10**6) for n in range(2)]
    for _ in range(12):
        before = len(committed(session))
        wait_for(lambda: len(committed(session)) > before + 5, "orders", 60)  # noqa: B023
        time.sleep(chance.uniform(0, 0.3))
        some = chance.choice([relays, relays, programs])
        place = chance.randrange(len(some))
        some[place].kill()
        some[place].wait()
        words = ("relay", "forever") if some is relays else ("dispatch", f"p{len(started)}", 10**6)
        some[place] = start(started, fresh, *words)
    for each in [*programs, *relays]:
        each.kill()
        each.wait()
    assert start(started, fresh, "relay", "never").wait(120) == 0
    orders, jobs = committed(session), queued(redis_running)
    assert len(orders) > 50
    assert count(session) == 0
    assert Counter(jobs) == Counter(orders)
    assert max(Counter(jobs).values()) == 1
    for program in {name.partition("-")[0] for name in orders}:
        numbers = [int(name.partition("-")[2]) for name in jobs if name.startswith(f"{program}-")]
        assert numbers == sorted(numbers)
