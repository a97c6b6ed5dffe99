"""Chains as a program dispatches them, worked on each backend."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qframe import (
    InvalidJob,
    InvalidQueueName,
    QueueManager,
    Secret,
    WorkerOptions,
    batch,
    chain,
    dispatch,
    events,
    foreign,
    job_status,
)
from qframe.contracts.status import State
from qframe.failed.retry import retry
from qframe.features.base import End
from qframe.testing import drain
from tests.following.jobs import (
    Again,
    Deletes,
    Dispatches,
    DispatchesFreely,
    Elsewhere,
    Extends,
    Follows,
    Later,
    Only,
    Say,
    Sealed,
    Skips,
    Tracked,
    hear,
    heard,
    ran,
    says,
)

pytestmark = pytest.mark.usefixtures("queues")


def test_links_run_in_order_and_nothing_is_left(queues: QueueManager) -> None:
    chain(says("one", "two", "three")).dispatch()
    assert queues.connection().size() == 1
    drain()
    assert ran == ["one", "two", "three"]
    assert queues.connection().size() == 0
    assert [*queues.connection().store.keys("chain:")] == []


@pytest.mark.every_backend
def test_links_go_to_their_own_queue_or_the_chains(queues: QueueManager) -> None:
    chain([Say(word="one"), Elsewhere(word="two"), Say(word="three")]).on_queue("x").dispatch()
    queue = queues.connection()
    assert queue.size("x") == 1
    drain(queues="x")
    assert (queue.size("x"), queue.size("elsewhere")) == (0, 1)
    drain(queues="elsewhere")
    assert (queue.size("x"), queue.size("elsewhere")) == (1, 0)
    drain(queues="x")
    assert ran == ["one", "two", "three"]


def test_the_first_link_waits_for_the_chains_delay_the_others_for_their_own(
    queues: QueueManager,
) -> None:
    chain(says("one")).delay(30).dispatch()
    chain([Say(word="two"), Later(word="three")]).dispatch()
    drain()
    assert ran == ["two"]
    sizes = queues.connection().sizes()
    assert (sizes.ready, sizes.delayed) == (0, 2)


def test_the_chains_delay_is_in_place_of_the_first_links_own(queues: QueueManager) -> None:
    chain([Later(word="one"), Later(word="two")]).delay(0).dispatch()
    drain()
    assert ran == ["one"]
    assert queues.connection().sizes().delayed == 1
    longer = chain([Later(word="three")]).delay(300)
    assert longer.plan(queues.connection(), None, {}).links[0].delay == 300
    assert chain([Later(word="four")]).plan(queues.connection(), None, {}).links[0].delay == 30


@pytest.mark.every_backend
def test_a_link_that_fails_ends_the_chain_and_its_catch_is_told() -> None:
    chain([*says("one"), Say(word="two", fails=True), *says("three")]).catch(
        Follows(what="caught"), Follows(what="also", fails=True)
    ).dispatch()
    drain()
    assert ran[:3] == ["one", "two", "caught"]
    assert ran[3] == ("Say", "ValueError: cannot say two")
    assert ran[4] == "also"
    assert "three" not in ran


@pytest.mark.every_backend
def test_a_failed_link_that_is_retried_and_done_lets_the_chain_go_on(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain([Say(word="one", fails=True), *says("two")]).dispatch()
    drain()
    (record,) = queues.failed_store().page()
    monkeypatch.setattr(Say, "handle", lambda self: ran.append(f"again {self.word}"))
    assert retry(queues, queues.failed_store(), record)
    drain()
    assert ran == ["one", "again one", "again two"]


@pytest.mark.parametrize("kind", [Skips, Deletes])
def test_a_link_that_is_skipped_or_deletes_itself_is_over(kind: type[Say]) -> None:
    chain([kind(word="one"), *says("two")]).dispatch()
    drain()
    assert ran == ["one", "two"]


def test_a_link_that_is_tried_again_holds_the_chain_up(queues: QueueManager) -> None:
    chain([Again(word="one"), *says("two")]).dispatch()
    drain(options=WorkerOptions(tries=2))
    assert ran == ["one 1", "one 2", "two"]


def test_a_running_link_puts_others_behind_itself_and_at_the_end() -> None:
    chain([Extends(), *says("two")]).dispatch()
    drain()
    assert ran == ["extends", "right behind", "two", "at the end"]


def test_the_last_link_can_go_on_and_the_added_ones_can_add(queues: QueueManager) -> None:
    chain([*says("one"), Extends(), Extends()]).dispatch()
    drain()
    behind = ["extends", "right behind"]
    assert ran == ["one", *behind, *behind, "at the end", "at the end"]
    assert [*queues.connection().store.keys("chain:")] == []


def test_a_job_outside_of_a_chain_cannot_extend_one(queues: QueueManager) -> None:
    dispatch(Extends()).send()
    drained = drain()
    (error,) = drained.errors
    assert str(error) == "Extends is in no chain, or that has gone on without it"


def test_a_unique_link_whose_lock_is_taken_is_passed_over(queues: QueueManager) -> None:
    told: list[Any] = []
    events.listen(events.JobDuplicate)(told.append)
    dispatch(Only(word="only")).on_queue("later").send()
    chain([*says("one"), Only(word="only"), *says("three")]).dispatch()
    chain([Only(word="only"), *says("four")]).dispatch()
    chain([Only(word="only")]).dispatch()
    drain(queues="default")
    assert sorted(ran) == ["four", "one", "three"]
    assert ran.index("one") < ran.index("three")
    assert len(told) == 3
    drain(queues="later")
    assert ran[-1] == "only"
    assert not [
        key for key in queues.connection().store.keys("") if key.startswith(("chain:", "unique:"))
    ]


@pytest.mark.every_backend
def test_a_unique_link_has_its_lock_from_its_turn_to_its_end(queues: QueueManager) -> None:
    chain([Elsewhere(word="one"), Only(word="only"), *says("three")]).dispatch()
    assert not dispatch(Only(word="only")).on_queue("early").is_duplicate
    drain(queues="early")
    drain(queues="elsewhere")
    assert dispatch(Only(word="only")).is_duplicate
    drain()
    assert ran == ["only", "one", "only", "three"]
    assert not dispatch(Only(word="only")).is_duplicate


def test_links_are_encrypted_and_signed_like_any_job(queues: QueueManager) -> None:
    chain([*says("one"), Sealed(word=Secret("hush"))]).dispatch()
    texts = [
        text
        for key in queues.connection().store.keys("chain:")
        for text in queues.connection().store.get(key)
        if text
    ]
    assert texts
    assert not any("hush" in text for text in texts)
    drain()
    assert ran == ["one", "hush"]


def test_a_tracked_link_has_a_status_from_its_turn_on(queues: QueueManager) -> None:
    ids: list[str] = []
    events.listen(events.JobQueued)(lambda event: ids.append(event.id))
    chain([*says("one"), Tracked(word="two"), *says("three")]).dispatch()
    drain()
    status = job_status(ids[1])
    assert status is not None
    assert (status.state, status.attempt) == ("COMPLETE", 1)
    assert len(ids) == 3


def test_listeners_hear_of_each_link_when_the_chain_is_dispatched() -> None:
    events.listen(events.JobQueueing)(hear)
    chain([Say(word="one"), Deletes(word="two")]).dispatch()
    assert heard == ["Say", "Deletes"]
    sent: list[Any] = []
    events.listen(events.JobProcessing)(lambda event: sent.append(event.job.payload))
    drain()
    assert [message["from"] for message in sent] == ["listener", "listener"]


@pytest.mark.every_backend
def test_a_batch_in_a_chain_holds_it_up_until_it_has_finished() -> None:
    inner = batch([*says("a"), says("b", "c"), Extends()]).then(Follows(what="then"))
    chain([*says("one"), inner.allow_failures(), *says("two")]).dispatch()
    drain()
    assert ran[0] == "one"
    assert {*ran[1:5]} >= {"a", "b", "c"}
    assert "two" in ran
    assert ran.index("two") > max(ran.index(word) for word in "abc")


def test_a_batch_that_fails_in_a_chain_ends_it() -> None:
    inner = batch([Say(word="a", fails=True), *says("b")]).name("inner")
    chain([*says("one"), inner, *says("two")]).catch(Follows(what="caught")).dispatch()
    drain()
    assert ran[:2] == ["one", "a"]
    assert ran[-2:] == ["caught", ("inner", "1 of 2 members of inner failed")]
    assert "two" not in ran


def test_what_cannot_be_a_link_is_one_clear_line_and_nothing_is_kept(queues: QueueManager) -> None:
    class OnSync(Say):
        connection = "sync"

    for jobs, said in (
        ([], "a chain needs a job"),
        ([Say(word="one"), foreign("App.Jobs.Import", {})], "runs in another program"),
        ([Say(word="one"), Say], "a chain takes jobs, not the class Say"),
        ([Say(word="one"), OnSync(word="two")], "belongs to the connection 'sync'"),
        ([Say(word="one"), Say(word="x" * 3_000_000)], "queue a reference to the data instead"),
        ("ab", "a chain takes jobs, not str"),
    ):
        with pytest.raises(InvalidJob, match=said) as caught:
            chain(jobs).dispatch()  # type: ignore[arg-type] # as a program without types has it
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidJob, match="catch takes jobs, not function"):
        chain(says("one")).catch(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"catch takes a job, not a class: Follows\(\.\.\.\)"):
        chain(says("one")).catch(Follows)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="delay"):
        chain(says("one")).delay("soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidQueueName):
        chain(says("one")).on_queue("")
    assert queues.connection().size() == 0
    assert [*queues.connection().store.keys("chain:")] == []


def test_what_could_not_be_pushed_later_is_refused_at_once(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = queues.connection().settings.driver
    if driver == "beanstalkd":  # whose server was not asked for anything so far
        with pytest.raises(InvalidJob, match="takes 65,535"):
            chain(says("one", "x" * 100_000)).dispatch()
    odd = {"redis": "x:reserved", "beanstalkd": "-x"}.get(driver, "x y")
    monkeypatch.setattr(Elsewhere, "queue", odd)
    with pytest.raises(InvalidQueueName):
        chain([Say(word="one"), Elsewhere(word="two")]).dispatch()
    with pytest.raises(InvalidQueueName):
        chain(says("one")).catch(Elsewhere(word="two")).dispatch()
    with pytest.raises(InvalidJob, match="a batch within a chain is on its connection"):
        chain([*says("one"), batch(says("two")).on_connection("sync")]).dispatch()
    assert queues.connection().size() == 0
    assert [*queues.connection().store.keys("chain:")] == []


def test_a_long_chain_carries_its_tail_only_once(queues: QueueManager) -> None:
    chain([Say(word="x" * 1000) for _ in range(60)]).dispatch()
    queue = queues.connection()
    (job,) = queue.reserve(["default"])
    assert len(job.raw_body) < 2000
    job.settle(End(State.WAITING))
    began = time.monotonic()
    drain()
    assert len(ran) == 60
    assert time.monotonic() - began < 30


def test_on_sync_a_chain_runs_here_and_now_and_raises() -> None:
    chain([Extends(), *says("two")]).on_connection("sync").dispatch()
    assert ran == ["extends", "right behind", "two", "at the end"]
    ran.clear()
    with pytest.raises(ValueError, match="cannot say two"):
        chain([*says("one"), Say(word="two", fails=True), *says("three")]).on_connection(
            "sync"
        ).catch(Follows(what="caught")).dispatch()
    assert ran == ["one", "two", "caught", ("Say", "ValueError: cannot say two")]
    ran.clear()
    inner = batch([*says("a"), says("b", "c")]).then(Follows(what="then"))
    chain([*says("one"), inner, *says("two")]).on_connection("sync").dispatch()
    assert ran == ["one", "a", "b", "c", ("then", 2, 0), "two"]


def test_on_sync_a_catch_that_fails_hides_neither_the_failure_nor_the_others() -> None:
    caught = (Say(word="one", fails=True), Follows(what="two"))
    with pytest.raises(ValueError, match="cannot say a"):
        chain([Say(word="a", fails=True)]).on_connection("sync").catch(*caught).dispatch()
    assert ran == ["a", "one", "two", ("Say", "ValueError: cannot say a")]


def test_on_sync_a_unique_link_has_its_lock_for_as_long_as_it_says(queues: QueueManager) -> None:
    chain([Dispatches(), DispatchesFreely()]).on_connection("sync").dispatch()
    assert ran == [True, False]
    assert not [key for key in queues.connection().store.keys("") if key.startswith("unique:")]


def test_a_thousand_links_on_sync_do_not_nest() -> None:
    chain([Say(word=str(number)) for number in range(1000)]).on_connection("sync").dispatch()
    assert len(ran) == 1000


def test_on_null_nothing_happens() -> None:
    assert chain(says("one", "two")).on_connection("null").dispatch()
    assert ran == []
