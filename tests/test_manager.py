from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from qframe import ConfigurationError, Queueable, QueueManager, dispatch, manager
from qframe.config import ConnectionSettings
from qframe.connection import Connection
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Push, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.null import NullBackend
from qframe.drivers.ordered import OrderedBackend

pytestmark = pytest.mark.usefixtures("fresh")


class ListSettings(ConnectionSettings):
    driver: Literal["list"] = "list"
    size: Annotated[int, Field(gt=0)] = 10


class ListBackend(NullBackend):
    """Keeps what is pushed in a list."""

    settings_model = ListSettings

    def __init__(self, name: str, settings: ListSettings) -> None:
        super().__init__(name, settings)
        self.name, self.settings = name, settings
        self.pushed: list[bytes] = []

    def apply(self, *steps: Step) -> list[Result]:
        pushes = [each for step in steps for each in step.operations if isinstance(each, Push)]
        self.pushed += [push.raw for push in pushes]
        return super().apply(*steps)


class Forgetful(MemoryBackend):
    """Keeps messages, and facts elsewhere."""

    capabilities = MemoryBackend.capabilities & ~(Capability.FACTS | Capability.JOINT)
    needs_facts = True

    def __init__(
        self, name: str, settings: ConnectionSettings, facts: Callable[[], Backend]
    ) -> None:
        super().__init__()
        self.given = facts


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
    got: list[Connection] = []

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
    names = QueueManager(
        {"default": "sync", "connections": {"a": {"driver": "null"}}}
    ).settings.connection_names()
    assert names[0] == "sync"
    assert {"a", "database", "null"} <= {*names}


def test_extend_adds_a_driver_with_its_settings() -> None:
    queues = QueueManager(MINE)
    queues.extend("list", ListBackend)
    manager.use(queues)
    identity = dispatch(Job()).send()
    queue = queues.connection("mine")
    assert isinstance(queue.backend, ListBackend)
    assert isinstance(queue.settings, ListSettings)
    assert queue.settings.size == 5
    assert identity.encode() in queue.backend.pushed[0]


def test_extend_takes_any_function_and_may_replace_a_driver() -> None:
    queues = QueueManager()
    queues.extend("database", lambda name, settings: ListBackend(f"{name}!", settings))
    backend = queues.connection().backend
    assert isinstance(backend, ListBackend)
    assert backend.name == "database!"


def test_the_settings_of_an_added_driver_are_checked() -> None:
    queues = QueueManager({"connections": {"mine": {"driver": "list", "sise": 5}}})
    queues.extend("list", ListBackend)
    with pytest.raises(ConfigurationError, match=r"connections\.mine: .*'sise'.*'size'"):
        queues.connection("mine")


def offer(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("list", value, manager.GROUP)
    monkeypatch.setattr(manager, "entry_points", lambda group: [point] * (group == manager.GROUP))


def test_a_package_may_offer_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "tests.test_manager:ListBackend")
    monkeypatch.setitem(sys.modules, "tests.test_manager", sys.modules[__name__])
    assert isinstance(QueueManager(MINE).connection("mine").backend, ListBackend)
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


def test_facts_and_failed_jobs_are_in_the_connections_own_backend_or_the_embedded_one() -> None:
    queues = QueueManager({"connections": OTHER})
    queues.extend("forgetful", Forgetful)
    queues.settings.connections["mine"] = {"driver": "forgetful"}
    for name in ("database", "other"):
        backend = queues.connection(name).backend
        assert queues.connection(name).store.backend is queues.failed_store(name).place is backend
        assert not isinstance(backend, OrderedBackend)
    home, (mine, sync) = queues.connection().backend, map(queues.connection, ("mine", "sync"))
    assert isinstance(mine.backend, OrderedBackend)
    assert isinstance(mine.backend.messages, Forgetful)
    assert mine.backend.messages.given() is home
    assert mine.backend.facts is queues.failed_store("mine").place is home
    assert isinstance(sync.backend, OrderedBackend)
    assert sync.backend.facts is home


def test_the_embedded_backend_is_opened_only_when_it_is_needed() -> None:
    queues = QueueManager({"default": "mine", "connections": {"mine": {"driver": "forgetful"}}})
    queues.extend("forgetful", Forgetful)
    queues.connection().push_raw("{}")
    (job,) = queues.connection().reserve(["default"])
    queues.connection().backend.apply(job.start_plan())
    job.delete()
    assert list(queues._backends) == ["mine"]
    assert queues.connection().store.get("a") == [None]
    assert list(queues._backends) == ["mine", "database"]


def test_stores_may_be_put_elsewhere() -> None:
    queues = QueueManager(
        {"connections": OTHER, "store": {"driver": "other"}, "failed": {"driver": "other"}}
    )
    other, backend = queues.connection("other").backend, queues.connection("database").backend
    assert isinstance(backend, OrderedBackend)
    assert backend.facts is backend.failed is other
    assert queues.failed_store("database").place is other
    assert queues.failed_store("other").place is other


def test_failed_jobs_may_be_kept_nowhere() -> None:
    queues = QueueManager({"failed": {"driver": "null"}})
    backend = queues.connection().backend
    assert isinstance(backend, OrderedBackend)
    assert isinstance(backend.failed, NullBackend)
    assert backend.facts is backend.messages


def test_what_cannot_hold_a_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="store: the connection 'sync' cannot hold"):
        QueueManager({"store": {"driver": "sync"}}).connection()
    with pytest.raises(ConfigurationError, match="the connection 'sync' keeps no failed jobs"):
        QueueManager().failed_store("sync")


def test_the_memory_connection_is_one_memory() -> None:
    queues = QueueManager({"default": "memory"})
    queues.connection().push_raw("{}")
    assert queues.connection().size() == 1
    assert queues.connection().store.add("a", "1")
    assert queues.connection().backend.read("a") == ["1"]
