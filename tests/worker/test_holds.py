"""Holds: what a worker sets aside, what comes back and when, and what goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    Queueable,
    Worker,
    WorkerOptions,
    chain,
    dispatch,
    job_status,
    manager,
)
from qframe.connection import Connection
from qframe.contracts.browsing import Place
from qframe.contracts.step import Set, Step
from qframe.exceptions import ConfigurationError
from qframe.features import hold as facts
from qframe.features.hold import Hold
from qframe.operations import holds
from qframe.operations.jobs import FilteredMessage
from qframe.testing import drain
from qframe.worker.holds import WorkerHolds
from tests.conftest import settings_of
from tests.support import here
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer

RAN: list[Any] = []
FAR = (
    '[{"id":"a","filter":"queue:*","who":"","why":"","since":0,"until":1e300,"queues":[],'
    '"ended":false}]'
)


class Charge(Queueable):
    shop: int
    number: int = 0
    tries = 1
    queue = "mail"

    def handle(self) -> None:
        RAN.append((self.shop, self.number))


class Ordered(Charge):
    group = "shop:{shop}"


class Once(Charge):
    unique = True
    unique_for = 30


class Latest(Charge):
    debounce = 0.01


class After(Queueable):
    queue = "mail"

    def handle(self) -> None:
        RAN.append("after")


@pytest.fixture(params=["memory", "database", "redis", "beanstalkd"])
def connection(request: pytest.FixtureRequest, fresh: Path) -> Connection:
    return connected(fresh, settings_of(request))


@pytest.fixture
def memory(fresh: Path) -> Connection:
    return connected(fresh, {"driver": "memory"})


def connected(fresh: Path, backend: dict[str, Any]) -> Connection:
    RAN.clear()
    return here.connected(fresh, backend, __name__)


def hold(connection: Connection, text: str, seconds: float = 3600, **more: Any) -> Hold:
    return holds.begin(connection, text, seconds, "ops", **more)


def ran() -> Sequence[Any]:
    drain(queues="mail")
    return RAN


def only(connection: Connection) -> holds.HoldState:
    (state,) = holds.listed(connection)
    return state


def debounced_for(connection: Connection) -> float:
    ((key, _),) = connection.backend.scan("debounce:")
    (kept,) = connection.backend.copy(key)
    assert kept is not None
    return kept.ttl or 0.0


def test_matching_jobs_are_set_aside_and_come_back(connection: Connection) -> None:
    for shop in (7, 8, 7):
        dispatch(Charge(shop=shop)).send()
    made = hold(connection, "class:*Charge args.shop:7", why="the bank is down")
    assert ran() == [(8, 0)]
    state = only(connection)
    assert (state.id, state.aside, state.who, state.why) == (made.id, 2, "ops", "the bank is down")
    dispatch(Charge(shop=7, number=1)).send()
    dispatch(Charge(shop=8, number=1)).send()
    assert ran() == [(8, 0), (8, 1)]
    assert holds.end(connection, made.id) == 3
    assert holds.listed(connection) == []
    assert not connection.backend.scan("aside:")
    assert sorted(ran()[2:]) == [(7, 0), (7, 0), (7, 1)]  # with their one try
    assert connection.failed.count() == 0
    assert holds.end(connection, made.id) is None


def test_they_come_back_by_themselves(memory: Connection) -> None:
    dispatch(Charge(shop=7)).send()
    hold(memory, "args.shop:7", 0.4)
    drain(queues="mail")
    assert (RAN, memory.sizes("mail").delayed) == ([], 1)
    time.sleep(0.5)
    assert ran() == [(7, 0)]


def test_a_job_that_is_delayed_by_itself_stays_so(connection: Connection) -> None:
    dispatch(Charge(shop=7)).delay(3600).send()
    dispatch(Charge(shop=7, number=1)).send()
    made = hold(connection, "args.shop:7")
    drain(queues="mail")
    assert holds.end(connection, made.id) == 1
    assert ran() == [(7, 1)]
    assert connection.sizes("mail").delayed == 1


def test_a_job_of_a_group_keeps_its_place(memory: Connection) -> None:
    for number in range(3):
        dispatch(Ordered(shop=7, number=number)).send()
    dispatch(Ordered(shop=8)).send()
    made = hold(memory, "args.number:0 args.shop:7")
    assert ran() == [(8, 0)]
    holds.end(memory, made.id)
    assert ran() == [(8, 0), (7, 0), (7, 1), (7, 2)]


def test_a_job_that_comes_late_to_its_group_gets_its_place_first(memory: Connection) -> None:
    dispatch(Ordered(shop=7, number=0)).delay(0.01).send()
    time.sleep(0.02)
    made = hold(memory, "args.number:0")
    drain(queues="mail")
    dispatch(Ordered(shop=7, number=1)).send()
    assert ran() == []
    holds.end(memory, made.id)
    assert ran() == [(7, 0), (7, 1)]


def test_a_chain_waits(memory: Connection) -> None:
    chain([Charge(shop=7), After()]).dispatch()
    made = hold(memory, "args.shop:7")
    assert ran() == []
    holds.end(memory, made.id)
    assert ran() == [(7, 0), "after"]


def test_a_lock_lasts_as_long_as_the_hold(memory: Connection) -> None:
    first = dispatch(Once(shop=7)).send()
    hold(memory, "args.shop:7", 500)
    drain(queues="mail")
    memory.backend.timing.skew += 100  # the lock would be over
    assert dispatch(Once(shop=7)).send() == first


def test_a_debounced_job_is_still_replaced_by_a_later_one(memory: Connection) -> None:
    dispatch(Latest(shop=7)).send()
    time.sleep(0.02)
    before = debounced_for(memory)
    made = hold(memory, "args.shop:7", 500)
    drain(queues="mail")
    assert debounced_for(memory) > before + 400
    dispatch(Latest(shop=7)).send()
    time.sleep(0.02)
    drain(queues="mail")
    assert (RAN, memory.sizes("mail").delayed) == ([], 2)
    holds.end(memory, made.id)
    assert ran() == [(7, 0)]


def test_the_status_says_why(memory: Connection) -> None:
    uuid = dispatch(Charge(shop=7)).track().send()
    made = hold(memory, "args.shop:7", why="the bank is down")
    drain(queues="mail")
    status = job_status(uuid)
    assert status is not None
    assert (status.state.value, status.attempt) == ("WAITING", 0)
    assert status.remark.startswith("held until ")
    assert status.remark.endswith(f" UTC by ops: the bank is down (hold {made.id})")
    holds.end(memory, made.id)
    drain(queues="mail")
    status = job_status(uuid)
    assert status is not None
    assert (status.state.value, status.attempt, status.remark) == ("COMPLETE", 1, "")


def test_only_its_queues(memory: Connection) -> None:
    dispatch(Charge(shop=7)).send()
    hold(memory, "args.shop:7", queues=["other"])
    assert ran() == [(7, 0)]


def test_nothing_is_set_aside_for_a_hold_that_has_just_ended(memory: Connection) -> None:
    dispatch(Charge(shop=7)).send()
    made = hold(memory, "args.shop:7")
    (job,) = memory.reserve(["mail"])
    (text,) = memory.backend.read(facts.holds_key("here"))
    assert text is not None
    holds.end(memory, made.id)
    known = WorkerHolds("here")
    known.heard(text)  # as a worker that has not looked since
    found = known.of(job)
    assert found is not None
    job.settle(known.end(job, found))
    assert (memory.sizes("mail").ready, memory.backend.scan("aside:")) == (1, [])


def test_an_end_that_broke_off_is_brought_to_its_end(memory: Connection) -> None:
    dispatch(Charge(shop=7)).send()
    made = hold(memory, "args.shop:7")
    drain(queues="mail")
    (text,) = memory.backend.read(facts.holds_key("here"))
    assert text is not None
    broken = text.replace('"queues"', '"ended":true,"queues"')
    memory.backend.apply(Step(None, Set(facts.holds_key("here"), broken, 60)))
    assert only(memory).ending
    assert holds.end(memory, made.id) == 1
    assert ran() == [(7, 0)]


def test_jobs_that_a_killed_end_has_taken_come_back_no_later_than_without_it(
    fresh: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: RedisServer = request.getfixturevalue("redis_running")
    server.command("FLUSHALL")
    connection = connected(fresh, {"driver": "redis", "url": server.url})
    monkeypatch.setattr(facts, "_PIECE", 2.0)
    dispatch(Charge(shop=7)).send()
    made = hold(connection, "args.shop:7")
    drain(queues="mail")
    (found,) = connection.backend.browse("mail", Place.DELAYED).found
    assert connection.backend.take(found) is not None  # and then it is killed
    assert holds.end(connection, made.id) == 0
    assert RAN == []
    wait_for(lambda: ran() == [(7, 0)], "the job that was taken")
    assert connection.failed.count() == 0  # with its one try


def test_held_by_says_which(memory: Connection) -> None:
    dispatch(Charge(shop=7)).send()
    hold(memory, "args.shop:7", queues=["mail"])
    hold(memory, "args.shop:8")
    (found,) = memory.backend.search("mail", b"Charge")
    (state,) = holds.held_by(memory, FilteredMessage.of("here", found))
    assert state.filter == "args.shop:7"


def test_a_worker_that_runs_learns_of_both(memory: Connection) -> None:
    worker = Worker(manager.default(), WorkerOptions(queues=("mail",), memory=0, sleep=0.01))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        made = hold(memory, "args.shop:7")

        def is_held() -> bool:
            dispatch(Charge(shop=7)).send()
            return only(memory).aside > 0

        wait_for(is_held, "the worker to hear of the hold")
        dispatch(Charge(shop=8)).send()
        wait_for(lambda: RAN.count((8, 0)) == 1, "a job that is not held")
        assert holds.end(memory, made.id)
        wait_for(lambda: memory.sizes("mail").total == 0, "the jobs that were held")
    finally:
        worker.stop()
        thread.join()


@pytest.mark.parametrize(
    ("text", "seconds", "what"),
    [
        ("", 60, "needs a filter"),
        ("state:ready", 60, "no filter state: of jobs to hold"),
        ("older:5m", 60, "no filter older: of jobs to hold"),
        ("clas:app.A", 60, "class:"),
        ("class:app.A", 0, "at most 14 days"),
        ("class:app.A", 15 * 86400, "at most 14 days"),
        ("class:app.A", float("nan"), "at most 14 days"),
        (f"class:{'a' * 3000}", 60, "characters"),
        ("class:\udcff", 60, "is no text in UTF-8"),
    ],
)
def test_what_is_no_hold(memory: Connection, text: str, seconds: float, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        hold(memory, text, seconds)


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"id": 1}]', "[1]", FAR])
def test_what_cannot_be_read_holds_nothing(memory: Connection, text: str) -> None:
    memory.backend.apply(Step(None, Set(facts.holds_key("here"), text, 60)))
    dispatch(Charge(shop=7)).send()
    assert holds.listed(memory) == []
    assert ran() == [(7, 0)]
    assert holds.begin(memory, "args.shop:7", 60, "ops").filter == "args.shop:7"
