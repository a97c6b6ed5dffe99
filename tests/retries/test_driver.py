"""Watched retries: the first, the rest at a pace, and when they stop; each kill is a new driver."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from qframe import QueueManager, events
from qframe.contracts import FailedJob, History
from qframe.contracts.status import State
from qframe.contracts.step import Push, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.features.base import End
from qframe.operations import retries
from qframe.operations.retries import RetryState
from qframe.retries.driver import EVERY, IDLE, RetryDriver
from qframe.retries.kept import MOST, RetryRuns
from qframe.retries.terms import RetryTerms
from qframe.retries.watched import PATIENCE

pytestmark = pytest.mark.usefixtures("fresh")


class Night:
    """A service, its failed jobs, and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000.0
        self.queues = QueueManager(
            {"default": "m", "connections": {"m": {"driver": "memory"}}} | settings
        )
        self.connection = self.queues.connection()
        self.store = self.queues.failed_store()
        self.driver = self.killed()

    def killed(self) -> RetryDriver:
        """Give another driver in place of one that never comes back."""
        self.queues.connection().store.delete("retry-turn")
        self.driver = RetryDriver(self.queues, lambda: self.now)
        return self.driver

    def keep(self, numbers: Iterable[int], **payload: Any) -> list[FailedJob]:
        made = []
        for number in numbers:
            uuid = f"u-{number}"
            raw = json.dumps({"uuid": uuid, "job": "app.A", "data": {}, **payload}).encode()
            record = FailedJob(
                uuid, "m", "default", raw, "E: no", "app.A", 1, History(), 1000.0 + number
            )
            self.store.add(record)
            made.append(record)
        return made

    def start(self, records: Iterable[FailedJob], *terms: Any) -> str:
        return retries.start(
            self.queues, RetryTerms.read(*terms), map(retries.choose, records), "all", "ops"
        ).id

    def turns(self, count: int = 1) -> RetryState:
        """Let so many turns pass, half a second each."""
        for _ in range(count):
            self.driver.turn()
            self.now += EVERY
        return retries.states(self.queues)[0]

    def work(self, *, well: bool = True) -> list[str]:
        """Run what is ready; give the uuids."""
        found = []
        while jobs := self.connection.reserve(["default"], 100):
            for job in jobs:
                job.context.backend.apply(job.start_plan())
                end = End(State.COMPLETE) if well else End(State.FAILED, error=ValueError("no"))
                job.settle(end)
                found.append(job.uuid)
        return found


@pytest.fixture
def night() -> Night:
    return Night()


@pytest.fixture(params=["together", "apart"])
def anywhere(request: pytest.FixtureRequest) -> Night:
    """Give one whose messages, facts and failed jobs are together, or each elsewhere."""
    memory = {"driver": "memory"}
    if request.param == "together":
        return Night()
    return Night(
        connections={"m": memory, "facts": memory, "failed": memory},
        store={"driver": "facts"},
        failed={"driver": "failed"},
    )


def test_the_rest_waits_for_the_outcome_of_the_first(anywhere: Night) -> None:
    anywhere.start(anywhere.keep(range(8)), 3, "10/s")
    seen = anywhere.turns(6)
    assert (seen.stage, seen.retried, seen.open) == ("first", 3, 3)
    assert len(anywhere.work()) == 3
    seen = anywhere.turns(3)
    assert (seen.stage, seen.retried, seen.done) == ("rest", 8, 3)
    anywhere.work()
    seen = anywhere.turns(2)
    assert (seen.stage, seen.done, seen.failed, seen.open) == ("done", 8, 0, 0)
    assert seen.ended_at is not None
    assert anywhere.store.count() == 0
    assert anywhere.driver.turn() == IDLE
    assert anywhere.connection.store.get("retries") == [None]


def test_too_many_of_the_first_stop_it_and_nothing_is_lost(anywhere: Night) -> None:
    anywhere.start(anywhere.keep(range(100)), 5, "10/s", "failed > 20%")
    anywhere.turns(3)
    anywhere.work(well=False)
    seen = anywhere.turns(5)
    assert (seen.stage, seen.retried, seen.failed) == ("stopped", 5, 5)
    assert seen.why == "failed > 20%: 5 of the latest 5 failed"
    assert anywhere.store.count() == 100
    assert anywhere.connection.size() == 0


def test_a_few_failures_among_the_first_do_not_stop_it(night: Night) -> None:
    night.start(night.keep(range(6)), 5, "10/s", "failed > 20%")
    night.turns(3)
    (job,) = night.connection.reserve(["default"], 1)
    job.context.backend.apply(job.start_plan())
    job.settle(End(State.FAILED, error=ValueError("no")))
    night.work()
    assert night.turns().stage == "rest"


def test_a_service_that_dies_later_stops_it_soon(night: Night) -> None:
    night.start(night.keep(range(400)), 5, "10/s", "failed > 20%")
    for _ in range(40):
        night.turns()
        night.work()
    seen = night.turns()
    assert seen.done > 100
    for _ in range(20):
        night.work(well=False)
        seen = night.turns()
    assert seen.stage == "stopped"
    assert seen.failed <= 20
    assert night.store.count() == 400 - seen.done


