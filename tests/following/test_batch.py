"""Batches as a program dispatches them, worked on each backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    InvalidJob,
    QframeError,
    Queueable,
    QueueManager,
    Secret,
    WorkerOptions,
    batch,
    chain,
    dispatch,
    dispatch_sync,
    events,
    find_batch,
    foreign,
)
from qframe.failed.retry import retry
from qframe.features.batches import BatchStore
from qframe.middleware import SkipIfBatchCancelled
from qframe.testing import drain
from tests.following.jobs import (
    Adds,
    Cancels,
    Elsewhere,
    Extends,
    Follows,
    Grows,
    Nested,
    Only,
    Say,
    Sealed,
    Skips,
    hear,
    heard,
    ran,
    says,
    to_add,
)

pytestmark = pytest.mark.usefixtures("queues")


def batches_of(queues: QueueManager, connection: str | None = None) -> BatchStore:
    found = queues.connection(connection).batches()
    assert found is not None
    return found


@pytest.mark.every_backend
def test_what_follows_comes_after_the_last_member_and_once(queues: QueueManager) -> None:
    made = (
        batch([*says("a", "b"), Elsewhere(word="c")])
        .name("three words")
        .before(Follows(what="before"))
        .then(Follows(what="then"))
        .catch(Follows(what="catch"))
        .finally_(Follows(what="finally"))
        .dispatch()
    )
    assert (made.name, made.total, made.pending, made.progress) == ("three words", 3, 3, 0.0)
    assert (made.is_finished, made.is_cancelled, made.has_failures) == (False, False, False)
    drain(queues="default")
    assert ran == [("before", 0, 0), "a", "b"]
    assert made.fresh().progress == pytest.approx(2 / 3)
    drain()
    assert ran[3:] == ["c", ("then", 3, 0), ("finally", 3, 0)]
    found = find_batch(made.id)
    assert found is not None
    assert (found.done, found.failed, found.is_finished) == (3, 0, True)
    assert found.record.finished_at is not None
    assert queues.connection().size() == queues.connection().size("elsewhere") == 0


@pytest.mark.every_backend
def test_the_first_failure_is_caught_and_cancels_the_batch() -> None:
    made = (
        batch([*says("a"), Say(word="b", fails=True), Say(word="c", fails=True), *says("d")])
        .then(Follows(what="then"))
        .catch(Follows(what="catch"))
        .finally_(Follows(what="finally"))
        .dispatch()
    )
    drain()
    assert ran[:4] == ["a", "b", "c", "d"]
    assert ran[4:] == [("catch", 2, 2), ("Say", "ValueError: cannot say b"), ("finally", 2, 2)]
    after = made.fresh()
    assert (after.is_cancelled, after.is_finished, after.has_failures) == (True, True, True)
    assert len(after.failed_jobs) == 2


@pytest.mark.every_backend
def test_a_failed_member_that_is_retried_and_done_is_done(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (
        batch([Say(word="a", fails=True), *says("b")])
        .allow_failures()
        .then(Follows(what="then"))
        .finally_(Follows(what="finally"))
        .dispatch()
    )
    drain()
    monkeypatch.setattr(Say, "handle", lambda self: ran.append(f"{self.word} again"))
    store = queues.failed_store()
    (record,) = store.page()
    assert [record.uuid] == [*made.fresh().failed_jobs]
    retry(queues, store, record)
    drain()
    assert ran == ["a", "b", ("finally", 1, 1), "a again", ("then", 2, 0)]
    assert [*made.fresh().failed_jobs] == []


def test_what_is_still_to_follow_keeps_a_batch_from_being_pruned(queues: QueueManager) -> None:
    inner = batch([Elsewhere(word="a")]).then(Follows(what="then")).finally_(Follows(what="end"))
    chain([inner, *says("two")]).dispatch()
    drain(queues="default")
    drain(queues="elsewhere")
    assert batches_of(queues).prune(2**33) == 0
    drain()
    assert ran == ["a", ("then", 1, 0), ("end", 1, 0), "two"]
    assert batches_of(queues).prune(2**33) == 1


@pytest.mark.parametrize("kind", ["no callbacks", "empty", "failed", "cancelled", "broken off"])
def test_what_has_wholly_been_told_is_pruned(queues: QueueManager, kind: str) -> None:
    jobs: list[Queueable] = [] if kind == "empty" else says("a", "b")
    if kind == "failed":
        jobs.append(Say(word="c", fails=True))
    if kind == "broken off":
        with pytest.raises(InvalidJob):
            batch([*jobs, Say]).dispatch()  # type: ignore[list-item]
    else:
        made = batch(jobs).dispatch()
        if kind == "cancelled":
            made.cancel()
    drain()
    kept = 0 if kind == "broken off" else 1
    assert batches_of(queues).prune(2**33) == kept


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_in_a_chain_on_sync_is_pruned(queues: QueueManager, fails: bool) -> None:
    links = chain([batch([Say(word="a", fails=fails)]), *says("two")]).on_connection("sync")
    with pytest.raises(QframeError) if fails else contextlib.nullcontext():
        links.dispatch()
    kept = batches_of(queues, "sync")
    assert len([*kept.all()]) == kept.prune(2**33) == 1


def test_catch_is_told_of_a_batch_within_that_failed() -> None:
    deep = batch([Say(word="a", fails=True), *says("b")]).name("deep")
    batch([chain([deep, *says("c")])]).catch(Follows(what="catch")).dispatch()
    drain()
    assert ran[2:] == [("catch", 0, 1), ("deep", "1 of 2 members of deep failed")]


def test_a_unique_callback_that_is_dropped_is_told_of(queues: QueueManager) -> None:
    told: list[tuple[str, str]] = []
    events.listen(events.JobDuplicate)(lambda event: told.append((event.queue, event.id)))
    first = dispatch(Only(word="only")).on_queue("later").send()
    callbacks = [Only(word="only")]
    (
        batch([Say(word="a", fails=True)])
        .before(*callbacks)
        .catch(*callbacks)
        .then(*callbacks)
        .finally_(*callbacks)
        .dispatch()
    )
    drain(queues="default")
    assert told == [("default", first)] * 3
    chain([Say(word="b", fails=True)]).catch(*callbacks).dispatch()
    chain([batch([Say(word="c", fails=True)])]).catch(*callbacks).dispatch()
    drain(queues="default")
    assert told == [("default", first)] * 5
    assert ran == ["a", "b", "c"]


def test_a_member_that_is_skipped_is_done() -> None:
    made = batch([Skips(word="a")]).then(Follows(what="then")).dispatch()
    drain()
    assert ran == ["a", ("then", 1, 0)]
    assert made.fresh().done == 1


@pytest.mark.every_backend
def test_a_running_member_adds_others() -> None:
    made = batch([Grows(by=2), *says("a")]).then(Follows(what="then")).dispatch()
    drain()
    assert ran == ["grows", "a", "added 0", "added 1", ("then", 4, 0)]
    with pytest.raises(InvalidJob, match="is finished, cancelled or gone: it takes no jobs"):
        made.add(Say(word="late"))
    assert "late" not in ran


def test_a_chain_that_a_member_adds_counts_as_one() -> None:
    to_add[:] = [says("b", "c"), chain([batch(says("d")), Sealed(word=Secret("e"))])]
    made = batch([Adds(), *says("a")]).then(Follows(what="then")).dispatch()
    drain()
    assert sorted(ran[:-1]) == ["a", "b", "c", "d", "e"]
    assert ran[-1] == ("then", 4, 0)
    assert made.fresh().done == 4


@pytest.mark.parametrize("bad", [Say, [], [Say(word="good"), Say], Say(word="x" * 70_000)])
def test_what_cannot_be_added_leaves_the_batch_as_it_was(
    queues: QueueManager, bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues.connection(), "max_payload", 60_000)
    to_add[:] = [Say(word="good"), bad]
    found = batch([Adds(), *says("a")]).then(Follows(what="then")).dispatch()
    drain()
    assert ran == ["refused", "a", ("then", 2, 0)]
    after = found.fresh()
    assert (after.total, after.failed, after.is_cancelled) == (2, 0, False)


def test_what_a_member_adds_is_the_same_when_it_runs_again(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch([Grows(by=2)]).then(Follows(what="then")).dispatch()
    (job,) = queues.connection().reserve(["default"])
    job.send(job.start_plan())
    running = Grows(by=2)
    object.__setattr__(running, "_reserved", job)
    running.handle()
    assert made.fresh().total == 3
    job.release()
    drain(options=WorkerOptions(tries=5))
    assert made.fresh().total == 3
    assert ran[-1] == ("then", 3, 0)


def test_the_last_member_may_end_before_its_dispatch(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words() -> Iterator[Queueable]:
        yield from says("a")
        for number in range(499):
            yield Say(word=str(number))
        drain()

    queue = queues.connection()
    told: list[bool] = []
    close = BatchStore.close

    def closing(self: BatchStore, identity: str) -> None:
        before = queue.size()
        close(self, identity)
        told.append(queue.size() == before + 1)

    monkeypatch.setattr(BatchStore, "close", closing)
    batch(words()).then(Follows(what="then")).dispatch()
    assert told == [True]
    drain()
    assert ran[-1] == ("then", 500, 0)


def test_a_cancelled_batch_ends_without_then() -> None:
    made = (
        batch([*says("a"), Cancels(), *says("b")])
        .then(Follows(what="then"))
        .finally_(Follows(what="finally"))
        .dispatch()
    )
    drain()
    assert ran == ["a", True, "b", ("finally", 3, 0)]
    assert made.fresh().is_cancelled
    assert made.cancel() is False


def test_a_chain_is_one_member_and_counts_at_its_end() -> None:
    made = batch([says("a", "b"), chain([Extends()])]).then(Follows(what="then")).dispatch()
    assert made.total == 2
    drain()
    assert ran.index("a") < ran.index("b")
    assert ran[-1] == ("then", 2, 0)
    assert {*ran[:-1]} == {"a", "b", "extends", "right behind", "at the end"}


def test_a_chain_of_which_nothing_is_kept_counts_with_the_link_that_is_left(
    queues: QueueManager,
) -> None:
    made = batch([says("a", "b")]).finally_(Follows(what="finally")).dispatch()
    for key in queues.connection().store.keys("chain:"):
        queues.connection().store.delete(key)
    drain()
    assert ran == ["a", ("finally", 1, 0)]
    assert made.fresh().is_finished


def test_a_chain_that_fails_is_a_member_that_failed() -> None:
    links = chain([Say(word="a", fails=True), *says("b")]).catch(Follows(what="of the chain"))
    made = batch([links, *says("c")]).finally_(Follows(what="finally")).dispatch()
    drain()
    assert ran[:2] == ["a", "c"]
    assert "b" not in ran
    assert "of the chain" in ran
    assert ("finally", 1, 1) in ran
    assert made.fresh().failed == 1


def test_progress_is_told_as_members_are_done() -> None:
    batch(says("a", "b", "c")).progress(Follows(what="progress")).dispatch()
    drain(queues="default")
    told = [each for each in ran if isinstance(each, tuple)]
    assert told
    assert told[-1] == ("progress", 3, 0)
    ran.clear()
    batch([Say(word="x") for _ in range(300)]).progress(Follows(what="progress")).dispatch()
    drain()
    told = [each for each in ran if isinstance(each, tuple)]
    assert told[-1] == ("progress", 300, 0)
    assert len(told) <= 101


def test_what_follows_is_tried_again_like_any_job() -> None:
    batch(says("a")).then(Follows(what="then", fails=True)).dispatch()
    drain()
    assert ran == ["a", ("then", 1, 0), ("then", 1, 0)]


def test_a_batch_in_a_chain_that_is_skipped_is_passed_over(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    skips = SkipIfBatchCancelled()
    monkeypatch.setattr(queues.connection(), "find_middleware", lambda: (skips,))
    links = chain([batch(says("a")), *says("b")])
    made = batch([Say(word="c", fails=True), links]).finally_(Follows(what="finally")).dispatch()
    drain()
    assert ran == ["c", ("finally", 1, 1)]
    assert made.fresh().is_finished


def test_an_empty_batch_is_finished_at_once() -> None:
    made = batch([]).then(Follows(what="then")).finally_(Follows(what="finally")).dispatch()
    assert made.is_finished
    drain()
    assert ran == [("then", 0, 0), ("finally", 0, 0)]


def test_an_iterator_is_read_as_it_is_pushed(queues: QueueManager) -> None:
    sizes: list[int] = []

    def words() -> Iterator[Queueable]:
        for number in range(1200):
            if number % 500 == 0:
                sizes.append(queues.connection().size())
            yield Say(word=str(number))

    made = batch(words()).then(Follows(what="then")).dispatch()
    assert made.total == 1200
    assert sizes == [0, 500, 1000]
    drain()
    assert [int(word) for word in ran[:-1]] == [*range(1200)]
    assert ran[-1] == ("then", 1200, 0)


def test_a_failure_while_it_is_dispatched_keeps_no_member_back(queues: QueueManager) -> None:
    def words() -> Iterator[Queueable]:
        yield Say(word="0", fails=True)
        yield from (Say(word=str(number)) for number in range(1, 501))
        drain()
        yield Say(word="last")

    made = batch(words()).finally_(Follows(what="finally")).dispatch()
    assert made.is_cancelled
    drain()
    assert ran[-2:] == ["last", ("finally", 501, 1)]


def test_members_are_encrypted_and_signed_like_any_job() -> None:
    hush, too = Sealed(word=Secret("hush")), Sealed(word=Secret("hush too"))
    batch([hush, [too]]).then(Follows(what="then")).dispatch()
    drain()
    assert ran == ["hush", "hush too", ("then", 2, 0)]


def test_a_batch_that_a_job_dispatches_is_its_own() -> None:
    batch([Nested()]).then(Follows(what="then of outer")).dispatch()
    drain()
    assert [each for each in ran if isinstance(each, str)] == ["inner"]
    assert {each[0] for each in ran if isinstance(each, tuple)} == {
        "then of inner",
        "then of outer",
    }


def test_a_foreign_job_may_follow_but_not_be_a_member(queues: QueueManager) -> None:
    after = foreign("App.Jobs.Report", {"n": 1}, queue="php")
    batch(says("a")).then(after).dispatch()
    drain(queues="default")
    (job,) = queues.connection().reserve(["php"])
    assert job.payload["job"] == "App.Jobs.Report"


def test_listeners_hear_of_each_member() -> None:
    events.listen(events.JobQueueing)(hear)
    queued: list[str] = []
    events.listen(events.JobQueued)(lambda event: queued.append(type(event.job).__name__))
    batch([*says("a"), Skips(word="b")]).dispatch()
    assert [name for name in heard if name != "RunBatchCallbacks"] == ["Say", "Skips"]
    assert queued == ["Say", "Skips"]


@pytest.mark.parametrize("jobs", [[Say, 1], ["ab", Say(word="a")]])
def test_what_cannot_be_a_member_is_one_clear_line(jobs: list[object]) -> None:
    with pytest.raises(InvalidJob, match="takes jobs, not") as caught:
        batch(jobs).finally_(Follows(what="finally")).dispatch()  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_what_is_no_list_and_no_name_is_one_clear_line() -> None:
    with pytest.raises(InvalidJob, match="a batch takes a list of jobs, not int"):
        batch(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="a chain takes a list of jobs, not NoneType"):
        chain(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="the name of a batch is a text, not NoneType"):
        batch([]).name(None)  # type: ignore[arg-type]


def test_a_bad_member_ends_the_batch_and_what_was_pushed_still_runs() -> None:
    def words() -> Iterator[Queueable]:
        for number in range(501):
            yield Say(word=str(number))
        yield foreign("App.Jobs.Import", {})  # type: ignore[misc]

    with pytest.raises(InvalidJob, match="runs in another program"):
        batch(words()).then(Follows(what="then")).finally_(Follows(what="finally")).dispatch()
    drain()
    assert ran[:-1] == [str(number) for number in range(500)]
    assert ran[-1] == ("finally", 500, 0)


def test_before_that_cannot_be_pushed_begins_no_batch(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none: what comes before it belongs to the step that begins it."""

    def broken(*_: object) -> None:
        raise BackendUnavailable("no way")

    with monkeypatch.context() as patched:
        patched.setattr(queues.connection().backend, "apply", broken)
        with pytest.raises(BackendUnavailable, match="no way"):
            batch(says("a")).before(Follows(what="before")).dispatch()
    assert [*batches_of(queues).all()] == []


def test_outside_of_a_batch_there_is_none() -> None:
    assert Say(word="a").batch() is None
    assert Say(word="a").caught is None
    assert find_batch("there is none") is None
    dispatch_sync(Follows(what="alone"))
    assert ran == ["alone"]


def test_on_sync_a_batch_runs_here_and_now() -> None:
    made = (
        batch([*says("a"), Say(word="b", fails=True), [Extends(), Say(word="c")], Grows()])
        .on_connection("sync")
        .allow_failures()
        .then(Follows(what="then"))
        .catch(Follows(what="catch"))
        .finally_(Follows(what="finally"))
        .dispatch()
    )
    words = [each for each in ran if isinstance(each, str)]
    assert words == ["a", "b", "extends", "right behind", "c", "at the end", "grows", "added 0"]
    assert ran[-1] == ("finally", 4, 1)
    assert (made.done, made.failed, made.is_finished) == (4, 1, True)


def test_on_null_nothing_happens() -> None:
    made = batch(says("a")).then(Follows(what="then")).on_connection("null").dispatch()
    assert (made.total, made.is_finished) == (0, True)
    assert ran == []
