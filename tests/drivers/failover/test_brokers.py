"""Failovers of beanstalkd, RabbitMQ and SQS, each beside a memory backend, with one store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qframe import Queueable, QueueManager, WorkerOptions, batch, chain, dispatch, events, manager
from qframe.connection import Connection
from qframe.contracts.backend import Backend
from qframe.contracts.step import Result, Step
from qframe.drivers.failover.backend import FailoverBackend
from qframe.exceptions import BackendUnavailable
from qframe.jobs.registry import Registry
from qframe.testing import drain
from tests.support.broker_settings import broker_settings
from tests.support.process import wait_for

ran: list[str] = []
KINDS = [
    "beanstalkd",
    "sqs",
    pytest.param("rabbitmq", marks=pytest.mark.slow),  # it takes long to start
]


class Told(Queueable):
    word: str
    tries = 3

    def handle(self) -> None:
        ran.append(self.word)
        acts.pop(self.word, list)()


class ToldOnce(Told):
    unique = True


acts: dict[str, Callable[[], object]] = {}


class Pair:
    """The connection `both` of a broker, `one`, and a memory backend, `two`."""

    def __init__(self, one: dict[str, Any]) -> None:
        memory, store = {"driver": "memory"}, {"driver": "facts"}
        both = {"driver": "failover", "connections": ["one", "two"], "retry_down_after": 0.01}
        connections = {"one": one, "two": memory, "facts": memory, "both": both}
        self.queues = QueueManager(
            {"default": "both", "store": store, "failed": store, "connections": connections}
        )
        manager.use(self.queues)
        self.both = self.queues.connection("both")
        self.one: Backend = self.queues.backend("one")
        self.skipped: list[events.Event] = []
        events.listen(events.JobSkipped)(self.skipped.append)

    def connection(self, name: str) -> Connection:
        return self.queues.connection(name)

    def wait_until_it_is_tried_again(self) -> None:
        backend = self.queues.backend("both")
        assert isinstance(backend, FailoverBackend)
        wait_for(lambda: backend._members[0].is_up, "the broker is tried again")

    def work(self) -> None:
        """Work both, once the broker is tried again, until none has a job that is ready."""
        self.wait_until_it_is_tried_again()
        drain("both", ["default"])


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the classes above
    made = Pair(broker_settings(request.param, request))
    yield made
    events.forget(made.skipped.append)
    made.queues.close()
    manager.use(None)
    ran.clear()
    acts.clear()


def silent(backend: Backend, patch: pytest.MonkeyPatch, *, taken: bool) -> None:
    """Let requests have no answer from now on; with `taken` they are done all the same."""
    real = backend.apply

    def applied(*steps: Step) -> list[Result]:
        if taken:
            real(*steps)
        error = BackendUnavailable("no answer")
        error.in_doubt = taken
        raise error

    patch.setattr(backend, "apply", applied)


def test_the_other_takes_what_the_broker_does_not(pair: Pair) -> None:
    dispatch(Told(word="broker")).send()
    with pytest.MonkeyPatch.context() as patch:
        silent(pair.one, patch, taken=False)
        dispatch(Told(word="memory")).send()
        chain([Told(word="1"), Told(word="2")]).dispatch()
        batch([Told(word="x"), Told(word="y")]).then(Told(word="then")).dispatch()
        first = dispatch(ToldOnce(word="only")).send()
        assert dispatch(ToldOnce(word="only")).send() == first
    assert pair.connection("two").size() == 5
    pair.work()
    assert sorted(ran) == sorted(["broker", "memory", "1", "2", "x", "y", "then", "only"])
    assert ran.index("1") < ran.index("2")


def test_a_push_in_doubt_runs_once_whichever_is_first(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        silent(pair.one, patch, taken=True)
        dispatch(Told(word="a")).send()
        pair.wait_until_it_is_tried_again()
        chain([Told(word="1"), Told(word="2")]).dispatch()
    assert pair.connection("two").size() == 2
    pair.work()
    assert sorted(ran) == ["1", "2", "a"]
    assert len(pair.skipped) == 2


def test_an_end_that_the_broker_does_not_hear_is_told_later(pair: Pair) -> None:
    dispatch(Told(word="a")).send()
    with pytest.MonkeyPatch.context() as patch:
        acts["a"] = lambda: silent(pair.one, patch, taken=False)
        drain("both", ["default"])
    assert ran == ["a"]
    pair.work()
    assert ran == ["a"]
    assert pair.both.backend.check().version.startswith("one: ")


def test_a_job_that_fails_is_tried_again_where_it_is(pair: Pair) -> None:
    acts["a"] = lambda: 1 / 0
    dispatch(Told(word="a")).send()
    drain("both", ["default"], options=WorkerOptions(tries=3, memory=0))
    assert ran == ["a", "a"]
    assert list(pair.both.failed.all()) == []


def test_a_worker_that_waits_gets_what_comes_to_either(pair: Pair) -> None:
    backend = pair.queues.backend("both")
    for name in ("one", "two"):
        pair.connection(name).push(Told(word=name))

        def came() -> bool:
            backend.wait(["default"], 2)
            jobs = pair.both.reserve(["default"])
            for job in jobs:
                job.context.backend.apply(job.start_plan())
                job.delete()
            return bool(jobs)

        wait_for(came, f"the job of {name}")
    assert pair.both.reserve(["default"]) == []