def test_a_service_that_hangs_gets_no_more(night: Night) -> None:
    night.start(night.keep(range(60)), 0, "1/s")
    assert night.turns(200).open == RetryTerms.read(0, "1/s").most_open == 30
    night.work()
    assert night.turns(4).open > 0


def test_the_pace_holds_whatever_was_missed(night: Night) -> None:
    night.start(night.keep(range(100)), 0, "2/s", "never")
    assert night.turns(1).retried <= 3
    night.now += 3600
    night.work()
    assert night.turns(1).retried <= 6
    before = night.turns(1).retried
    assert night.turns(20).retried - before <= 20


def test_of_several_workers_one_drives(night: Night) -> None:
    night.start(night.keep(range(50)), 0, "4/s", "never")
    others = [RetryDriver(night.queues, lambda: night.now) for _ in range(4)]
    for _ in range(10):
        assert [each.turn() for each in others] == [EVERY, IDLE, IDLE, IDLE]
        night.now += EVERY
    assert retries.states(night.queues)[0].retried <= 4 * 5 + 4


def test_a_second_failure_is_not_retried_again(anywhere: Night) -> None:
    anywhere.start(anywhere.keep(range(3)), 0, "10/s", "never")
    for _ in range(20):
        anywhere.turns()
        anywhere.work(well=False)
    seen = anywhere.turns()
    assert (seen.stage, seen.retried, seen.failed) == ("done", 3, 3)
    assert anywhere.store.count() == 3


def test_an_attempt_that_raised_counts_as_failed_although_others_follow(night: Night) -> None:
    night.start(night.keep(range(10)), 1, "10/s", "failed > 0")
    night.turns(1)
    (job,) = night.connection.reserve(["default"], 1)
    job.context.backend.apply(job.start_plan())
    job.settle(End(State.RELEASED, delay=60, error=ValueError("no")))
    seen = night.turns()
    assert (seen.stage, seen.failed, seen.why) == ("stopped", 1, "failed > 0: 1 failed")


# -- kills and outages ----------------------------------------------------------------------------


def test_a_driver_killed_before_it_notes_what_it_did_loses_nothing(
    anywhere: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    apply = MemoryBackend.apply

    def counted(backend: MemoryBackend, *steps: Step) -> list[Result]:
        results = apply(backend, *steps)
        for step, result in zip(steps, results, strict=True):
            if result.applied:
                found = (each.raw for each in step.operations if isinstance(each, Push))
                pushed.extend(json.loads(raw)["uuid"] for raw in found)
        return results

    monkeypatch.setattr(MemoryBackend, "apply", counted)
    anywhere.start(anywhere.keep(range(20)), 4, "10/s")
    monkeypatch.setattr(RetryRuns, "write", lambda *_: None)
    anywhere.turns(2)
    assert pushed
    monkeypatch.undo()
    monkeypatch.setattr(MemoryBackend, "apply", counted)
    anywhere.killed()
    for _ in range(20):
        anywhere.turns()
        anywhere.work()
    seen = anywhere.turns()
    assert (seen.stage, seen.retried, seen.done, seen.gone) == ("done", 20, 20, 0)
    assert sorted(pushed) == sorted(f"u-{number}" for number in range(20))


def test_a_driver_killed_between_push_and_removal_does_not_push_twice(anywhere: Night) -> None:
    """So it is where the connection keeps its failed jobs elsewhere."""
    records = anywhere.keep(range(1))
    anywhere.start(records, 1)
    anywhere.turns(1)
    anywhere.store.add(records[0])
    anywhere.start(records, 1)
    anywhere.turns(1)
    assert anywhere.work() == ["u-0"]
    assert anywhere.store.count() == 0


def test_one_that_was_stopped_for_a_while_retries_nothing_more(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.start(night.keep(range(20)), 0, "1000/s", "never")
    frozen = [0.0]
    monkeypatch.setattr("qframe.retries.driver.suspending_clock", lambda: frozen[0])
    find = type(night.store).find

    def slow(store: Any, uuid: str) -> Any:
        frozen[0] += 100.0
        return find(store, uuid)

    monkeypatch.setattr(type(night.store), "find", slow)
    night.driver.turn()
    assert night.store.count() == 19


def test_an_outage_is_waited_for(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    night.start(night.keep(range(5)), 0, "10/s", "never")

    def lost(*_: Any, **__: Any) -> bool:
        raise BackendUnavailable("gone fishing")

    with monkeypatch.context() as patch:
        patch.setattr("qframe.retries.driver.retry", lost)
        seen = night.turns(3)
    assert (seen.stage, seen.retried, seen.troubles) == ("rest", 0, ["gone fishing"])
    night.turns(3)
    assert len(night.work()) == 5


def test_one_without_the_turn_writes_nothing(night: Night) -> None:
    night.start(night.keep(range(3)), 1)
    runs = RetryRuns(night.queues)
    ((text, run),) = runs.active()
    assert runs.takes_turn("another")
    assert runs.write(text, run, "me") is None
    assert runs.write(text, run, "another") is not None


# -- jobs that cannot be watched, or are gone -----------------------------------------------------


def test_what_others_retried_or_removed_is_gone(night: Night) -> None:
    records = night.keep(range(3))
    night.start(records, 3)
    night.store.forget(records[1])
    assert night.turns(1).gone == 1
    night.work()
    seen = night.turns(2)
    assert (seen.stage, seen.retried, seen.done) == ("done", 2, 2)


def test_a_failure_that_was_not_chosen_is_left_alone(night: Night) -> None:
    """Somebody has retried the job meanwhile, and it failed anew."""
    (record,) = night.keep(range(1))
    night.start([record], 1)
    night.store.add(dataclasses.replace(record, failed_at=record.failed_at + 60))
    seen = night.turns(2)
    assert (seen.retried, seen.gone, night.store.count()) == (0, 1, 1)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"job": "App\\Jobs\\Ship@call"}, "u-0: "),
        ({"job": "App\\Jobs\\Ship"}, "another program runs it"),
        ({"wire": "celery"}, "another program runs it"),
        ({"uuid": None}, "it has no id"),
    ],
)
def test_a_job_whose_outcome_nobody_could_know_is_kept(
    night: Night, payload: dict[str, Any], why: str
) -> None:
    night.start(night.keep(range(1), **payload), 1)
    seen = night.turns(2)
    assert (seen.stage, seen.retried, seen.kept) == ("done", 0, 1)
    assert why in seen.troubles[0]
    assert night.store.count() == 1


