"""A failover of Redis, behind a proxy that cuts it off, and a SQLite file, with facts in a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    batch,
    bulk,
    chain,
    dispatch,
    events,
    foreign,
    job_status,
    manager,
)
from qframe.config import PlaceSettings
from qframe.connection import Connection
from qframe.contracts.backend import Capability, Health
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import State
from qframe.contracts.step import Push, Result, Step
from qframe.drivers.failover.backend import FailoverBackend
from qframe.drivers.failover.doubts import may_start, open_doubts
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.failed.retry import retry
from qframe.operations import unsafe
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

ran: list[str] = []
acts: dict[str, Callable[[], object]] = {}


class Note(Queueable):
    word: str

    def handle(self) -> None:
        ran.append(self.word)
        acts.get(self.word, list)()


class Only(Note):
    unique = True


class Shop:
    """A failover, its parts, and what it has told."""

    def __init__(self, folder: Path, server: RedisServer, **more: object) -> None:
        self.proxy = Proxy("127.0.0.1", server.port)
        self.queues = QueueManager(
            {
                "default": "both",
                "store": {"driver": "facts"},
                "failed": {"driver": "facts"},
                "connections": {
                    "redis": {"url": server.url_at(self.proxy.port), "timeout": 2},
                    "straight": {"driver": "redis", "url": server.url},
                    "file": {"driver": "database", "url": f"sqlite:///{folder}/jobs.sqlite3"},
                    "facts": {"driver": "database", "url": f"sqlite:///{folder}/facts.sqlite3"},
                    "both": {
                        "driver": "failover",
                        "connections": ["redis", "file"],
                        "retry_down_after": 0.2,
                        **more,
                    },
                },
            }
        )
        manager.use(self.queues)
        # Redis has the script of a push from now on: it applies one whose answer is cut off.
        self.queues.backend("straight").apply(Step(None, Push("default", b"{}")))
        server.command("FLUSHALL")
        self.both = self.queues.connection("both")
        self.told: list[events.Event] = []
        for kind in (events.QueueFailedOver, events.QueueFailedBack, events.JobSkipped):
            events.listen(kind)(self.told.append)

    def there(self) -> tuple[int, int]:
        """Return how many jobs Redis and the file have."""
        return tuple(self.queues.connection(each).size() for each in ("straight", "file"))  # type: ignore[return-value] # two

    def work(self, connection: str = "both") -> None:
        options = WorkerOptions(connection=connection, stop_when_empty=True, memory=0)
        Worker(self.queues, options).run()

    def wait_until_it_is_tried_again(self) -> None:
        (member, _) = self.members
        wait_for(lambda: member.is_up, "the connection is tried again")

    @property
    def members(self) -> list[Any]:
        backend = self.queues.backend("both")
        assert isinstance(backend, FailoverBackend)
        return backend._members

    def kinds(self) -> list[type]:
        return [type(each) for each in self.told]


@pytest.fixture
def shop(tmp_path: Path, redis_running: RedisServer) -> Iterator[Shop]:
    made = Shop(tmp_path, redis_running)
    yield made
    events.forget(made.told.append)
    manager.use(None)
    made.queues.close()
    made.proxy.close()
    ran.clear()
    acts.clear()


# -- pushing --------------------------------------------------------------------------------------


def test_the_first_that_answers_takes_a_job(shop: Shop) -> None:
    shop.proxy.switch(Mode.CUT)
    dispatch(Note(word="a")).send()
    bulk([Note(word="b"), Note(word="c")])
    assert shop.there() == (0, 3)
    assert shop.kinds() == [events.QueueFailedOver]
    assert (shop.told[0].failed, shop.told[0].connection) == ("redis", "both")  # type: ignore[attr-defined] # that event
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    dispatch(Note(word="d")).send()
    assert shop.there() == (1, 3)
    assert shop.kinds() == [events.QueueFailedOver, events.QueueFailedBack]
    shop.work()
    assert sorted(ran) == ["a", "b", "c", "d"]


def test_one_that_is_down_is_left_alone_for_a_while(tmp_path: Path, shop: Shop) -> None:
    shop.proxy.switch(Mode.CUT)
    for member in shop.members:
        member._retry_after = 3600
    for _ in range(3):
        dispatch(Note(word="a")).send()
    seen = shop.proxy.accepted
    for _ in range(5):
        dispatch(Note(word="a")).send()
    assert shop.proxy.accepted == seen
    assert shop.there() == (0, 8)


def test_a_lost_answer_is_asked_for_again_and_the_job_counts_once(shop: Shop) -> None:
    shop.proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL", times=1)
    dispatch(Note(word="a")).send()
    assert shop.proxy.faults
    assert (shop.there(), shop.told) == ((1, 0), [])


def in_doubt(shop: Shop) -> None:
    """Let Redis take what is pushed, and never say so."""
    shop.proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"EVAL")


@pytest.mark.parametrize("first", ["straight", "both"])
def test_of_a_job_whose_push_is_in_doubt_the_first_message_runs(shop: Shop, first: str) -> None:
    in_doubt(shop)
    dispatch(Note(word="a")).send()
    assert shop.there() == (1, 1)
    if first == "straight":  # the worker of one member; its store is the same
        (job,) = shop.queues.connection("straight").reserve(["default"])
        assert may_start(job.context.backend, job.uuid, "redis")
        job.context.backend.apply(job.start_plan())
        job.delete()
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert ran == ([] if first == "straight" else ["a"])
    assert shop.there() == (0, 0)
    assert shop.kinds().count(events.JobSkipped) == 1


def test_the_second_message_of_a_job_touches_nothing_of_it(shop: Shop) -> None:
    in_doubt(shop)
    first = dispatch(Only(word="a")).send()
    (job,) = shop.queues.connection("straight").reserve(["default"])
    assert may_start(job.context.backend, job.uuid, "redis")
    job.context.backend.apply(job.start_plan())
    shop.work()
    assert shop.kinds().count(events.JobSkipped) == 1
    assert dispatch(Only(word="a")).send() == first  # its lock is held: it still runs


def test_a_push_whose_answer_stays_out_is_not_made_again_on_the_same_connection(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a request made again is another message, both would run: they have one connection."""
    (redis, _) = shop.members
    apply, answers = redis.backend.apply, iter([False])

    def applied(*steps: Step) -> list[Result]:
        results: list[Result] = apply(*steps)
        if not next(answers, True):
            raise BackendUnavailable("no answer")
        return results

    monkeypatch.setattr(redis.backend, "apply", applied)
    dispatch(Note(word="a")).send()
    assert shop.there() == (1, 1)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert (ran, shop.there()) == (["a"], (0, 0))


