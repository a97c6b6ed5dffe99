"""Chains and batches in `fake` and `run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    InvalidJob,
    PendingBatch,
    QueueManager,
    batch,
    chain,
    connection,
    dispatch,
    events,
    find_batch,
    foreign,
    manager,
)
from qframe.dispatch.batch import Caught
from qframe.testing import drain, fake, fake_batch, run
from tests.testing.jobs import Follows, Hidden, Link, OneAtOnce, OnSync, SendWelcome, add

KEYS = {"encryption_keys": ["k" * 43 + "="]}


@pytest.fixture(autouse=True)
def nothing_is_stored(fresh: Path) -> Iterator[None]:
    Link.seen.clear()
    OnSync.ran.clear()
    manager.use(QueueManager(KEYS))
    yield
    assert connection.stand_in is None
    assert [file.name for file in fresh.iterdir() if file.name != "queues"] == []


def words(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def kept(folder: Path) -> None:
    """Have a queue in which jobs do arrive."""
    database = {"url": f"sqlite:///{folder / 'queues'}"}
    jobs = ["tests.testing.jobs"]
    manager.use(QueueManager({**KEYS, "jobs": jobs, "connections": {"database": database}}))


def welcomes(*numbers: int) -> list[SendWelcome]:
    return [SendWelcome(user_id=number) for number in numbers]


class TestChains:
    def test_a_chain_is_written_down_and_its_first_link_is_dispatched(self) -> None:
        with fake() as queued:
            identity = (
                chain([SendWelcome(user_id=1), add.job(2), Hidden(card="4242")])
                .on_queue("other")
                .delay(5)
                .catch(Follows(what="catch"))
                .dispatch()
            )
        (made,) = queued.chains
        assert (made.id, made.connection, made.queue, made.delay) == (
            identity, "database", "emails", 5
        )  # fmt: skip
        assert made.jobs == [SendWelcome(user_id=1), add.job(2), Hidden(card="4242")]
        assert made.catch == [Follows(what="catch")]
        queued.assert_chained([SendWelcome, add, Hidden])
        queued.assert_chained([SendWelcome(user_id=1), add.job(2), Hidden(card="4242")], times=1)
        queued.assert_chained([SendWelcome, add, Hidden], queue="emails", delay=5)
        queued.assert_dispatched(SendWelcome(user_id=1), times=1, queue="emails", delay=5)
        queued.assert_not_dispatched(add)
        assert queued.dispatched()[0].payload["chain"] == {"id": identity}

    @pytest.mark.parametrize(
        ("wanted", "more"),
        [
            ([SendWelcome], {}),
            ([SendWelcome, add, Follows], {}),
            ([add, SendWelcome], {}),
            ([SendWelcome(user_id=2), add], {}),
            ([PendingBatch, add], {}),
            ([SendWelcome, lambda _: True], {}),
            ([SendWelcome, [add]], {}),
            ([SendWelcome, add], {"times": 2}),
            ([SendWelcome, add], {"times": 0}),
            ([SendWelcome, add], {"queue": "low"}),
            ([SendWelcome, add], {"connection": "redis"}),
            ([SendWelcome, add], {"delay": 1}),
        ],
    )
    def test_another_chain_is_not_that_one(self, wanted: Any, more: Any) -> None:
        with fake() as queued:
            chain([SendWelcome(user_id=1), add.job(2)]).dispatch()
        assert "a=2, b=2) on database:emails" in words(queued.assert_chained, wanted, **more)

    def test_what_is_wrong_with_the_question(self) -> None:
        with fake() as queued, pytest.raises(TypeError, match="give a list"):
            queued.assert_chained(SendWelcome)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="name the links"):
            queued.assert_chained([])
        with pytest.raises(ValueError, match="times is"):
            queued.assert_chained([SendWelcome], times=-1)
        with pytest.raises(TypeError, match="name a job class"):
            queued.assert_chained([7])  # type: ignore[list-item]

    def test_a_batch_is_a_link(self) -> None:
        parts = batch([Hidden(card="1"), [add.job(1), Follows()]]).name("parts").then(Follows())
        with fake() as queued:
            chain([parts, batch(iter(welcomes(1, 2))), add.job(3)]).dispatch()
        queued.assert_chained([PendingBatch, PendingBatch, add])
        queued.assert_chained(
            [
                lambda made: made.jobs == [Hidden(card="1"), [add.job(1), Follows()]],
                lambda made: made.total == 2,
                add.job(3),
            ]
        )
        first, second = queued.chains[0].jobs[:2]
        assert (first.name, first.then, first.catch) == ("parts", [Follows()], [])  # type: ignore[union-attr]
        assert second.jobs == welcomes(1, 2)  # type: ignore[union-attr]
        assert queued.dispatched() == []
        assert queued.batches == []
        assert "a batch 'parts' of [" in words(queued.assert_nothing_dispatched)
        assert "4242" not in words(queued.assert_batched)

    def test_messages(self) -> None:
        with fake() as queued:
            assert words(queued.assert_chained, [SendWelcome, add]) == (
                "expected the chain SendWelcome -> add to be dispatched, but it was not: nothing "
                "was dispatched"
            )
            dispatch(add.job(1)).send()
            assert words(queued.assert_chained, [SendWelcome, add]) == (
                "expected the chain SendWelcome -> add to be dispatched, but it was not; "
                "dispatched were:\n  - add(a=1, b=2) on database:math"
            )
            chain([Follows(what="x"), Hidden(card="1")]).delay(5).dispatch()
            later = "Follows(what='x') -> Hidden(card=...) on database:default, delayed by 5 s"
            chain([Follows(), add.job(2)]).on_queue("q").dispatch()
            assert words(queued.assert_chained, [Follows, add], times=2) == (
                "expected the chain Follows -> add to be dispatched twice, but it was once; the "
                "chains dispatched were:\n"
                f"  - {later}\n"
                "  * Follows(what='') -> add(a=2, b=2) on database:q"
            )
            assert words(queued.assert_dispatched, Hidden).splitlines() == [
                "expected Hidden to be dispatched, but it was not; dispatched were:",
                "  - add(a=1, b=2) on database:math",
                "  - Follows(what='x') on database:default, delayed by 5 s, the first of a chain",
                "  - Follows(what='') on database:q, the first of a chain",
                f"  - a chain: {later}",
                "  - a chain: Follows(what='') -> add(a=2, b=2) on database:q",
            ]

    def test_a_first_link_that_waits_already_is_passed_over(self) -> None:
        heard: list[tuple[str, Any]] = []
        with fake() as queued, events.kept():
            events.listen(events.JobDuplicate)(lambda event: heard.append(("twice", event.job)))
            events.listen(events.JobQueued)(lambda event: heard.append(("queued", event.job)))
            for _ in range(2):
                chain([OneAtOnce(account=1), add.job(1)]).dispatch()
        assert heard == [
            ("queued", OneAtOnce(account=1)),
            ("twice", OneAtOnce(account=1)),
            ("queued", add.job(1)),
        ]
        queued.assert_chained([OneAtOnce, add], times=2)
        assert queued.jobs() == [OneAtOnce(account=1), add.job(1)]

    def test_on_sync_nothing_runs(self) -> None:
        with fake() as queued:
            chain([OnSync(number=1), OnSync(number=2)]).dispatch()
            batch([OnSync(number=3)]).on_connection("sync").dispatch()
        queued.assert_chained([OnSync, OnSync], connection="sync")
        queued.assert_batched(jobs=[OnSync], connection="sync")
        assert OnSync.ran == []

    def test_what_cannot_be_a_link_is_refused_as_ever(self) -> None:
        with fake() as queued, pytest.raises(InvalidJob, match="takes jobs"):
            chain([add.job(1), 7]).dispatch()  # type: ignore[list-item]
        queued.assert_nothing_dispatched()


class TestBatches:
    def test_a_batch_is_written_down_with_what_follows_it(self) -> None:
        php = foreign("App\\Jobs\\Tell@handle", {"id": 7})
        with fake() as queued:
            made = (
                batch([*welcomes(1, 2), [add.job(1), Hidden(card="4242")]])
                .name("import")
                .on_queue("slow")
                .allow_failures()
                .before(Follows(what="before"))
                .progress(Follows(what="progress"))
                .then(Follows(what="then"), php)
                .catch(Hidden(card="catch"))
                .finally_(Follows(what="finally"))
                .dispatch()
            )
        (seen,) = queued.batches
        assert (seen.id, seen.name, seen.connection, seen.queue) == (
            made.id, "import", "database", "slow"
        )  # fmt: skip
        assert seen.jobs == [*welcomes(1, 2), [add.job(1), Hidden(card="4242")]]
        assert (seen.total, seen.allows_failures) == (3, True)
        assert (seen.before, seen.progress) == (
            [Follows(what="before")], [Follows(what="progress")]
        )  # fmt: skip
        assert (seen.catch, seen.finally_) == ([Hidden(card="catch")], [Follows(what="finally")])
        then, told = seen.then
        assert then == Follows(what="then")
        assert (told.name, told.data) == (php.name, php.data)  # type: ignore[union-attr]
        queued.assert_batched()
        queued.assert_batched(lambda batch: batch.total == 3 and batch.then, times=1)
        queued.assert_batched(name="import", queue="slow", connection="database")
        queued.assert_batched(jobs=[SendWelcome, SendWelcome(user_id=2), [add, Hidden]])
        queued.assert_not_dispatched(SendWelcome)
        assert queued.dispatched() == []

    @pytest.mark.parametrize(
        "wanted",
        [
            {"name": "other"},
            {"where": lambda batch: batch.total == 1},
            {"jobs": [SendWelcome]},
            {"jobs": [add, SendWelcome]},
            {"jobs": [[SendWelcome, add]]},
            {"times": 2},
            {"times": 0},
            {"queue": "low"},
            {"connection": "redis"},
        ],
    )
    def test_another_batch_is_not_that_one(self, wanted: Any) -> None:
        with fake() as queued:
            batch([SendWelcome(user_id=1), add.job(1)]).name("mine").dispatch()
        assert "'mine' of [SendWelcome(" in words(queued.assert_batched, **wanted)

    def test_messages(self) -> None:
        with fake() as queued:
            assert words(queued.assert_batched, name="x", jobs=[[add, Follows], Hidden]) == (
                "expected the batch 'x' of [add -> Follows], Hidden to be dispatched, but it was "
                "not: nothing was dispatched"
            )
            batch([add.job(n) for n in range(7)]).on_queue("q").dispatch()
            batch([[Follows(what="x"), Hidden(card="1")]]).name("mine").dispatch()
        assert words(queued.assert_batched, lambda _: False, name="mine", queue="low") == (
            "expected the batch 'mine' on the queue 'low' that `where` accepts to be dispatched, "
            "but it was not; the batches dispatched were:\n"
            "  - [add(a=0, b=2), add(a=1, b=2), add(a=2, b=2), add(a=3, b=2), add(a=4, b=2), "
            "and 2 more] on database:q\n"
            "  - 'mine' of [[Follows(what='x') -> Hidden(card=...)]] on database"
        )
        assert words(queued.assert_nothing_dispatched).count("a batch: ") == 2
        assert "a batch: 'mine' of" in words(queued.assert_dispatched, add)

    def test_it_is_there_as_long_as_the_fake_is_on(self) -> None:
        with fake() as queued:
            made = batch(welcomes(1, 2)).dispatch()
            assert (made.total, made.pending, made.is_finished) == (2, 2, False)
            assert made.add(add.job(1), [Follows(), add.job(2)]).total == 4
            assert made.cancel()
            assert made.fresh().is_cancelled
            found = find_batch(made.id)
            assert found is not None
            assert found.is_cancelled
            with pytest.raises(InvalidJob, match="it takes no jobs"):
                made.add(add.job(3))
        queued.assert_batched(jobs=[SendWelcome, SendWelcome, add, [Follows, add]])

    def test_an_iterator_and_one_without_members(self) -> None:
        with fake() as queued:
            batch(iter(welcomes(1, 2))).dispatch()
            assert batch([]).then(Follows()).dispatch().is_finished
        queued.assert_batched(jobs=welcomes(1, 2))
        queued.assert_batched(jobs=[])

    def test_a_member_takes_its_lock(self) -> None:
        with fake() as queued:
            batch([OneAtOnce(account=1)]).dispatch()
            assert dispatch(OneAtOnce(account=1)).is_duplicate
        queued.assert_not_dispatched(OneAtOnce)

    def test_one_of_some_jobs_only(self, tmp_path: Path) -> None:
        kept(tmp_path)
        with fake(only=[Hidden]) as queued:
            batch([add.job(1), Hidden(card="1")]).dispatch()
            chain([batch([add.job(2)]), batch([Hidden(card="2")])]).dispatch()
            chain([OnSync(number=1)]).dispatch()
            batch(iter([add.job(3)])).on_queue("real").dispatch()
        assert len(queued.batches) == len(queued.chains) == 1
        assert OnSync.ran == [1]
        assert manager.default().connection().size("math") == 1
        manager.default().close()


class TestRun:
    def test_what_a_link_does_to_its_chain(self) -> None:
        ran = run(Link(how="extend"))
        ran.assert_done()
        assert ran.appended == [SendWelcome(user_id=1), add.job(1)]
        assert ran.prepended == [SendWelcome(user_id=2)]
        ran.assert_appended(add)
        ran.assert_appended(SendWelcome(user_id=1))
        ran.assert_prepended(SendWelcome)
        assert words(ran.assert_prepended, add) == (
            "expected Link(how='extend') to prepend add to its chain, but it prepended "
            "SendWelcome(user_id=2, text='hello'), and it was done"
        )
        assert "to append Hidden" in words(ran.assert_appended, Hidden)
        assert "but it appended nothing" in words(run(Link(how="")).assert_appended, add)

    def test_what_a_member_does_to_its_batch(self) -> None:
        stack = fake_batch(name="rows", total=10, done=3, failed=1)
        assert repr(stack) == "<Batch rows: 3 done and 1 failed of 10>"
        ran = run(Link(how="add"), batch=stack)
        ran.assert_done()
        assert ran.added == [SendWelcome(user_id=1), [Follows(), add.job(2)]]
        ran.assert_added(SendWelcome)
        assert "to add add to its batch, but it added Send" in words(ran.assert_added, add)
        assert stack.fresh().total == Link.seen[0].total == 12
        assert stack.fresh().pending == 8
        run(Link(how="cancel"), batch=stack).assert_done()
        assert stack.fresh().is_cancelled
        assert Link.seen[-1] == (False, True)

    def test_a_batch_in_whatever_state(self) -> None:
        assert fake_batch(total=2, done=2).is_finished
        assert fake_batch(total=2, failed=2).failed_jobs
        assert fake_batch(cancelled=True).is_cancelled
        assert fake_batch(total=3, done=3, cancelled=True).is_finished
        assert fake_batch(total=0).is_finished
        for total, done in ((1, 2), (3, -1), (-1, 0)):
            with pytest.raises(ValueError, match="total is at least"):
                fake_batch(total=total, done=done)

    def test_one_of_a_fake(self) -> None:
        with fake() as queued:
            made = batch([Link(how="add")]).dispatch()
            ran = run(Link(how="add"), batch=made)
        assert ran.added[0] == SendWelcome(user_id=1)
        assert made.fresh().total == 3
        queued.assert_batched(lambda batch: batch.total == 1)

    def test_in_no_batch_and_what_was_caught(self) -> None:
        why = Caught("id", "app.jobs.Import", "ValueError: no")
        run(Link(how=""))
        run(Link(how=""), caught=why)
        assert Link.seen == [(None, None), (None, why)]

    def test_a_batch_on_a_real_queue_is_worked_to_its_end(self, tmp_path: Path) -> None:
        kept(tmp_path)
        made = batch([Follows(), [Follows(), add.job(1)]]).dispatch()
        assert drain().done == 4  # and what tells that it has finished
        found = find_batch(made.id)
        assert found is not None
        assert (found.done, found.is_finished) == (2, True)
        assert find_batch("other") is None
        manager.default().close()


def test_the_null_connection_keeps_nothing() -> None:
    manager.use(QueueManager({"default": "null"}))
    assert batch(welcomes(1)).dispatch().total == 0