def test_a_job_without_an_outcome_is_given_up_after_an_hour(night: Night) -> None:
    night.start(night.keep(range(9)), 2)
    night.turns(2)
    night.now += PATIENCE
    seen = night.turns(1)
    assert (seen.stage, seen.unknown) == ("stopped", 2)
    assert seen.why == "the outcome of none of the first is known"


def test_a_status_of_an_earlier_life_is_no_outcome(night: Night) -> None:
    night.start(night.keep(range(2), track=60, retried=4), 1)
    night.turns(1)
    (job,) = night.connection.reserve(["default"], 1)
    assert (job.payload["retried"], job.payload["track"]) == (5, 2 * PATIENCE)
    store = night.connection.store
    (text,) = store.get("status:u-0")
    store.delete("status:u-0")
    earlier = {**json.loads(text or ""), "retries": 4, "state": "FAILED"}
    store.set("status:u-0", json.dumps(earlier))
    assert night.turns(1).open == 1


# -- stopping, and what is stored -----------------------------------------------------------------


def test_it_is_stopped_by_people(night: Night) -> None:
    known = night.start(night.keep(range(50)), 2)
    night.turns(1)
    assert retries.stop(night.queues, known[:4], "ada").stage == "stopping"
    assert retries.states(night.queues)[0].stage == "stopping"
    seen = night.turns(1)
    assert (seen.stage, seen.why, seen.retried) == ("stopped", "stopped by ada", 2)
    with pytest.raises(ConfigurationError, match="is stopped already"):
        retries.stop(night.queues, known, "ada")
    with pytest.raises(ConfigurationError, match="there is no retry 'x'"):
        retries.stop(night.queues, "x", "ada")
    assert night.connection.store.keys("retry-list:") == []


def test_two_go_on_side_by_side(night: Night) -> None:
    night.start(night.keep(range(4)), 0, "10/s", "never")
    night.start(night.keep(range(10, 14)), 0, "10/s", "never")
    night.turns(4)
    assert len(night.work()) == 8
    night.turns(2)
    assert {each.stage for each in retries.states(night.queues)} == {"done"}


def test_long_lists_are_kept_in_parts(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryRuns, "PART", 3)
    night.start(night.keep(range(10)), 0, "1000/s", "never")
    assert len(night.connection.store.keys("retry-list:")) == 4
    night.turns(2)
    assert len(night.work()) == 10
    night.turns(1)
    assert night.connection.store.keys("retry-list:") == []


def test_too_many_jobs_are_refused(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qframe.retries.kept.MOST", 3)
    with pytest.raises(ConfigurationError, match="choose fewer"):
        night.start(night.keep(range(4)))
    assert night.connection.store.keys("retry-") == []
    assert MOST == 1_000_000


def test_without_jobs_nothing_is_stored(night: Night) -> None:
    night.start([])
    assert night.connection.store.keys("retr") == []


def test_listeners_hear_of_each_retry(night: Night) -> None:
    heard: list[str] = []
    events.listen(events.JobRetryRequested)(lambda event: heard.append(event.uuid))
    night.start(night.keep(range(2)), 2)
    night.turns(1)
    assert heard == ["u-0", "u-1"]
