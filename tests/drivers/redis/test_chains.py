"""The step from a link of a chain to the next: one script, all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from qframe import tail
from qframe.contracts import Sizes, State, Store
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.queue import RedisQueue
from qframe.exceptions import BackendUnavailable, BackendUnusable, LeaseLost
from qframe.signing import Signer
from qframe.tail import Change, Link, Step
from qframe.unique import HANDLED
from tests.drivers.redis.conftest import Connect
from tests.drivers.redis.support import begin, body, drain, push, take
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

QUEUE = "emails"
NEXT = "reports"
WORKING, OVER = Sizes(reserved=1), Sizes()


@pytest.fixture
def store(queue: RedisQueue) -> Store:
    return queue.own_store()


def link(uuid: str = "2", delay: float = 0, **more: Any) -> Link:
    return Link(uuid, body(uuid, **more).encode(), NEXT, delay)


def step(*changes: tuple[str, str | None, str | None], push: Link | None = None) -> Step:
    made = tuple(Change(key, expected, wanted, 60) for key, expected, wanted in changes)
    return Step(made, push or link())


def running(queue: RedisQueue, **more: Any) -> RedisJob:
    queue.push_raw(body("1", **more), QUEUE)
    return begin(queue, QUEUE)


def test_the_job_goes_and_the_next_comes(
    server: RedisServer, queue: RedisQueue, store: Store
) -> None:
    store.set("old", "x")
    store.set("same", "=")
    job = running(queue)
    asked = step(("old", "x", None), ("same", "=", "="), ("new", None, ""), ("gone", None, None))
    assert job.hand_over(asked) is True
    assert queue.sizes(QUEUE) == OVER
    assert store.get("old", "same", "new", "gone") == [None, "=", "", None]
    for key in ("same", "new"):
        assert 55_000 < server.command("PTTL", f"qframe:{{store}}:{key}") <= 60_000
    assert server.command("LLEN", f"queues:{NEXT}:notify") == 1
    assert queue.queues() == [NEXT]
    after = take(queue, NEXT)
    assert (after.uuid, after.raw_body) == ("2", link().raw)


def test_each_change_lives_as_long_as_it_says(server: RedisServer, queue: RedisQueue) -> None:
    changes = (Change("a", None, "1", 0.5), Change("b", None, "1", 3600))
    assert running(queue).hand_over(Step(changes, link()))
    assert 0 < server.command("PTTL", "qframe:{store}:a") <= 500
    assert 3_500_000 < server.command("PTTL", "qframe:{store}:b") <= 3_600_000


def test_the_next_may_be_delayed(queue: RedisQueue) -> None:
    assert running(queue).hand_over(step(push=link(delay=60)))
    assert (queue.sizes(QUEUE), queue.sizes(NEXT)) == (OVER, Sizes(delayed=1))


@pytest.mark.parametrize(
    "change", [("a", None, "2"), ("a", "other", "2"), ("b", "1", None), ("a", "", None)]
)
def test_nothing_is_done_where_a_key_holds_something_else(
    queue: RedisQueue, store: Store, change: tuple[str, str | None, str | None]
) -> None:
    store.set("a", "1")
    job = running(queue, track=60, unique={"key": "unique:own", "for": 60, "until": HANDLED})
    store.set("unique:own", "1")
    assert job.hand_over(step(("first", None, "x"), change)) is None
    assert (queue.sizes(QUEUE), queue.sizes(NEXT)) == (WORKING, OVER)
    assert store.get("first", "a", "b", "unique:own") == [None, "1", None, "1"]
    status = queue.own_statuses().read("1")
    assert status is not None
    assert status.state is State.RUNNING
    assert job.hand_over(step(("a", "1", None))) is True
    assert store.get("a", "unique:own") == [None, None]


def test_nothing_is_done_where_the_lease_was_lost(
    server: RedisServer, queue: RedisQueue, store: Store
) -> None:
    store.set("unique:own", "1")
    job = running(queue, unique={"key": "unique:own", "for": 60, "until": HANDLED})
    server.command("ZADD", f"queues:{QUEUE}:reserved", 1, job.stored)
    assert take(queue, QUEUE).uuid == "1"
    assert job.hand_over(step(("new", None, "1"))) is False
    assert job.hand_over(step(("new", "other", "1"))) is False, "whatever the keys hold"
    assert store.get("new", "unique:own") == [None, "1"]
    assert (queue.sizes(QUEUE), queue.sizes(NEXT)) == (WORKING, OVER)


def test_nothing_is_done_where_the_next_cannot_be_pushed(
    server: RedisServer, queue: RedisQueue, store: Store
) -> None:
    server.command("SET", f"queues:{NEXT}", "in the way")
    job = running(queue)
    with pytest.raises(BackendUnusable, match="is a string, not a list"):
        job.hand_over(step(("new", None, "1")))
    assert (queue.sizes(QUEUE), store.get("new")) == (WORKING, [None])


def test_its_statuses_are_noted_in_the_same_step(queue: RedisQueue) -> None:
    job = running(queue, track=60)
    assert job.hand_over(step(push=link(track=60, delay=30)))
    statuses = queue.own_statuses()
    one, two = statuses.read("1"), statuses.read("2")
    assert one is not None
    assert two is not None
    assert (one.state, two.state, two.queue) == (State.COMPLETE, State.WAITING, NEXT)


def test_a_lock_passes_from_a_link_to_the_next(queue: RedisQueue, store: Store) -> None:
    """The free of the one does not take it from the other."""
    said: dict[str, Any] = {"unique": {"key": "unique:k", "for": 60, "until": HANDLED}}
    store.set("unique:k", "1", 60)
    job = running(queue, **said)
    assert job.hand_over(step(("unique:k", "1", "2"), push=link(**said)))
    assert store.get("unique:k") == ["2"]
    assert drain(queue, NEXT) == ["2"]
    assert store.get("unique:k") == [None]


def test_the_next_is_pushed_with_the_signature_it_has(queue: RedisQueue) -> None:
    queue.signer = Signer(["a key of sufficient length, for once"])
    job = running(queue)
    signed = queue.signer.signed(link().raw, NEXT)
    assert job.hand_over(step(push=link()._replace(raw=signed)))
    assert take(queue, NEXT).raw_body == signed


def test_what_looks_like_notes_of_ours_arrives_as_it_was(queue: RedisQueue) -> None:
    own: dict[str, Any] = {"qframe": {"sent": "0", "history": "no"}}
    assert running(queue).hand_over(step(push=link(**own)))
    after = begin(queue, NEXT)
    assert (after.raw_body, after.attempts()) == (link(**own).raw, 1)


# -- answers that do not come ---------------------------------------------------------------------


@pytest.fixture
def through(proxy: Proxy, own_server: RedisServer, connect: Connect) -> RedisQueue:
    """Give a connection through the proxy; a step was made on it, so the scripts are known."""
    made = connect(url=own_server.url_at(proxy.port))
    assert running(made).hand_over(step())
    assert drain(made, NEXT) == ["2"]
    return made


@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
def test_a_step_whose_answer_was_lost_is_made_once(
    proxy: Proxy, through: RedisQueue, mode: Mode
) -> None:
    job = running(through)
    through.sizes(QUEUE)
    proxy.switch(mode, times=1)
    assert job.hand_over(step(("a", None, "1"))) is True
    assert proxy.faults == 1
    assert through.own_store().get("a") == ["1"]
    assert drain(through, NEXT) == ["2"]


def test_a_conflict_found_at_the_second_asking_is_one(
    proxy: Proxy, through: RedisQueue, own_queue: RedisQueue
) -> None:
    """The first never arrived, and the chain has changed in between."""
    job = running(through)
    through.sizes(QUEUE)
    connect = through.links.server.connect

    def first_another(key: str) -> Any:
        own_queue.own_store().set("a", "other")
        return connect(key)

    through.links.server.connect = first_another  # type: ignore[method-assign]
    proxy.switch(Mode.CUT_REQUEST, times=1)
    assert job.hand_over(step(("a", None, "1"))) is None
    assert proxy.faults == 1
    assert through.sizes(QUEUE) == WORKING
    assert drain(through, NEXT) == []


def test_a_chain_goes_on_once_where_nobody_heard_that_it_has(
    proxy: Proxy, through: RedisQueue
) -> None:
    """The answer is lost, then the server cannot be reached, then the job is deleted again."""
    chain: dict[str, Any] = {"chain": {"id": "c"}}
    tail.begin(through.own_store(), "c", [link("1"), link("2", **chain)], [])
    job = running(through, **chain)
    through.sizes(QUEUE)
    # Only the step itself: its script is known by its digest, and names the queue of the next.
    proxy.switch(Mode.CUT_AFTER_REQUEST, times=1, only=f"queues:{NEXT}".encode())
    connect = through.links.server.connect
    through.links.server.connect = _unreachable  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable):
        job.delete()
    assert proxy.faults == 1
    through.links.server.connect = connect  # type: ignore[method-assign]
    job.delete()
    assert job.is_deleted
    assert drain(through, NEXT) == ["2"]


def _unreachable(key: str) -> Any:
    raise ConnectionRefusedError("nobody listens")


def test_a_link_that_was_done_by_another_worker_is_left_to_it(
    server: RedisServer, queue: RedisQueue
) -> None:
    chain: dict[str, Any] = {"chain": {"id": "c"}}
    tail.begin(queue.own_store(), "c", [link("1"), link("2", **chain)], [])
    job = running(queue, **chain)
    server.command("ZADD", f"queues:{QUEUE}:reserved", 1, job.stored)
    again = begin(queue, QUEUE)
    again.delete()
    with pytest.raises(LeaseLost):
        job.delete()
    assert drain(queue, NEXT) == ["2"]
    assert queue.own_store().keys("chain:") == []
    assert queue.sizes(QUEUE) == OVER


def test_the_last_link_frees_what_its_chain_kept(queue: RedisQueue) -> None:
    chain: dict[str, Any] = {"chain": {"id": "c"}}
    tail.begin(queue.own_store(), "c", [link("1")], [link("never")])
    running(queue, **chain).delete()
    assert queue.own_store().keys("") == []
    assert push(queue, QUEUE) in drain(queue, QUEUE)
