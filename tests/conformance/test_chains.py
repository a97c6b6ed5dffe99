"""Chains: how the removal of a link and the push of the next are one step, on every driver."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qframe import events, tail
from qframe.contracts import BatchStore, Capability, State, Store
from qframe.drivers.base import BaseQueue
from qframe.drivers.following import CAUSE
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import BackendUnavailable, InvalidSignature, LeaseLost
from qframe.signing import Signer, is_signed
from qframe.tail import Gone, Link, Step
from qframe.unique import of_raw
from tests.conformance.batches import KINDS, counts, opened, stored_elsewhere
from tests.conformance.drivers import (
    NAME,
    RETRY_AFTER,
    BeanstalkdBench,
    Bench,
    MemoryBench,
    SqliteBench,
)
from tests.conformance.steps import at, begin, body, drain, push

pytestmark = pytest.mark.needs(Capability.RESERVE)
CHAIN = "c"


def link(uuid: str, queue: str = "default", delay: float = 0, **more: Any) -> Link:
    """Make a link; `more` are keys of its payload."""
    message = {**json.loads(body(uuid)), "chain": {"id": CHAIN}, "attempts": 0, "delay": None}
    message.update(more)
    return Link(uuid, json.dumps(message).encode(), queue, delay)


def unique(uuid: str, **more: Any) -> Link:
    return link(uuid, unique={"key": "unique:x", "for": 600, "until": "handled"}, **more)


def store_of(bench: Bench) -> Store:
    store = bench.queue.lock_store()
    assert store is not None
    return store


def dispatch(bench: Bench, *links: Link, catch: Sequence[Link] = ()) -> Store:
    """Begin a chain."""
    store = store_of(bench)
    tail.begin(store, CHAIN, links, catch)
    bench.queue.put_link(links[0])
    return store


def kept(store: Store) -> dict[str, str | None]:
    """Give all that is kept, to be compared."""
    keys = [*store.keys("chain:"), *store.keys("unique:")]
    return dict(zip(keys, store.get(*keys), strict=True))


def begun(where: Bench | BaseQueue, uuid: str) -> BaseJob:
    job = begin(where)
    assert isinstance(job, BaseJob)
    assert job.uuid == uuid
    return job


def again(bench: Bench, uuid: str) -> BaseJob:
    """Start a job whose lease has run out."""
    bench.forward(RETRY_AFTER + 1)
    return begun(bench.another(), uuid)


# -- the step -----------------------------------------------------------------------------------


def test_each_link_comes_when_the_one_before_is_done(bench: Bench) -> None:
    store = dispatch(bench, link("a"), link("b"), link("c"))
    for uuid in ("a", "b", "c"):
        job = begun(bench, uuid)
        assert not job.is_over()
        assert not job.defers, "what follows is not put off"
        assert bench.queue.reserve(["default"]) == []
        job.delete()
        assert job.is_deleted
    assert bench.queue.reserve(["default"]) == []
    assert kept(store) == {}


def test_the_last_one_leaves_nothing_behind(bench: Bench) -> None:
    store = dispatch(bench, link("a"), catch=[link("sorry", chain=None)])
    assert len(kept(store)) == 2
    begun(bench, "a").delete()
    assert kept(store) == {}
    assert bench.queue.reserve(["default"]) == []


@pytest.mark.needs(Capability.DELAY)
def test_a_link_goes_to_its_own_queue_after_its_own_delay(bench: Bench) -> None:
    dispatch(bench, link("a"), link("b", "emails", 30))
    bench.forward(100)
    begun(bench, "a").delete()
    assert bench.queue.reserve(["default", "emails"]) == []
    bench.forward(25)
    assert bench.queue.reserve(["emails"]) == []
    bench.forward(6)
    assert drain(bench.queue, "emails") == ["b"]


def test_what_comes_again_does_not_go_on(bench: Bench) -> None:
    store = dispatch(bench, link("a"), link("b"))
    before = kept(store)
    begun(bench, "a").release()
    begun(bench, "a").retry(0, "error", "ValueError: no")
    assert kept(store) == before
    begun(bench, "a").delete()
    begun(bench, "b").delete()


def test_one_that_was_cancelled_ends_the_chain(bench: Bench) -> None:
    dispatch(bench, link("a"), link("b"))
    job = begun(bench, "a")
    job.ends_as(State.CANCELLED, "while it ran")
    job.delete()
    assert bench.queue.reserve(["default"]) == []


def test_one_that_begins_a_batch_leaves_the_chain_where_it_is(bench: Bench) -> None:
    """It goes on when the batch has finished."""
    opened(bench.batches, 1)
    opened(bench.batches, 0, "a", sealed=False)
    chain = {"id": CHAIN, "batch": True}
    store = dispatch(bench, link("a", chain=chain, batch={"id": "b", "n": 0}), link("b"))
    before = kept(store)
    begun(bench, "a").delete()
    assert kept(store) == before
    assert bench.queue.reserve(["default"]) == []
    assert counts(bench.batches) == (0, 0, 1)


@pytest.mark.needs(Capability.RENEW)
@pytest.mark.parametrize("links", [1, 2])
def test_who_lost_the_lease_changes_nothing(bench: Bench, links: int) -> None:
    store = dispatch(bench, *[link("a"), link("b")][:links])
    late = begun(bench, "a")
    owner = again(bench, "a")
    before = kept(store)
    with pytest.raises(LeaseLost):
        late.delete()
    assert kept(store) == before
    assert bench.queue.reserve(["default"]) == []
    owner.delete()
    assert drain(bench.queue) == ["b"][: links - 1]
    assert kept(store) == {}


def test_a_link_put_in_meanwhile_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what comes next and the step to it."""
    store = dispatch(bench, link("a"), link("b"))
    looked: list[Step | Gone] = []
    look = tail.next_step

    def looks(*arguments: Any, **more: Any) -> Step | Gone:
        looked.append(look(*arguments, **more))
        if len(looked) == 1:
            assert tail.add(store, CHAIN, "a", link("c"), first=False)
            assert tail.add(store, CHAIN, "a", link("first"), first=True)
        return looked[-1]

    job = begun(bench, "a")
    with monkeypatch.context() as patched:
        patched.setattr(tail, "next_step", looks)
        job.delete()
    assert len(looked) == 2
    assert drain(bench.queue) == ["first", "b", "c"]
    assert kept(store) == {}


