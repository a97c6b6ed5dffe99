from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from qframe import ConfigurationError, Queueable, QueueManager, dispatch, manager
from qframe.config import ConnectionSettings
from qframe.drivers.base import BaseQueue

pytestmark = pytest.mark.usefixtures("fresh")


class ListSettings(ConnectionSettings):
    driver: Literal["list"] = "list"
    size: Annotated[int, Field(gt=0)] = 10


class ListQueue(BaseQueue):
    """Keeps what is pushed in a list."""

    settings_model = ListSettings

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        super().__init__(name, settings)
        self.pushed: list[bytes] = []

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        self.pushed += [raw for raw, _ in messages]
        return ""

    def ping(self) -> str:
        return "a list"


class Job(Queueable):
    connection = "mine"

    def handle(self) -> None:
        pass


MINE = {"connections": {"mine": {"driver": "list", "size": 5}}}


def test_a_connection_is_made_when_first_used_and_then_the_same(fresh: Path) -> None:
    queues = QueueManager()
    assert queues.opened() == []
    queue = queues.connection()
    assert queue is queues.connection("database") is queues.connection()
    assert queues.opened() == [queue]
    assert not (fresh / "qframe.sqlite3").exists(), "it is not even opened"


def test_two_threads_get_one_connection() -> None:
    queues = QueueManager()
    start = threading.Barrier(8)
    got: list[BaseQueue] = []

    def get() -> None:
        start.wait()
        got.append(queues.connection())

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(queue) for queue in got}) == 1


def test_the_default_is_the_first_of_the_names() -> None:
    names = QueueManager({"default": "sync", "connections": {"a": {"driver": "null"}}}).names()
    assert names[0] == "sync"
    assert {"a", "database", "null"} <= {*names}


def test_extend_adds_a_driver_with_its_settings() -> None:
    queues = QueueManager(MINE)
    queues.extend("list", ListQueue)
    manager.use(queues)
    identity = dispatch(Job()).send()
    queue = queues.connection("mine")
    assert isinstance(queue, ListQueue)
    assert isinstance(queue.settings, ListSettings)
    assert queue.settings.size == 5
    assert identity.encode() in queue.pushed[0]


def test_extend_takes_any_function_and_may_replace_a_driver() -> None:
    queues = QueueManager()
    queues.extend("database", lambda name, settings: ListQueue(f"{name}!", settings))
    assert queues.connection().name == "database!"


def test_the_settings_of_an_added_driver_are_checked() -> None:
    queues = QueueManager({"connections": {"mine": {"driver": "list", "sise": 5}}})
    queues.extend("list", ListQueue)
    with pytest.raises(ConfigurationError, match=r"connections\.mine: .*'sise'.*'size'"):
        queues.connection("mine")


def offer(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("list", value, manager.GROUP)
    monkeypatch.setattr(manager, "entry_points", lambda group: [point] * (group == manager.GROUP))


def test_a_package_may_offer_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "tests.test_manager:ListQueue")
    monkeypatch.setitem(sys.modules, "tests.test_manager", sys.modules[__name__])
    assert isinstance(QueueManager(MINE).connection("mine"), ListQueue)
    with pytest.raises(ConfigurationError, match=r"'lists' \(did you mean 'list'\?\).*list"):
        QueueManager({"connections": {"mine": {"driver": "lists"}}}).connection("mine")


def test_an_offered_driver_that_cannot_be_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(monkeypatch, "no_such_module:Queue")
    with pytest.raises(ConfigurationError, match=r"connections\.mine: the driver 'list' cannot be"):
        QueueManager(MINE).connection("mine")


def test_the_process_has_one_manager_until_it_is_told_another() -> None:
    assert manager.default() is manager.default()
    mine = QueueManager()
    manager.use(mine)
    assert manager.default() is mine
    manager.use(None)
    assert manager.default() is not mine


def test_a_manager_can_be_closed_and_used_again(fresh: Path) -> None:
    queues = QueueManager()
    queues.connection().push_raw(b"{}")
    queues.close()
    assert queues.connection().size() == 1


OTHER: dict[str, Any] = {"other": {"driver": "database", "url": "sqlite:///other.sqlite3"}}


def test_stores_are_the_connections_own_or_the_embedded_ones() -> None:
    queues = QueueManager({"connections": OTHER})
    for connection, home in (("database", "database"), ("other", "other"), ("sync", "database")):
        assert queues.store(connection) is queues.connection(home).own_store()
    assert queues.failed_store() is queues.connection("database").own_failed_store()
    assert queues.failed_store("other") is queues.connection("other").own_failed_store()


def test_stores_may_be_put_elsewhere() -> None:
    queues = QueueManager(
        {"connections": OTHER, "store": {"driver": "other"}, "failed": {"driver": "other"}}
    )
    other = queues.connection("other")
    assert queues.store("database") is other.own_store()
    assert queues.failed_store("database") is other.own_failed_store()
    assert queues.failed_store("other") is other.own_failed_store()


def test_what_cannot_hold_a_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="store: the connection 'sync' cannot hold"):
        QueueManager({"store": {"driver": "sync"}}).store()
    with pytest.raises(ConfigurationError, match="the connection 'sync' keeps no failed jobs"):
        QueueManager().failed_store("sync")
