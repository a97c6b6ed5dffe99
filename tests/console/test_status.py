"""Cancelling a job that runs, where no worker ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from qframe.console import status as command
from qframe.contracts import State
from qframe.contracts.step import Delete, Step
from qframe.features import status
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from tests.console.conftest import Shop, started

Sleep = Callable[[float], None]


@pytest.fixture
def job(shop: Shop, request: pytest.FixtureRequest) -> ReservedJob:
    """Give a job that was started here, by default a tracked one."""
    track = getattr(request, "param", "--track").split()
    assert shop.run("dispatch", "shop.Order", '{"number": 1}', *track).code == 0
    (job,) = shop.queue.reserve(["default"])
    assert started(job)
    return job


def between_looks(monkeypatch: pytest.MonkeyPatch, sleep: Sleep) -> None:
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


def wishes(shop: Shop) -> list[str]:
    return shop.manager.connection("database").store.keys(status.cancel_key(""))


def test_one_that_ends_by_itself_is_not_waited_for(
    shop: Shop, job: ReservedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: float) -> None:
        assert wishes(shop) == [status.cancel_key(job.uuid)]
        job.settle(End(State.COMPLETE))

    between_looks(monkeypatch, end)
    monkeypatch.setattr(command, "_PATIENCE", 2)
    said = shop.run("cancel", job.uuid, "--running")
    assert said.only() == f"qframe: {job.uuid} has ended already: COMPLETE"
    assert said.code == shop.run("cancel", "no-such-job").code == 2
    assert wishes(shop) == []


@pytest.mark.parametrize("job", [""], indirect=True)
def test_nor_is_one_without_status(
    shop: Shop, job: ReservedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[float] = []

    def end(_: float) -> None:
        if not ended:
            job.context.backend.apply(Step(job.reservation, Delete()))
        ended.append(time.monotonic())
        time.sleep(0.01)

    between_looks(monkeypatch, end)
    monkeypatch.setattr(command, "_LOOK", 0.05)
    said = shop.run("cancel", job.uuid, "--running")
    assert said.only() == f"qframe: {job.uuid} has ended already"
    assert ended[-1] - ended[0] < 30
    assert wishes(shop) == []


@pytest.mark.parametrize("job", ["", "--track"], indirect=True)
def test_a_wish_that_is_not_granted_is_taken_back(
    shop: Shop, job: ReservedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.01)
    said = shop.run("cancel", job.uuid, "--running")
    assert said.code == 1
    assert "was not ended within 0.01 s by its worker" in said.only()
    assert wishes(shop) == []