@pytest.mark.needs(Capability.RENEW)
def test_a_step_that_does_not_fit_any_more_changes_nothing(bench: Bench) -> None:
    store = dispatch(bench, link("a"), link("b"))
    job = begun(bench, "a")
    step = tail.next_step(store, CHAIN, "a", joint=bench.queue.noting)
    assert isinstance(step, Step)
    tail.add(store, CHAIN, "a", link("c"), first=False)
    before = kept(store)
    assert job.hand_over(step) is None
    assert kept(store) == before
    assert bench.queue.reserve(["default"]) == []
    job.renew()
    job.delete()
    assert drain(bench.queue) == ["b", "c"]


@pytest.mark.needs(Capability.DELAY)
def test_a_link_whose_chain_has_gone_on_does_nothing(bench: Bench) -> None:
    opened(bench.batches, 1)
    links = [link(uuid, batch={"id": "b", "n": 0}) for uuid in ("a", "b", "c")]
    store = dispatch(bench, *links)
    begun(bench, "a").delete()
    begun(bench, "b").delete()
    begun(bench, "c").release(30)
    before = kept(store)
    bench.queue.put_link(links[0])
    stale = begun(bench, "a")
    assert stale.is_over()
    stale.delete()
    assert kept(store) == before
    assert bench.queue.reserve(["default"]) == []
    assert counts(bench.batches) == (0, 0, 1)


def test_a_link_whose_chain_is_gone_is_a_job_like_any_other(bench: Bench) -> None:
    push(bench, "x")
    begun(bench, "x").delete()
    bench.queue.put_link(link("a"))
    job = begun(bench, "a")
    assert not job.is_over(), "nobody knows: it is run"
    job.delete()
    assert bench.queue.reserve(["default"]) == []


