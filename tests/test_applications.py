"""Two applications in one process: each manager has hooks of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, config, dispatch, manager
from qframe.hooks import Hooks

said: list[str] = []


class Say(Queueable):
    """Runs in a thread."""

    def handle(self) -> None:
        said.append("handle")

    def succeeded(self) -> None:
        said.append("succeeded")


class SayOnLoop(Queueable):
    """Runs on the loop of a worker with many slots."""

    async def handle(self) -> None:
        said.append("handle")


class Fails(Queueable):
    def handle(self) -> None:
        raise ValueError

    def failed(self, _: BaseException) -> None:
        said.append("failed")


def hooks_of(name: str) -> Hooks:
    def around(run: Callable[[], Any]) -> Any:
        said.append(name)
        return run()

    async def around_on_loop(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        said.append(f"{name} on the loop")
        return await run()

    return Hooks(around=around, around_on_loop=around_on_loop)


@pytest.fixture
def applications(fresh: Path) -> dict[str, QueueManager]:
    """Two that were both made before a job of either runs, and one without hooks."""
    said.clear()
    settings = {"default": "memory", "jobs": [__name__]}
    managers = {name: QueueManager(settings, hooks_of(name)) for name in ("shop", "blog")}
    return managers | {"": QueueManager(settings)}


def ran(queues: QueueManager, job: Queueable, options: WorkerOptions) -> list[str]:
    queues.connection().push(job)
    Worker(queues, options).run()
    done = said.copy()
    said.clear()
    return done


def test_the_jobs_of_each_run_within_its_own_hook(applications: dict[str, QueueManager]) -> None:
    options = WorkerOptions(stop_when_empty=True, memory=0)
    for name in ("shop", "blog", "shop"):
        queues = applications[name]
        assert ran(queues, Say(), options) == [name, "handle", name, "succeeded"]
        assert ran(queues, Fails(), options) == [name, name, "failed"]
    assert ran(applications[""], Say(), options) == ["handle", "succeeded"]


def test_so_do_those_on_a_loop(applications: dict[str, QueueManager]) -> None:
    options = WorkerOptions(stop_when_empty=True, memory=0, concurrency=2)
    for name in ("shop", "blog"):
        assert ran(applications[name], SayOnLoop(), options) == [f"{name} on the loop", "handle"]
    assert ran(applications[""], SayOnLoop(), options) == ["handle"]


@pytest.mark.usefixtures("fresh")
def test_so_do_those_that_run_in_their_push() -> None:
    said.clear()
    for name in ("shop", "blog"):
        queues = QueueManager({"default": "sync"}, hooks_of(name))
        queues.connection().push(Say())
        assert said == [name, "handle", name, "succeeded"]
        said.clear()


class Kept:
    """The open transaction of a dispatch, as a framework names it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def within(self) -> None:
        return None

    def on_commit(self, act: Callable[[], None]) -> None:
        self.waiting.append(act)


@pytest.mark.usefixtures("fresh")
def test_a_dispatch_joins_the_transaction_of_its_application() -> None:
    opened = Kept()
    settings = {"default": "memory"}
    shop = QueueManager(settings, Hooks(find_open=lambda _: opened))
    blog = QueueManager(settings)
    for queues in (shop, blog):
        manager.use(queues)
        dispatch(Say()).send()
    assert (shop.connection().size(), blog.connection().size()) == (0, 1)
    opened.waiting.pop()()
    assert shop.connection().size() == 1


class SendsOn(Queueable):
    """Dispatches another job once the workers of all applications run jobs."""

    def handle(self) -> None:
        together.wait(60)
        dispatch(Say()).on_queue("next").send()


class SendsOnFromLoop(Queueable):
    async def handle(self) -> None:
        await asyncio.to_thread(together.wait, 20)
        await dispatch(Say()).on_queue("next")


together = threading.Barrier(2)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("job", [SendsOn(), SendsOnFromLoop()])
def test_a_job_dispatches_to_the_connections_of_its_own_worker(
    applications: dict[str, QueueManager], concurrency: int, job: Queueable
) -> None:
    both = [applications["shop"], applications["blog"]]
    options = WorkerOptions(stop_when_empty=True, memory=0, concurrency=concurrency)
    threads = []
    for queues in both:
        queues.connection().push(job)
        threads.append(threading.Thread(target=Worker(queues, options).run))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [queues.connection().size("next") for queues in both] == [1, 1]


def test_settings_loaded_in_two_threads_at_once_stay_apart(fresh: Path) -> None:
    def load(name: str) -> set[str]:
        given: dict[str, Any] = {"default": name}
        return {config.load(given_by=lambda: ("a test", given)).default for _ in range(200)}

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as threads:
            assert [*threads.map(load, ("redis", "memory"))] == [{"redis"}, {"memory"}]
    finally:
        sys.setswitchinterval(interval)
