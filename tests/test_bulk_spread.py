"""bulk(spread=...): the jobs of one bulk are delayed evenly."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import Queueable, QueueManager, abulk, bulk, events, manager
from qframe.hooks import of_process
from qframe.testing import fake


class Spreading(Queueable):
    number: int = 0

    def handle(self) -> None: ...


class Later(Spreading):
    delay = 30


class Elsewhere(Spreading):
    connection = "other"


class Alone(Spreading):
    unique = True

    def unique_id(self) -> str:
        return str(self.number)


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> Iterator[QueueManager]:
    del fresh
    memory = {"driver": "memory"}
    made = QueueManager({"default": "m", "connections": {"m": memory, "other": memory}})
    manager.use(made)
    yield made
    manager.use(None)


@pytest.fixture
def delays() -> list[float]:
    """Give the delays of the jobs that are queued, in their order."""
    heard: list[float] = []
    events.listen(events.JobQueued)(lambda event: heard.append(event.delay))
    return heard


def test_the_delays_are_even_from_none_to_almost_all(delays: list[float]) -> None:
    ids = bulk((Spreading(number=n) for n in range(4)), spread=600)
    assert delays == [0, 150, 300, 450]
    assert len(ids) == 4
    sizes = manager.default().connection().sizes()
    assert (sizes.ready, sizes.delayed) == (1, 3)


def test_a_job_keeps_its_own_delay_besides(delays: list[float]) -> None:
    bulk([Later(), Later(), Later()], spread=timedelta(seconds=1))
    assert delays == [30, 30.333, 30.667]


def test_jobs_of_several_connections_are_one_row(delays: list[float]) -> None:
    bulk([Spreading(), Elsewhere(), Alone(number=1), Elsewhere()], spread=4)
    assert sorted(delays) == [0, 1, 2, 3]


def test_spread_until_a_moment(delays: list[float]) -> None:
    bulk([Spreading(), Spreading()], spread=datetime.now(UTC) + timedelta(seconds=100))
    assert delays[1] == pytest.approx(50, abs=1)


def test_without_a_spread_and_without_jobs_nothing_is_delayed(delays: list[float]) -> None:
    assert bulk([], spread=600) == []
    bulk([Spreading(), Spreading()], spread=0)
    bulk([Spreading(), Spreading()])
    assert delays == [0, 0, 0, 0]


def test_on_an_event_loop(delays: list[float]) -> None:
    asyncio.run(abulk((Spreading(number=n) for n in range(3)), spread=3))
    assert delays == [0, 1, 2]


def test_of_a_fake(delays: list[float]) -> None:
    with fake() as queue:
        bulk([Later(), Later()], spread=10)
    assert [each.delay for each in queue.dispatched()] == [30, 35]


def test_at_the_commit_of_a_transaction(
    delays: list[float], queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[Any] = []
    opened = SimpleNamespace(within=lambda: None, on_commit=acts.append)
    monkeypatch.setattr(of_process, "find_open", lambda _: opened)
    bulk([Spreading(), Spreading()], spread=8)
    assert queues.connection().size() == 0
    acts[0]()
    assert delays == [0, 4]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (10**12, ValueError),
        (10**400, ValueError),
        (datetime(2030, 1, 1), ValueError),  # noqa: DTZ001 (a wrong one)
        ("600", TypeError),
        (True, TypeError),
        (None, TypeError),
        ([600], TypeError),
    ],
)
def test_a_wrong_spread_pushes_nothing(wrong: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="spread"):
        bulk([Spreading()], spread=wrong)
    with pytest.raises(kind, match="spread"):
        asyncio.run(abulk([Spreading()], spread=wrong))
    assert manager.default().connection().size() == 0
