"""Batches and flows move as wholes, once none of their jobs runs, wherever the move dies."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from qframe import Flow, QueueManager, Worker, WorkerOptions, batch, chain
from qframe.connection import Connection
from qframe.contracts.queue import Sizes
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Operation, Push
from qframe.exceptions import InvalidPayload
from qframe.failed.retry import retry
from qframe.features.base import End
from qframe.moving import MoveRow, QueueMover
from qframe.moving.leaving import LeavingJobs
from qframe.testing import drain, travel
from tests.moving.acts import (
    PAIRS,
    RAN,
    MovedInGroup,
    MovedJob,
    Site,
    begun,
    is_empty,
    move,
    move_dies,
)


def test_a_job_that_is_left_parked_is_counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = site()
    batch([MovedJob(name="a"), MovedJob(name="b")]).dispatch()
    real = LeavingJobs.with_facts

    def changed(self: LeavingJobs, push: Push, *more: Any) -> list[Operation]:
        return [Expect("changed", "meanwhile"), *real(self, push, *more)]

    with monkeypatch.context() as patch:
        patch.setattr(LeavingJobs, "with_facts", changed)
        assert {*move(queues)} == {("ready", "stays")}
    assert move(queues) == {("ready", "moved"): 2}


def test_a_parked_job_that_cannot_leave_stops_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = site()
    for name in "ab":
        batch([MovedJob(name=name)]).dispatch()
    real, calls = LeavingJobs.copies, itertools.count()

    def copies(self: LeavingJobs, *given: Any) -> Any:
        if next(calls) == 2:  # both are parked
            raise InvalidPayload("its chain has gone on")
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(LeavingJobs, "copies", copies)
        assert move(queues) == {("ready", "moved"): 1, ("ready", "stays"): 1}
    assert move(queues) == {("ready", "moved"): 1}
    drain("new", raises=True)
    assert sorted(RAN) == ["a", "b"]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_batch_moves_as_a_whole(site: Site, pair: str) -> None:
    queues = site(pair)
    old, new = queues.connection("old"), queues.connection("new")
    jobs = [MovedJob(name=name) for name in "1234"]
    more = [MovedInGroup(name=name) for name in "56"]
    made = batch([*jobs[:2], jobs[2:], *more]).name("b").then(MovedJob(name="then")).dispatch()
    done, running = begun(old), begun(old)
    done.settle(End(State.COMPLETE))
    assert move(queues) == {("ready", "stays"): 3, ("running", "stays"): 1}
    assert new.sizes() == Sizes()
    running.settle(End(State.COMPLETE))
    assert move(queues) == {("ready", "moved"): 3}
    assert is_empty(old)
    batches = new.batches()
    assert batches is not None
    found = batches.read(made.id)
    assert found is not None
    assert (found.connection, found.name, found.total, found.done) == ("new", "b", 5, 2)
    drain("new", raises=True)
    assert sorted(RAN) == [*"3456", "then"]
    found = batches.read(made.id)
    assert found is not None
    assert (found.done, found.is_finished) == (5, True)


# -- flows, and batches in chains and flows -------------------------------------------------------


class MovedList(MovedJob):
    job_name = "moved.list"

    def handle(self) -> list[str]:  # type: ignore[override] # it has a result
        super().handle()
        return ["x", "y", "z"]


class MovedLast(MovedJob):
    given: list[None]
    job_name = "moved.last"

    def handle(self) -> None:
        RAN.append(f"{self.name} of {len(self.given)}")


def everything() -> str:
    """Dispatch a flow with all there is in flows, and a chain with batches in batches."""
    flow = Flow("all")
    first = flow.add(MovedList(name="list"))
    chained = flow.add(chain([MovedJob(name="c1"), MovedJob(name="c2")]), after=[first])
    inner = batch([MovedJob(name="b1"), [MovedJob(name="b2"), MovedJob(name="b3")]])
    together = flow.add(inner.then(MovedJob(name="b4")), after=[first])
    each = flow.map(MovedJob, over=first.result)
    flow.add(MovedLast(name="last", given=each.result), after=[chained, together])
    identity = flow.dispatch().id
    deep = batch([MovedJob(name="d3"), MovedJob(name="d4")])
    nested = batch([MovedJob(name="d2"), chain([MovedJob(name="d5"), deep])])
    chain([MovedJob(name="d1"), nested, MovedJob(name="d6")]).dispatch()
    return identity


ALL = sorted(["list", "last of 3", *"xyz", *"c1 c2 b1 b2 b3 b4 d1 d2 d3 d4 d5 d6".split()])  # noqa: SIM905 (it is read)


def is_done(place: Connection, identity: str) -> bool:
    flows = place.flows()
    assert flows is not None
    found = flows.read(identity)
    assert found is not None
    return found.is_finished and found.connection == place.name


def work(queues: QueueManager, jobs: int) -> None:
    """Work this many jobs of the old connection."""
    options = WorkerOptions(connection="old", max_jobs=jobs, stop_when_empty=True, memory=0)
    Worker(queues, options).run()


@pytest.mark.parametrize("jobs", [0, 1, 2, 4, 6, 9, 12, 15, 18, 21])
def test_flows_and_batches_within_others_move_wherever_they_are(site: Site, jobs: int) -> None:
    queues = site()
    identity = everything()
    if jobs:
        work(queues, jobs)
    assert all(outcome == "moved" for _, outcome in move(queues))
    assert is_empty(queues.connection("old"))
    drain("new", raises=True)
    assert sorted(RAN) == ALL
    assert is_done(queues.connection("new"), identity)
    assert [*queues.connection("old").store.keys("flow:")] == []
    assert move(queues) == {}


@pytest.mark.parametrize("pair", ["sqlite to redis", "mariadb to postgres"])
def test_a_flow_moves_to_another_kind_of_store(site: Site, pair: str) -> None:
    queues = site(pair, signing_key="k" * 32)
    identity = everything()
    work(queues, 6)
    move(queues)
    assert is_empty(queues.connection("old"))
    drain("new", raises=True)
    assert sorted(RAN) == ALL
    assert is_done(queues.connection("new"), identity)


def test_a_flow_waits_for_its_jobs_that_run(site: Site) -> None:
    queues = site()
    old, new = queues.connection("old"), queues.connection("new")
    flow = Flow("f")
    one, two = flow.add(MovedJob(name="1")), flow.add(MovedJob(name="2"))
    flow.add(MovedJob(name="3"), after=[one, two])
    identity = flow.dispatch().id
    running = begun(old)
    assert move(queues) == {("ready", "stays"): 1, ("running", "stays"): 1}
    assert (old.sizes().ready, new.sizes()) == (1, Sizes())
    running.settle(End(State.COMPLETE))
    assert move(queues) == {("ready", "moved"): 1}
    drain("new", raises=True)
    assert RAN == ["2", "3"]
    assert is_done(new, identity)


def test_wherever_the_move_of_a_flow_dies_each_job_runs_once(site: Site) -> None:
    died, at = True, -1
    while died:
        at += 5
        queues = site()
        old, new = queues.connection("old"), queues.connection("new")
        identity = everything()
        RAN.clear()
        work(queues, 5)
        died = move_dies(queues, at)
        with travel(10):  # the lease of what it held has ended
            for name in ("new", "old")[: 1 + at % 2]:
                drain(name, raises=True)
            move(queues)
            drain("new", raises=True)
        with travel(100):
            move(queues)
            assert is_empty(old)
            drain("new", raises=True)
        assert sorted(RAN) == ALL, at
        flows = [each.flows() for each in (old, new)]
        (found,) = [each for store in flows if store and (each := store.read(identity))]
        assert found.is_finished


def test_a_flow_that_stays_is_told_of_before_anything_moves(site: Site) -> None:
    kept = {"driver": "memory"}
    queues = site(extra={"kept": kept}, failed={"driver": "kept"})  # a step is made in parts
    flow = Flow("f")
    flow.add(MovedJob(name="1"))
    flow.dispatch()
    for ended in (True, False):
        batch([MovedJob(name="2")]).dispatch()
        if ended:
            work(queues, 2)
    told = {(row.what, row.outcome): count for row, count in told_of(queues).items()}
    assert told == {("batch", "stays"): 1}
    flow.dispatch()
    told = {(row.what, row.outcome): count for row, count in told_of(queues).items()}
    assert told == {("batch", "stays"): 1, ("flow", "stays"): 1}
    assert {*move(queues)} == {("ready", "stays")}


def told_of(queues: QueueManager) -> Counter[MoveRow]:
    mover = QueueMover(queues, "old", "new")
    rows = mover.staying()
    assert mover.waiting() >= rows
    return rows


@pytest.mark.parametrize("kind", ["flow", "batch"])
def test_a_failed_job_takes_along_what_waits_for_its_retry(site: Site, kind: str) -> None:
    queues = site()
    old, new = queues.connection("old"), queues.connection("new")
    if kind == "flow":
        flow = Flow("f")
        first = flow.add(MovedJob(name="1"))
        flow.add(MovedJob(name="2"), after=[first])
        flow.dispatch()
    else:
        batch([MovedJob(name="1")]).allow_failures().then(MovedJob(name="2")).dispatch()
    begun(old).settle(End(State.FAILED, error=ValueError("no")))
    drain("old", raises=True)
    assert RAN == []
    assert move(queues) == {("failed", "moved"): 1}
    (record,) = new.failed.all()
    assert retry(queues, new.failed, record)
    drain("new", raises=True)
    assert RAN == ["1", "2"]
    assert old.store.keys(f"{kind}:") == []


def test_a_failed_job_stays_with_its_flow_while_jobs_of_that_run(site: Site) -> None:
    queues = site()
    old = queues.connection("old")
    flow = Flow("f")
    for name in "12":
        flow.add(MovedJob(name=name))
    flow.dispatch()
    failing, running = begun(old), begun(old)
    failing.settle(End(State.FAILED, error=ValueError("no")))
    moved = move(queues)
    assert moved.pop(("failed", "stays")) == 1
    assert moved.pop(("running", "stays")) == 1
    running.settle(End(State.COMPLETE))
    assert move(queues)["failed", "moved"] == 1
    assert old.failed.count() == 0
    assert is_empty(old)