@pytest.mark.parametrize("within", [None, {"expiresAt": 60.0}])
def test_the_next_one_comes_with_the_signature_it_was_kept_with(
    bench: Bench, within: dict[str, float] | None
) -> None:
    bench.queue.signer = signer = Signer(["k" * 32])
    following = link("b", "emails")._replace(within=within)
    dispatch(bench, link("a"), following._replace(raw=signer.signed(following.raw, "emails")))
    begun(bench, "a").delete()
    (job,) = bench.queue.reserve(["emails"])
    assert is_signed(job.raw_body)
    signer.check(job.raw_body, "emails")


@pytest.mark.parametrize("within", [None, {"expiresAt": 60.0}])
def test_what_was_kept_without_a_signature_gets_none(
    bench: Bench, within: dict[str, float] | None
) -> None:
    """Who may write to the store has no key: the worker that gets the job is to refuse it."""
    bench.queue.signer = signer = Signer(["k" * 32])
    foreigners = link("b", "emails")._replace(within=within)
    dispatch(bench, link("a"), foreigners, catch=[foreigners])
    begun(bench, "a").delete()
    (job,) = bench.queue.reserve(["emails"])
    with pytest.raises(InvalidSignature, match="not signed"):
        signer.check(job.raw_body, "emails")


def test_the_deadlines_of_a_link_count_from_its_push(bench: Bench) -> None:
    long_ago = time.time() - 3600
    kept: dict[str, Any] = {"createdAt": 0, "retryUntil": int(long_ago), "expiresAt": long_ago}
    within = {"retryUntil": 60.0, "expiresAt": 30.5}
    dispatch(bench, link("a"), link("b", **kept)._replace(within=within))
    dispatched = time.time()
    begun(bench, "a").delete()
    pushed = begun(bench, "b").payload
    assert isinstance(pushed["retryUntil"], int)
    for key, seconds in {"createdAt": -1, **within}.items():
        assert dispatched + seconds <= pushed[key] <= time.time() + seconds + 1


def test_the_listeners_are_told_of_the_next_one(bench: Bench) -> None:
    heard: list[events.JobQueued] = []
    dispatch(bench, link("a"), link("b"))
    with events.kept():
        events.listen(events.JobQueued)(heard.append)
        begun(bench, "a").delete()
        begun(bench, "b").delete()
    assert [(event.id, event.queue, event.connection) for event in heard] == [
        ("b", "default", NAME)
    ]


def test_the_statuses_of_both_are_noted(bench: Bench) -> None:
    since: dict[str, Any] = {"track": 60, "trackedSince": round(time.time(), 6)}
    dispatch(bench, link("a", **since), link("b", **since))
    statuses = bench.manager.statuses(NAME)
    assert statuses.read("b") is None
    begun(bench, "a").delete()
    done, waits = statuses.read("a"), statuses.read("b")
    assert done is not None
    assert waits is not None
    assert (done.state, waits.state) == (State.COMPLETE, State.WAITING)


# -- as a member of a batch ---------------------------------------------------------------------


def member_links(bench: Bench, *uuids: str) -> BatchStore:
    opened(bench.batches, 1)
    dispatch(bench, *(link(uuid, batch={"id": "b", "n": 0}) for uuid in uuids))
    return bench.batches


def test_a_chain_is_done_when_its_last_link_is(bench: Bench) -> None:
    store = member_links(bench, "a", "b")
    begun(bench, "a").delete()
    assert counts(store) == (0, 0, 1)
    begun(bench, "b").delete()
    assert counts(store) == (1, 0, 1)
    assert drain(bench.queue, "tell") == ["teller"]