def test_a_cancelled_job_whose_push_was_in_doubt_never_runs(shop: Shop) -> None:
    in_doubt(shop)
    uuid = dispatch(Only(word="a")).send()
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    assert shop.both.cancel(uuid) is Cancelling.REMOVED
    shop.work()
    assert (ran, shop.there()) == ([], (0, 0))


def test_cancelling_the_second_message_leaves_the_job_alone(shop: Shop) -> None:
    in_doubt(shop)
    uuid = dispatch(Only(word="a")).send()
    shop.proxy.switch(Mode.PASS)
    (job,) = shop.queues.connection("file").reserve(["default"])
    assert may_start(job.context.backend, job.uuid, "file")
    job.context.backend.apply(job.start_plan())
    shop.wait_until_it_is_tried_again()
    assert shop.both.cancel(uuid) is not Cancelling.REMOVED
    assert shop.both.cancel(uuid) is Cancelling.RUNNING
    assert dispatch(Only(word="a")).send() == uuid  # its lock is held: it still runs


def test_the_second_message_of_a_job_that_was_retried_is_skipped(shop: Shop) -> None:
    acts["a"] = lambda: 1 / 0
    in_doubt(shop)
    dispatch(Note(word="a")).send()
    shop.work("file")
    acts.clear()
    (record,) = shop.both.failed.all()
    assert retry(shop.queues, shop.both.failed, record)
    assert shop.there() == (1, 1)
    shop.work("file")
    assert ran == ["a", "a"]
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert (ran, shop.there()) == (["a", "a"], (0, 0))


