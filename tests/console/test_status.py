"""Cancelling a job that runs, where no worker ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from qframe import tracking
from qframe.console import status as command
from qframe.contracts import State
from tests.console.conftest import Shop

Sleep = Callable[[float], None]


@pytest.fixture
def uuid(shop: Shop) -> str:
    """Give a tracked job that was started here."""
    assert shop.run("dispatch", "shop.Order", '{"number": 1}', "--track").code == 0
    (job,) = shop.queue.reserve(["default"])
    assert shop.queue.start(job)
    return job.uuid


def between_looks(monkeypatch: pytest.MonkeyPatch, sleep: Sleep) -> None:
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


def wishes(shop: Shop) -> list[str]:
    return list(shop.manager.store("database").keys(tracking.CANCEL))


def test_one_that_ends_by_itself_is_not_waited_for(
    shop: Shop, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: float) -> None:
        assert wishes(shop) == [tracking.cancel_key(uuid)]
        store = shop.manager.statuses("database")
        known = store.read(uuid)
        assert known is not None
        store.write(tracking.cancelled(known)._replace(state=State.COMPLETE))

    between_looks(monkeypatch, end)
    monkeypatch.setattr(command, "_PATIENCE", 2)
    said = shop.run("cancel", uuid, "--running")
    assert said.only() == f"qframe: {uuid} has ended already: COMPLETE"
    assert said.code == shop.run("cancel", "no-such-job").code == 2
    assert wishes(shop) == []


def test_a_wish_that_is_not_granted_is_taken_back(
    shop: Shop, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.01)
    said = shop.run("cancel", uuid, "--running")
    assert said.code == 1
    assert "has not been ended in 0.01 s by the worker that runs it" in said.only()
    assert wishes(shop) == []