def test_a_chain_has_failed_when_one_of_its_links_has(bench: Bench) -> None:
    store = member_links(bench, "a", "b", "c")
    begun(bench, "a").delete()
    begun(bench, "b").fail(ValueError("no"))
    assert counts(store) == (0, 1, 1)
    assert list(store.failures("b")) == ["b"]
    assert drain(bench.queue) == []
    assert drain(bench.queue, "tell") == ["teller"]


# -- failures -----------------------------------------------------------------------------------


def test_a_failure_ends_the_chain_and_its_catch_comes(bench: Bench) -> None:
    caught = link("sorry", "emails", chain=None)
    dispatch(bench, link("a"), link("b"), catch=[caught, caught._replace(uuid="too")])
    begun(bench, "a").fail(ValueError("no ä👍"))
    assert bench.queue.reserve(["default"]) == []
    found = []
    for _ in range(2):
        (job,) = bench.queue.reserve(["emails"])
        assert bench.queue.start(job)
        found.append(job.payload[CAUSE])
        job.delete()
    assert found == [{"uuid": "a", "name": "Test", "error": "ValueError: no ä👍"}] * 2
    assert bench.failed.count() == 1


def test_it_goes_on_when_the_failed_link_is_retried(bench: Bench) -> None:
    store = dispatch(bench, link("a"), link("b"))
    begun(bench, "a").fail(ValueError("no"))
    record = bench.failed.find("a")
    assert record is not None
    assert bench.queue.requeue(record, record.payload, bench.failed)
    begun(bench, "a").delete()
    assert drain(bench.queue) == ["b"]
    assert kept(store) == {}


@pytest.mark.needs(Capability.RENEW)
def test_who_lost_the_lease_does_not_catch(bench: Bench) -> None:
    dispatch(bench, link("a"), catch=[link("sorry", "emails", chain=None)])
    late = begun(bench, "a")
    owner = again(bench, "a")
    with pytest.raises(LeaseLost):
        late.fail(ValueError("no"))
    assert bench.queue.reserve(["emails"]) == []
    owner.delete()


# -- unique links -------------------------------------------------------------------------------


def test_a_unique_link_takes_its_lock_when_its_turn_comes(bench: Bench) -> None:
    store = dispatch(bench, link("a"), unique("b"), link("c"))
    assert store.keys("unique:") == []
    begun(bench, "a").delete()
    assert store.get("unique:x") == ["b"]
    lock = of_raw(unique("other").raw)
    assert lock is not None
    assert bench.queue.put_unique(unique("other").raw, "default", 0, lock) == "b"
    begun(bench, "b").delete()
    assert store.get("unique:x") == [None], "it is freed at its end"
    begun(bench, "c").delete()
    assert kept(store) == {}


def test_one_whose_lock_another_has_is_passed_over(bench: Bench) -> None:
    heard: list[events.JobDuplicate] = []
    store = dispatch(bench, link("a"), unique("b"), unique("b2"), link("c"))
    store.set("unique:x", "somebody's", 600)
    with events.kept():
        events.listen(events.JobDuplicate)(heard.append)
        begun(bench, "a").delete()
    assert drain(bench.queue) == ["c"]
    assert kept(store) == {"unique:x": "somebody's"}
    assert [event.id for event in heard] == ["b", "b2"]


def test_where_all_that_follow_are_passed_over_it_is_at_its_end(bench: Bench) -> None:
    opened(bench.batches, 1)
    said = {"id": "b", "n": 0}
    store = dispatch(bench, link("a", batch=said), unique("b", batch=said))
    store.set("unique:x", "somebody's", 600)
    begun(bench, "a").delete()
    assert bench.queue.reserve(["default"]) == []
    assert kept(store) == {"unique:x": "somebody's"}
    assert counts(bench.batches) == (1, 0, 1)


def test_a_debounced_link_takes_the_place_of_what_waits(bench: Bench) -> None:
    said = {"key": "debounce:x", "for": 600, "until": "replaced"}
    store = dispatch(bench, link("a"), link("b", unique=said))
    store.set("debounce:x", "earlier", 600)
    begun(bench, "a").delete()
    assert store.get("debounce:x") == ["b"]
    assert drain(bench.queue) == ["b"]