def test_a_second_message_that_counts_as_started_is_skipped_all_the_same(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on beanstalkd, where it counts when a worker dies that only held it."""
    able = shop.both.backend.capabilities & ~Capability.COUNTS
    monkeypatch.setattr(shop.both.backend, "capabilities", able)
    in_doubt(shop)
    dispatch(Note(word="a")).send()
    shop.work("file")
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    (job,) = shop.both.reserve(["default"])
    job.reservation.attempts = 1
    assert job.skip_reason() is not None


def test_a_job_that_has_started_is_not_pushed_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_doubt(shop)

    def taken(facts: Any, uuids: list[str]) -> set[str]:
        assert may_start(facts, uuids[0], "redis")
        return open_doubts(facts, uuids)

    monkeypatch.setattr("qframe.drivers.failover.backend.open_doubts", taken)
    dispatch(Note(word="a")).send()
    assert shop.there() == (1, 0)


def test_without_a_store_that_answers_a_push_in_doubt_raises(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_doubt(shop)

    def away(facts: object, uuids: object) -> set[str]:
        raise BackendUnavailable("the store is away")

    monkeypatch.setattr("qframe.drivers.failover.backend.open_doubts", away)
    with pytest.raises(BackendUnavailable) as raised:
        dispatch(Note(word="a")).send()
    assert raised.value.in_doubt
    assert shop.there() == (1, 0)


def test_what_no_worker_of_qframe_runs_is_never_pushed_twice(shop: Shop) -> None:
    in_doubt(shop)
    with pytest.raises(BackendUnavailable):
        dispatch(foreign("App\\Import")).send()
    shop.wait_until_it_is_tried_again()
    with pytest.raises(BackendUnavailable):
        shop.both.push_raw(b'{"job":"x","uuid":"1"}')
    assert shop.there()[1] == 0


def test_if_none_answers_the_error_is_that_of_the_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.proxy.switch(Mode.CUT)

    def away(*steps: object) -> None:
        raise BackendUnavailable("the file is away")

    monkeypatch.setattr(shop.members[1].backend, "apply", away)
    with pytest.raises(BackendUnavailable, match="does not answer"):
        dispatch(Note(word="a")).send()


# -- working --------------------------------------------------------------------------------------


def test_a_worker_works_those_that_answer_and_later_the_others(shop: Shop) -> None:
    dispatch(Note(word="redis")).send()
    shop.queues.connection("file").push(Note(word="file"))
    shop.proxy.switch(Mode.CUT)
    acts["file"] = lambda: shop.proxy.switch(Mode.PASS)
    shop.work()
    assert "file" in ran
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert ran == ["file", "redis"]
    assert shop.there() == (0, 0)


def test_a_job_whose_connection_went_down_ends_when_it_is_back(shop: Shop) -> None:
    dispatch(Note(word="redis")).send()
    dispatch(Note(word="next")).delay(1000).send()
    acts["redis"] = lambda: shop.proxy.switch(Mode.CUT)
    shop.queues.connection("file").push(Note(word="file"))
    shop.work()
    assert sorted(ran) == ["file", "redis"]
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert shop.queues.connection("straight").sizes().reserved == 0
    assert sorted(ran) == ["file", "redis"]


def test_what_is_told_later_is_not_told_by_forks_too(shop: Shop) -> None:
    dispatch(Note(word="redis")).send()
    (job,) = shop.both.reserve(["default"])
    job.context.backend.apply(job.start_plan())
    shop.proxy.switch(Mode.CUT)
    job.delete()
    kept = shop.members[0]._later
    child = os.fork()
    if not child:
        os._exit(len(kept))
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), len(kept)) == (0, 1)


def test_both_are_worked_in_turn_and_a_waiting_worker_looks_at_both(shop: Shop) -> None:
    for number in range(6):
        dispatch(Note(word=f"redis {number}")).send()
        shop.queues.connection("file").push(Note(word=f"file {number}"))
    jobs = [shop.both.reserve(["default"])[0].reservation.came_from for _ in range(6)]
    assert jobs.count("redis") == jobs.count("file") == 3
    shop.both.clear()
    backend = shop.queues.backend("both")
    threading.Timer(0.1, shop.queues.connection("file").push, [Note(word="late")]).start()

    def came() -> bool:
        backend.wait(["default"], 60)
        return bool(shop.both.reserve(["default"]))

    wait_for(came, "the job of the second connection")


def test_a_chain_goes_on_where_it_can(shop: Shop) -> None:
    acts["a"] = lambda: shop.proxy.switch(Mode.CUT)
    chain([Note(word="a"), Note(word="b"), Note(word="c")]).dispatch()
    shop.work()
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert ran == ["a", "b", "c"]


def test_a_chain_whose_link_is_in_doubt_goes_on_once(shop: Shop) -> None:
    in_doubt(shop)
    chain([Note(word="a"), Note(word="b")]).dispatch()
    shop.proxy.switch(Mode.PASS)
    assert shop.there() == (1, 1)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert ran == ["a", "b"]


def test_batches_locks_statuses_and_retries_are_of_both(shop: Shop) -> None:
    first = dispatch(Only(word="only")).send()
    shop.proxy.switch(Mode.CUT)
    assert dispatch(Only(word="only")).send() == first
    done = batch([Note(word="x"), Note(word="y")]).then(Note(word="then")).dispatch()
    tracked = dispatch(Note(word="fails")).track().send()
    acts["fails"] = lambda: 1 / 0
    shop.proxy.switch(Mode.PASS)
    shop.wait_until_it_is_tried_again()
    shop.work()
    assert sorted(ran) == ["fails", "only", "then", "x", "y"]
    assert dispatch(Only(word="only")).send() != first
    assert done.fresh().is_finished
    assert job_status(tracked).state is State.FAILED  # type: ignore[union-attr] # it is kept
    acts.clear()
    (record,) = shop.both.failed.all()
    assert retry(shop.queues, shop.both.failed, record)
    shop.work()
    assert ran.count("fails") == 2


def test_what_waits_is_counted_listed_and_cancelled_on_both(shop: Shop) -> None:
    one = dispatch(Note(word="a")).send()
    two = shop.queues.connection("file").push(Note(word="b"))
    assert (shop.both.size(), shop.both.sizes().approximate) == (2, False)
    assert shop.both.queues() == ["default"]
    page = shop.both.backend.browse("default", Place.READY, 1)
    assert len(page.found) == 1
    assert len(shop.both.backend.browse("default", Place.READY, 1, page.after).found) == 1
    assert [shop.both.cancel(each) for each in (one, two)] == [Cancelling.REMOVED] * 2
    assert shop.there() == (0, 0)
    shop.proxy.switch(Mode.CUT)
    assert shop.both.sizes().approximate
    assert "redis: " in shop.both.backend.check().warnings[0]
    with pytest.raises(BackendUnavailable):
        shop.both.clear()


@pytest.mark.parametrize(("store", "words"), [("auto", 2), ("file", 1), ("straight", 0)])
def test_check_says_if_the_store_is_not_one_for_all(shop: Shop, store: str, words: int) -> None:
    settings = shop.queues.settings.model_copy(update={"store": PlaceSettings(driver=store)})
    queues = QueueManager(settings)
    both = queues.connection("both")
    assert len(unsafe.of_connection(queues, both, Health("1"))) == words
    queues.close()


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connections", "message"),
    [
        (["redis", "nowhere"], "unknown connection 'nowhere'"),
        (["redis", "sync"], "the connection 'sync' keeps no jobs"),
        (["redis", "redis"], "connections: has 'redis' twice"),
        ([], "connections"),
        (["redis", "other"], "'other' has driver = 'failover' as well"),
    ],
)
def test_wrong_connections_are_one_line(connections: list[str], message: str) -> None:
    there = {
        "both": {"driver": "failover", "connections": connections},
        "other": {"driver": "failover", "connections": ["both"]},
    }
    with pytest.raises(ConfigurationError) as raised:
        QueueManager({"connections": there}).connection("both")
    assert message in str(raised.value)
    assert str(raised.value).startswith("connections.both: ") or "unknown" in message


def test_a_plain_connection_pays_nothing(shop: Shop) -> None:
    plain: Connection = shop.queues.connection("file")
    plain.push(Note(word="a"))
    (job,) = plain.reserve(["default"])
    assert "failover" not in job.payload
