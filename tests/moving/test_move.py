"""What waits moves to another connection as it is, once, wherever the move dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from qframe import batch, chain, dispatch, job_status, send_event
from qframe.contracts.browsing import Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.queue import Sizes
from qframe.contracts.status import State
from qframe.contracts.step import LOST, Bury, Delete, Release, Result, Step
from qframe.drivers.failover.doubts import may_start, open_doubts
from qframe.exceptions import ConfigurationError, InvalidPayload
from qframe.failed.retry import retry
from qframe.features.base import End
from qframe.moving import QueueMover
from qframe.moving.leaving import LeavingJobs
from qframe.moving.transit import Transit
from qframe.payload.envelope import uuid_of
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.state import ScheduleProgress
from qframe.testing import drain, travel
from tests.moving.acts import (
    PAIRS,
    RAN,
    WITH_MARIADB,
    Died,
    MovedInGroup,
    MovedInSteps,
    MovedJob,
    MovedUnique,
    Site,
    attempted,
    begun,
    is_empty,
    move,
    move_dies,
)


@pytest.mark.parametrize("pair", WITH_MARIADB)
def test_each_job_moves_as_it_is(site: Site, pair: str) -> None:
    queues = site(pair)
    old, new = queues.connection("old"), queues.connection("new")
    old.push(MovedJob(name="begun"))
    attempted(old, Release(600, notes=b"two"))
    old.push(MovedJob(name="aside"))
    attempted(old, Bury(b"three"))
    for name in ("first", "second"):
        old.push(MovedJob(name=name))
    old.later(3600, MovedJob(name="later"))
    old.push_raw(b"\x00\xff no JSON")
    dispatch(MovedJob(name="urgent")).priority(0).send()
    places = (Place.READY, Place.DELAYED, Place.BURIED)
    before = {place: old.backend.browse("default", place).found for place in places}
    assert len(before[Place.READY]) == 4
    assert move(queues) == {("ready", "moved"): 4, ("delayed", "moved"): 2, ("buried", "moved"): 1}
    assert is_empty(old)
    for place, was in before.items():
        found = new.backend.browse("default", place).found
        assert [each.raw_body for each in found] == [each.raw_body for each in was]
        for each, one in zip(found, was, strict=True):
            if place is Place.DELAYED:
                assert each.at == pytest.approx(one.at, abs=0.5)
    notes = {b"begun": b"two", b"aside": b"three"}
    for one in [*before[Place.DELAYED], *before[Place.BURIED]]:
        (there,) = new.backend.search("default", uuid_of(one.raw_body).encode())
        taken = new.backend.take(there)
        assert taken is not None
        told = [notes[name] for name in notes if name in one.raw_body]
        assert (taken.attempts, [taken.notes]) == (len(told), told or [b""])


@pytest.mark.parametrize("pair", [*PAIRS, "redis to sqlite with the old store"])
def test_what_is_kept_of_a_job_moves_with_it(site: Site, pair: str) -> None:
    pair, _, shared = pair.partition(" with ")
    queues = site(pair, **({"store": {"driver": "old"}} if shared else {}))
    unique = dispatch(MovedUnique(name="unique")).send()
    tracked = dispatch(MovedJob(name="tracked")).track().send()
    dispatch(MovedJob(name="once")).once("key", within=3600).send()
    chain([MovedJob(name=name) for name in "123"]).dispatch()
    for name in "abc":
        dispatch(MovedInGroup(name=name)).send()
    dispatch(MovedInSteps(name="steps")).send()
    moved = Counter(move(queues))
    assert moved["ready", "moved"] == 6 + 2 * (not shared)  # else two are in line in the store
    assert is_empty(queues.connection("old")) or shared
    again = dispatch(MovedUnique(name="unique")).on_connection("new").send()
    assert again == unique
    known = job_status(tracked, "new")
    assert known is not None
    assert (known.state, known.connection) == (State.WAITING, "old" if shared else "new")
    assert drain("new", raises=True).other == 1  # waits for its event
    assert sorted(RAN) == sorted(["unique", "tracked", "once", *"123", *"abc", "steps begun"])
    assert [each for each in RAN if each in "abc"] == [*"abc"]
    dispatch(MovedJob(name="once")).on_connection("new").once("key", within=3600).send()
    assert queues.connection("new").size() == 1  # that one


@pytest.mark.parametrize("pair", PAIRS)
def test_a_job_that_waits_for_an_event_gets_it_on_the_new_connection(site: Site, pair: str) -> None:
    queues = site(pair)
    uuid = dispatch(MovedInSteps(name="steps")).send()
    drain("old", raises=True)
    assert move(queues) == {("delayed", "moved"): 1}
    assert is_empty(queues.connection("old"))
    assert send_event(uuid, "paid", "yes")
    drain("new", raises=True)
    assert RAN == ["steps begun", "steps yes"]


def test_wherever_a_move_dies_each_job_runs_once(site: Site) -> None:
    """A worker of each connection runs what it gets before the move is begun again."""
    expected = sorted([*"abc", "unique", *"123", "later", "aside", "g1", "g2", "g3"])
    expected = sorted([*expected, "b1", "b2", "then"])
    died, at = True, -1
    while died:
        at += 1
        queues = site()
        old, new = queues.connection("old"), queues.connection("new")
        dispatch(MovedJob(name="aside")).send()
        attempted(old, Bury())
        for name in "abc":
            dispatch(MovedJob(name=name)).send()
        dispatch(MovedUnique(name="unique")).send()
        chain([MovedJob(name=name) for name in "123"]).dispatch()
        dispatch(MovedJob(name="later")).delay(60).send()
        for name in ("g1", "g2", "g3"):
            dispatch(MovedInGroup(name=name)).send()
        batch([MovedJob(name="b1"), MovedJob(name="b2")]).then(MovedJob(name="then")).dispatch()
        RAN.clear()
        died = move_dies(queues, at)
        with travel(10):  # the lease of what it held has ended
            for name in ("new", "old")[: 1 + at % 2]:
                drain(name, raises=True)
            assert "later" not in RAN
            move(queues)
            new.kick()
        with travel(100):  # what was delayed, or buried, and just taken, is held until then
            move(queues)
            assert is_empty(old)
            drain("new", raises=True)
            assert sorted(RAN) == expected, at


@pytest.mark.parametrize("pair", ["memory to memory", "redis to sqlite"])
def test_failed_jobs_are_retried_where_they_are_then(site: Site, pair: str) -> None:
    queues = site(pair)
    old, new = queues.connection("old"), queues.connection("new")
    for number, queue in enumerate(("default", "other", "default")):
        payload = old.envelope(MovedJob(name=str(number))).raw
        record = FailedJob(
            f"u{number}", "old", queue, payload, "E: no", "moved", 3, History(), 1000.0 + number
        )
        old.failed.add(record)
    assert move(queues, "other") == {("failed", "moved"): 1}
    assert move(queues) == {("failed", "moved"): 2}
    assert old.failed.count() == 0
    assert [each.uuid for each in new.failed.all()] == ["u2", "u0", "u1"]
    again = new.failed.find("u2")
    assert again is not None
    assert retry(queues, new.failed, again)
    drain("new", raises=True)
    assert RAN == ["2"]


@pytest.mark.parametrize("more", [{"store": "database"}, {"failed": "database"}, {"failed": "new"}])
def test_failed_jobs_move_where_a_store_is_shared_unless_they_are_retried_meanwhile(
    site: Site, more: dict[str, str]
) -> None:
    queues = site("memory to redis", **{key: {"driver": to} for key, to in more.items()})
    old, new = queues.connection("old"), queues.connection("new")
    for uuid in ("moves", "retried"):
        payload = old.envelope(MovedJob(name=uuid)).raw
        old.failed.add(FailedJob(uuid, "old", "default", payload, "E", "moved", 3, History(), 1.0))

    def retry_another(moved: int) -> None:
        (other,) = [each for each in old.failed.all() if each.connection == "old"]
        assert retry(queues, old.failed, other)

    QueueMover(queues, "old", "new", retry_another).move(["default"])
    assert [each.connection for each in new.failed.all()] == ["new"]
    assert old.failed.count() == ("failed" in more)


def test_what_cannot_move_stays_with_its_reason(site: Site) -> None:
    queues = site()
    old, new = queues.connection("old"), queues.connection("new")
    dispatch(MovedJob(name="x" * 300)).delay(60).send()
    dispatch(MovedJob(name="a")).send()
    new.max_payload = 500
    assert move(queues) == {("ready", "moved"): 1, ("delayed", "stays"): 1}
    assert (old.sizes(), new.sizes()) == (Sizes(0, 1), Sizes(1))


@pytest.mark.parametrize("pair", ["beanstalkd to sqlite", "sqlite to beanstalkd"])
def test_a_server_without_a_store_gives_and_takes_what_is_ready(site: Site, pair: str) -> None:
    queues = site(pair, store={"driver": "database"}, failed={"driver": "database"})
    old, new = queues.connection("old"), queues.connection("new")
    for name in "ab":
        dispatch(MovedUnique(name=name)).send()
    dispatch(MovedJob(name="later")).delay(3600).send()
    by_reserving = pair.startswith("beanstalkd")
    moved = move(queues)
    assert moved == {("ready", "moved"): 2, ("delayed", "stays" if by_reserving else "moved"): 1}
    assert (old.sizes().delayed, new.sizes().delayed) == (by_reserving, not by_reserving)
    if by_reserving:
        old.clear()
        dispatch(MovedJob(name="aside")).send()
        attempted(old, Bury())
        assert move(queues, wait=True) == {("buried", "stays"): 1}
    drain("new", raises=True)
    assert RAN == ["a", "b"]


@pytest.mark.parametrize(
    "pair",
    [
        "sqs to sqlite",
        "sqlite to sqs",
        pytest.param("rabbitmq to sqlite", marks=pytest.mark.slow),  # it takes long to start
        pytest.param("sqlite to rabbitmq", marks=pytest.mark.slow),
    ],
)
def test_a_broker_gives_and_takes_what_is_ready(site: Site, pair: str) -> None:
    one_store = {"driver": "database"}
    queues = site(pair, store=one_store, failed=one_store)
    old, new = queues.connection("old"), queues.connection("new")
    dispatch(MovedJob(name="tried")).send()
    attempted(old, Release(notes=b'{"attempts":[]}'))
    unique = dispatch(MovedUnique(name="unique")).send()
    chain([MovedJob(name="1"), MovedJob(name="2")]).dispatch()
    dispatch(MovedJob(name="later")).delay(3600).send()
    moved = Counter(move(queues, "default"))
    from_broker = not pair.startswith("sqlite")
    assert moved["ready", "moved"] == 3
    assert moved["delayed", "stays" if from_broker else "moved"] == 1
    assert dispatch(MovedUnique(name="unique")).on_connection("new").send() == unique
    jobs, _ = new.backend.reserve(["default"], 10)
    assert sorted(each.attempts for each in jobs) == [0, 0, 1]
    new.backend.apply(*(job.release() for job in jobs))
    drain("new", ["default"], raises=True)
    assert sorted(RAN) == ["1", "2", "tried", "unique"]
    queues.close()


def test_a_chain_is_not_lost_if_another_worker_gets_its_job_between_two_parts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = site("beanstalkd to redis")
    chain([MovedJob(name=name) for name in "123"]).dispatch()
    messages = queues.backend("old")
    apply = messages.apply

    def too_late(*steps: Step) -> list[Result]:
        if any(isinstance(each, Delete) for step in steps for each in step.operations):
            return [LOST for _ in steps]
        return apply(*steps)

    with monkeypatch.context() as patch:
        patch.setattr(messages, "apply", too_late)
        assert move(queues) == {("ready", "moved"): 1, ("running", "stays"): 1}
    drain("new", raises=True)
    assert RAN == ["1", "2", "3"]


def test_a_move_that_is_impossible_says_why(site: Site) -> None:
    queues = site("sqlite to sqlite")
    with pytest.raises(ConfigurationError, match="old and new are the same place"):
        QueueMover(queues, "old", "new")
    with pytest.raises(ConfigurationError, match="the jobs of old are there already"):
        QueueMover(queues, "old", "old")
    with pytest.raises(ConfigurationError, match="the connection 'sync' keeps no jobs"):
        QueueMover(queues, "old", "sync")


def test_the_jobs_of_a_failover_are_moved_from_its_connections(site: Site) -> None:
    both = {"driver": "failover", "connections": ["old", "new"]}
    queues = site(extra={"both": both, "third": {"driver": "memory"}})
    with pytest.raises(ConfigurationError, match=r"move each of them \(old, new\)"):
        QueueMover(queues, "both", "third")
    with pytest.raises(ConfigurationError, match="old is one of the connections of both"):
        QueueMover(queues, "old", "both")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_a_job_whose_push_was_in_doubt_runs_once_wherever_it_has_moved(
    site: Site, *, shared: bool, started: bool
) -> None:
    """Its message on the one connection moves, its message on the other one stays or moves."""
    facts = "kept"
    more = {"store": {"driver": facts}} if shared else {}
    both = {"driver": "failover", "connections": ["old", "two"]}
    memory = {"driver": "memory"}
    queues = site(extra={"both": both, "two": memory, facts: memory}, **more)
    if not shared:
        queues._backends["two"] = queues._own("old")  # only to share its facts
    old = queues.connection("old")
    uuid = str(dispatch(MovedJob(name="a")).on_connection("both").send())
    (message,) = old.backend.browse("default", Place.READY).found
    if shared:
        queues.connection("two").push_raw(message.raw_body)
    else:
        old.push_raw(message.raw_body, "other")
    assert open_doubts(old.backend, [uuid]) == set()
    if started:
        assert may_start(old.backend, uuid, "old")
        attempted(old, Release())
    assert move(queues, "default") == {("ready", "moved"): 1}
    drain("two" if shared else "old", raises=True)
    assert RAN == []
    drain("new", raises=True)
    assert RAN == ["a"]


def test_the_second_message_of_a_job_does_not_move(site: Site) -> None:
    both = {"driver": "failover", "connections": ["old", "two"]}
    memory = {"driver": "memory"}
    queues = site(extra={"both": both, "two": memory, "kept": memory}, store={"driver": "kept"})
    old = queues.connection("old")
    uuid = str(dispatch(MovedJob(name="a")).on_connection("both").send())
    assert open_doubts(old.backend, [uuid]) == set()
    assert may_start(old.backend, uuid, "two")
    assert move(queues) == {}
    assert (old.sizes(), queues.connection("new").sizes()) == (Sizes(), Sizes())


@pytest.mark.parametrize("key", ["moving:old:new:0", "parked:moving:old:new:b:1"])
def test_what_is_on_its_way_and_not_signed_stays_alone(site: Site, key: str) -> None:
    queues = site(signing_key="k" * 32)
    old = queues.connection("old")
    old.store.set(key, "forged")
    dispatch(MovedJob(name="a")).send()
    batch([MovedJob(name="b")]).dispatch()
    with suppress(Died), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transit, "_hand_over", dead)
        move(queues)
    moved = move(queues)
    assert moved.pop(("on its way", "stays")) == 1
    assert moved == {("on its way", "moved"): 1, ("ready", "moved"): 1}
    assert old.store.get(key) == ["forged"]
    drain("new", raises=True)
    assert RAN == ["a", "b"]


def dead(self: Transit, items: object) -> None:
    raise Died


@pytest.mark.parametrize("place", [Place.DELAYED, Place.BURIED])
def test_what_cannot_move_after_all_is_where_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    queues = site()
    old = queues.connection("old")
    dispatch(MovedJob(name="a")).delay(60 if place is Place.DELAYED else 0).send()
    if place is Place.BURIED:
        attempted(old, Bury())
    answers: Iterator[list[Any]] = iter([[]])

    def copies(*_: object) -> list[Any]:
        for each in answers:
            return each
        raise InvalidPayload("changed meanwhile")

    monkeypatch.setattr(LeavingJobs, "copies", copies)
    assert move(queues) == {(place.value, "stays"): 1}
    assert len(old.backend.browse("default", place).found) == 1


def test_waiting_looks_at_queues_only_and_less_and_less(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = site()
    old = queues.connection("old")
    dispatch(MovedJob(name="runs")).track().send()
    job = begun(old)
    pauses: list[float] = []
    looks: list[str] = []

    def slept(self: QueueMover, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            job.settle(End(State.COMPLETE))

    real = old.backend.scan

    def scan(prefix: str, *given: Any, **more: Any) -> Any:
        looks.append(prefix)
        return real(prefix, *given, **more)

    monkeypatch.setattr(QueueMover, "_sleep", slept)
    monkeypatch.setattr(old.backend, "scan", scan)
    assert move(queues, wait=True) == {("status", "moved"): 1}
    assert pauses == [0.5, 1, 2, 4, 4, 4]
    assert looks.count("status:") <= 4


@pytest.mark.parametrize("pair", ["memory to memory", "redis to sqlite"])
def test_what_is_kept_of_ended_jobs_and_of_schedules_moves(site: Site, pair: str) -> None:
    queues = site(pair, signing_key="k" * 32)
    old, new = queues.connection("old"), queues.connection("new")
    tracked = dispatch(MovedJob(name="done")).track().send()
    dispatch(MovedJob(name="once")).once("key", within=3600).send()
    drain("old", raises=True)
    rows, of_old, of_new = ScheduleRows(queues), keys_of(queues, old), keys_of(queues, new)
    for name in ("taken", "mine"):
        rows.add(old, name, ScheduleRow(job="moved", data={"name": name}, when="daily"))
    rows.add(new, "taken", ScheduleRow(job="moved", data={"name": "other"}, when="hourly"))
    for key, at in (("mine", 2e9), ("code", 2e9), ("code 2", 1e9)):
        old.store.set(of_old.progress(key), ScheduleProgress(at, 7).text())
    new.store.set(of_new.progress("code 2"), ScheduleProgress(1.5e9, 3).text())
    counts = move(queues)
    assert counts == {("schedule", "moved"): 1, ("schedule", "stays"): 1, ("status", "moved"): 1}
    assert {each.name for each in rows.summaries(old)} == {"taken"}
    names = {(each.title, str(getattr(each.job, "name", ""))) for each in rows.read(new)}
    assert names == {("mine", "mine"), ("taken", "other")}
    there = [new.store.get(of_new.progress(name))[0] or "" for name in ("mine", "code", "code 2")]
    assert [ScheduleProgress.read(each).at for each in there] == [2e9, 2e9, 1.5e9]
    known = job_status(tracked, "new")
    assert known is not None
    assert (known.state, known.connection) == (State.COMPLETE, "new")
    assert old.store.keys("status:") == []
    dispatch(MovedJob(name="once")).on_connection("new").once("key", within=3600).send()
    assert new.size() == 0
    assert move(queues) == {("schedule", "stays"): 1}


def test_a_schedule_that_an_earlier_move_left_on_its_way_is_told_of(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = site()
    old, new = queues.connection("old"), queues.connection("new")
    ScheduleRows(queues).add(
        old, "mine", ScheduleRow(job="moved", data={"name": "x"}, when="daily")
    )

    def died(self: Transit, kept: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Transit, "deliver", died)
        with pytest.raises(Died):
            move(queues)
    key = keys_of(queues, new).changed()
    assert new.store.get(key) == [None]
    move(queues)
    assert new.store.get(key) != [None]  # by which programs that run schedules know of it