# -- where store and jobs are apart -------------------------------------------------------------

sequential = pytest.mark.parametrize("bench", [BeanstalkdBench, MemoryBench], indirect=True)


def dies(*_arguments: object) -> str:
    raise BackendUnavailable("the worker died")


@sequential
@pytest.mark.parametrize("delays", ["before", "after"])
def test_a_push_that_nobody_knows_of_is_made_again(
    bench: Bench, delays: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between the step and the push, or between the push and the removal."""
    store = dispatch(bench, link("a"), link("b"), link("c"))
    job = begun(bench, "a")
    put = BaseQueue.put_link

    def put_and_die(queue: BaseQueue, pushed: Link) -> str:
        put(queue, pushed)
        return dies()

    with monkeypatch.context() as patched:
        patched.setattr(BaseQueue, "put_link", dies if delays == "before" else put_and_die)
        with pytest.raises(BackendUnavailable):
            job.delete()
    assert not job.is_settled
    if delays == "after":
        begun(bench, "b").delete()
        begun(bench, "c").release(2 * RETRY_AFTER)
    stale = again(bench, "a")
    assert stale.is_over(), "it is not run again"
    stale.delete()
    if delays == "before":
        begun(bench, "b").delete()
    bench.forward(2 * RETRY_AFTER)
    begun(bench, "c").delete()
    assert bench.queue.reserve(["default"]) == []
    assert kept(store) == {}


@sequential
def test_what_a_step_took_is_given_back_where_the_chain_has_changed(bench: Bench) -> None:
    store = dispatch(bench, link("a"), unique("b"))
    job = begun(bench, "a")
    step = tail.next_step(store, CHAIN, "a", joint=False)
    assert isinstance(step, Step)
    tail.add(store, CHAIN, "a", link("c"), first=True)
    assert job.hand_over(step) is None
    assert store.get("unique:x") == [None]
    job.delete()
    assert drain(bench.queue) == ["c", "b"]


@pytest.fixture(params=list(KINDS))
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A backend that could keep the chains itself, and is told to keep them elsewhere."""
    made = KINDS[request.param](tmp_path)
    stored_elsewhere(made)
    yield made
    made.close()


def test_a_chain_goes_on_where_its_store_is_elsewhere(apart: Bench) -> None:
    store = dispatch(apart, link("a"), unique("b"), link("c"))
    own = apart.queue.own_store()
    assert own is not None
    assert len(kept(store)) == 3
    for uuid in ("a", "b", "c"):
        begun(apart, uuid).delete()
        assert kept(own) == {}
    assert kept(store) == {}
    assert apart.queue.sizes() == at()


# -- in one transaction -------------------------------------------------------------------------


@pytest.mark.parametrize("bench", [SqliteBench], indirect=True)
@pytest.mark.parametrize("breaks", ["_insert", "due"])
def test_a_push_that_fails_undoes_the_step(
    bench: Bench, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: dict[str, Any] = {"unique": {"key": "unique:a", "for": 600, "until": "handled"}}
    store = dispatch(bench, link("a", **locked), unique("b"))
    job = begun(bench, "a")
    before = kept(store)
    assert before["unique:a"] == "a"
    with monkeypatch.context() as patched:
        patched.setattr(type(bench.queue), breaks, dies)
        with pytest.raises(BackendUnavailable):
            job.delete()
    assert kept(store) == before
    assert bench.queue.sizes() == at(reserved=1)
    job.delete()
    assert store.get("unique:a", "unique:x") == [None, "b"]
    assert drain(bench.queue) == ["b"]


settles: dict[str, Callable[[BaseJob], None]] = {
    "deleted": lambda job: job.delete(),
    "failed": lambda job: job.fail(ValueError("no")),
}


@pytest.mark.parametrize("end", list(settles))
def test_jobs_of_no_chain_leave_nothing(bench: Bench, end: str) -> None:
    push(bench, "a")
    settles[end](begun(bench, "a"))
    assert kept(store_of(bench)) == {}
