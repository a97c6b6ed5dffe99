from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    InvalidJob,
    InvalidQueueName,
    PayloadTooLarge,
    PendingDispatch,
    Queueable,
    QueueManager,
    Secret,
    Unsupported,
    bulk,
    connection,
    dispatch,
    dispatch_sync,
    events,
    foreign,
    manager,
)
from qframe.testing import Fake, fake
from tests.testing.jobs import (
    Debounced,
    Hidden,
    Login,
    OneAtOnce,
    OnSync,
    SendLater,
    SendWelcome,
    add,
    signed_up,
    use,
)


class Own(Queueable):
    secret: str

    def handle(self) -> None:
        pass

    def __repr__(self) -> str:
        return "<mine>"


PHP = foreign("App\\Handlers\\Import@handle", {"id": 7})


@pytest.fixture(autouse=True)
def project(fresh: Path) -> Path:
    """Use an empty folder, in which nobody may make a database."""
    OnSync.ran.clear()
    return fresh


@pytest.fixture
def may_be_stored() -> bool:
    return False


@pytest.fixture(autouse=True)
def nothing_is_left(project: Path, may_be_stored: bool) -> Iterator[None]:
    yield
    assert connection.stand_in is None
    assert may_be_stored or list(project.iterdir()) == []


class TestRecording:
    def test_every_way_to_dispatch_is_written_down_and_nothing_is_pushed(self) -> None:
        queue = manager.default().connection()
        with fake() as queued:
            dispatch(SendWelcome(user_id=1))
            dispatch(SendWelcome(user_id=2)).send()
            SendWelcome.dispatch(user_id=3).on_queue("high").delay(10)
            add.dispatch(1, 2)
            dispatch(PHP).on_connection("redis")
            bulk([SendWelcome(user_id=4), add.job(3)])
            queue.push(SendWelcome(user_id=5))
            queue.later(5, SendWelcome(user_id=6), "other")
            queue.bulk([SendWelcome(user_id=7)])
            queue.push_raw(json.dumps({"uuid": "a", "job": "app.Other", "data": {}}), "raw")
            dispatch(OnSync())
            dispatch_sync(OnSync(number=1))
        found = [(each.name.split(".")[-1], each.connection, each.queue, each.delay)
                 for each in queued.dispatched()]  # fmt: skip
        assert found == [
            ("SendWelcome", "database", "emails", 0),
            ("SendWelcome", "database", "emails", 0),
            ("SendWelcome", "database", "high", 10),
            ("add", "database", "math", 0),
            ("App\\Handlers\\Import@handle", "redis", "default", 0),
            ("SendWelcome", "database", "emails", 0),
            ("add", "database", "math", 0),
            ("SendWelcome", "database", "emails", 0),
            ("SendWelcome", "database", "other", 5),
            ("SendWelcome", "database", "emails", 0),
            ("Other", "database", "raw", 0),
            ("OnSync", "sync", "default", 0),
            ("OnSync", "sync", "default", 0),
        ]
        assert [job.user_id for job in queued.jobs(SendWelcome)] == [1, 2, 3, 4, 5, 6, 7]
        assert OnSync.ran == []

    def test_ids_and_payloads_are_those_a_push_makes(self) -> None:
        with fake() as queued:
            given = dispatch(SendWelcome(user_id=1)).delay(3).track(60).send()
            ids = bulk([add.job(1), SendWelcome(user_id=2), add.job(2)])
        first, *others = queued.dispatched()
        assert first.id == given == first.payload["uuid"]
        assert first.payload["data"] == {"user_id": 1, "text": "hello"}
        assert (first.payload["delay"], first.payload["track"]) == (3, 60)
        assert {each.id for each in others} == {*ids}
        assert [add.job(1), add.job(2)] == queued.jobs(add)

    def test_a_connection_that_was_there_before_and_one_of_another_manager(self) -> None:
        before = QueueManager().connection()
        pending = dispatch(SendWelcome(user_id=1))
        with fake() as queued:
            before.push(SendWelcome(user_id=2))
            QueueManager({"default": "null"}).connection().push(SendWelcome(user_id=3))
            pending.send()
        queued.assert_dispatched(SendWelcome, times=3)
        queued.assert_dispatched(SendWelcome(user_id=3), connection="null")

    def test_a_dispatch_that_a_variable_holds_is_written_down_at_the_end(self) -> None:
        with fake() as queued:
            pending = dispatch(SendWelcome(user_id=1))
            queued.assert_nothing_dispatched()
        queued.assert_dispatched(SendWelcome, times=1)
        assert pending.send() == queued.dispatched()[0].id
        del pending
        gc.collect()
        queued.assert_dispatched(SendWelcome, times=1)

    def test_one_made_before_stays_what_it_was(self) -> None:
        pending = dispatch(SendWelcome(user_id=1)).on_connection("null")
        with fake() as queued:
            pass
        queued.assert_nothing_dispatched()
        assert "pending" in repr(pending)

    def test_one_that_is_dropped_on_an_event_loop_is_there_at_once(self) -> None:
        pushed_by: list[threading.Thread] = []
        events.listen(events.JobQueued)(lambda _: pushed_by.append(threading.current_thread()))

        async def dropping() -> None:
            await dispatch(SendWelcome(user_id=1))
            dispatch(SendWelcome(user_id=2))
            queued.assert_dispatched(SendWelcome, times=2)

        with fake() as queued:
            asyncio.run(dropping())
        assert pushed_by[1] is threading.current_thread()  # where a real push takes another one

    def test_threads(self) -> None:
        with fake() as queued:
            threads = [threading.Thread(target=signed_up, args=(50,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        queued.assert_dispatched(SendWelcome, times=200)

    def test_a_unique_job_is_there_once(self) -> None:
        with fake() as queued:
            first = OneAtOnce.dispatch(account=1).send()
            assert OneAtOnce.dispatch(account=1).send() == first
            assert bulk([OneAtOnce(account=1)]) == [first]
            assert dispatch(OneAtOnce(account=1)).on_connection("sync").send() == first
            OneAtOnce.dispatch(account=2)
        assert queued.jobs(OneAtOnce) == [OneAtOnce(account=1), OneAtOnce(account=2)]
        with fake() as anew:
            OneAtOnce.dispatch(account=1)
        anew.assert_dispatched(OneAtOnce)

    def test_a_debounced_job_is_there_each_time(self) -> None:
        with fake() as queued:
            for _ in range(2):
                Debounced.dispatch(account=1)
        queued.assert_dispatched(Debounced, times=2, delay=30)


class TestSelection:
    def test_only_some(self) -> None:
        with fake(only=[SendWelcome, "App\\Handlers\\Import"]) as queued:
            signed_up()
            dispatch(PHP)
            assert add.dispatch(1).on_connection("sync").send()
            assert dispatch_sync(add.job(3)) == 5
        assert [type(job).__name__ for job in queued.jobs()] == ["SendWelcome", "Foreign"]

    def test_all_besides_some(self) -> None:
        with fake(besides=[OnSync, add]) as queued:
            signed_up()
            assert dispatch_sync(add.job(3)) == 5
            ids = manager.default().connection("null").bulk([SendWelcome(user_id=1), add.job(1)])
        queued.assert_dispatched(SendWelcome, times=2)
        queued.assert_not_dispatched(add)
        assert queued.dispatched()[-1].id == ids[0]
        assert len(ids) == 2

    @pytest.mark.parametrize("may_be_stored", [True])
    def test_those_let_through_are_really_pushed(self) -> None:
        with fake(besides=[add]) as queued:
            ids = bulk([add.job(1), SendWelcome(user_id=1), add.job(2)], queue="q")
            held = add.dispatch(3).on_queue("q")
        assert manager.default().connection().size("q") == 2
        assert [each.id for each in queued.dispatched()] == [ids[1]]
        held.send()
        assert manager.default().connection().size("q") == 3

    def test_one_inside_another(self) -> None:
        with fake() as outer:
            signed_up()
            with fake(only=[add]) as inner:
                add.dispatch(1)
                signed_up()
            add.dispatch(2)
        assert inner.jobs() == [add.job(1)]
        outer.assert_dispatched(SendWelcome, times=2)
        outer.assert_dispatched(add, times=1)

    def test_a_class_stands_for_its_subclasses(self) -> None:
        with fake() as queued:
            SendLater.dispatch(user_id=1)
        queued.assert_dispatched(SendWelcome, delay=60)
        queued.assert_dispatched(Queueable)

    def test_it_ends_also_with_an_error_and_is_used_once_at_a_time(self) -> None:
        queued = Fake()

        def fails() -> None:
            with queued:
                signed_up()
                with pytest.raises(RuntimeError, match="on already"):
                    queued.__enter__()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        queued.assert_dispatched(SendWelcome, times=1)
        assert connection.stand_in is None

    def test_what_is_no_job_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"give a list of jobs: fake\(only="):
            fake(only="SendWelcome")
        with pytest.raises(TypeError, match=r"name a job class, .* not <class 'int'>"):
            fake(only=[int])  # type: ignore[list-item] # the point


class TestAsInProduction:
    def test_bad_jobs_are_refused(self) -> None:
        use(database={"max_payload": 500})
        with fake() as queued:
            with pytest.raises(PayloadTooLarge):
                SendWelcome.dispatch(user_id=1, text="x" * 500)
            with pytest.raises(InvalidJob):
                SendWelcome.dispatch(user_id="x")  # type: ignore[arg-type]
            with pytest.raises(InvalidQueueName):
                SendWelcome.dispatch(user_id=1).on_queue("a b")
            with pytest.raises(InvalidJob):
                SendWelcome.dispatch(user_id=1).delay(-1)
            with pytest.raises(Unsupported):
                dispatch(PHP).on_connection("sync").send()
            with pytest.raises(Unsupported):
                manager.default().connection("sync").push_raw("{}")
        queued.assert_nothing_dispatched()

    def test_listeners_hear_of_it_and_add_to_the_payload(self) -> None:
        heard: list[object] = []

        @events.listen(events.JobQueueing)
        def trace(event: events.JobQueueing) -> None:
            event.payload["trace"] = "t1"

        events.listen(events.JobQueued)(heard.append)
        with fake() as queued:
            signed_up()
        assert queued.dispatched()[0].payload["trace"] == "t1"
        assert [type(each).__name__ for each in heard] == ["JobQueued"]


class TestAssertions:
    def test_what_holds(self) -> None:
        soon = datetime.now(UTC) + timedelta(minutes=5)
        with fake() as queued:
            SendWelcome.dispatch(user_id=7).delay(10)
            SendWelcome.dispatch(user_id=8).on_queue("high").on_connection("redis")
            SendWelcome.dispatch(user_id=9).delay(soon)
            dispatch(PHP)
            manager.default().connection().push_raw(
                json.dumps({"job": SendWelcome.own_name(), "data": {"user_id": 10}})
            )
            manager.default().connection().push_raw("no payload")
        queued.assert_dispatched(SendWelcome, times=4)
        queued.assert_dispatched(SendWelcome, times=1, where=lambda job: job.user_id == 7, delay=10)
        queued.assert_dispatched(SendWelcome, delay=timedelta(seconds=10))
        queued.assert_dispatched(SendWelcome(user_id=9), delay=soon)
        queued.assert_dispatched(SendWelcome(user_id=10), queue="default")
        queued.assert_dispatched(SendWelcome, times=1, queue="high", connection="redis", delay=0)
        queued.assert_dispatched("App\\Handlers\\Import")
        queued.assert_dispatched(foreign("App\\Handlers\\Import@handle", {"id": 7}))
        queued.assert_not_dispatched(foreign("App\\Handlers\\Import@handle", {"id": 8}))
        queued.assert_not_dispatched(SendWelcome, queue="low")
        queued.assert_not_dispatched(SendWelcome(user_id=11))
        queued.assert_not_dispatched(add)
        queued.assert_dispatched(add, times=0)

    def test_one_that_is_wrong_itself_does_not_pass(self) -> None:
        with fake() as queued:
            pass
        with pytest.raises(TypeError, match="name a job class"):
            queued.assert_not_dispatched(None)  # type: ignore[arg-type] # the point
        with pytest.raises(ValueError, match="times is a whole number"):
            queued.assert_dispatched(add, times=-1)
        with pytest.raises(ValueError, match="must not be negative"):
            queued.assert_not_dispatched(add, delay=-1)

    def test_an_error_of_where_is_not_swallowed(self) -> None:
        with fake() as queued:
            signed_up()
        with pytest.raises(AttributeError):
            queued.assert_not_dispatched(SendWelcome, where=lambda job: job.nothing)


def words(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


class TestMessages:
    def test_nothing_was_dispatched(self) -> None:
        with fake() as queued:
            pass
        assert words(queued.assert_dispatched, SendWelcome) == (
            "expected SendWelcome to be dispatched, but nothing was dispatched"
        )

    def test_what_was_dispatched_is_listed(self) -> None:
        with fake() as queued:
            SendWelcome.dispatch(user_id=8, text="x" * 100).delay(timedelta(minutes=1))
            add.dispatch(1).on_connection("redis").on_queue("high")
            dispatch(PHP)
            manager.default().connection().push_raw('{"job": "app.jobs.Gone"}')
        told = words(
            queued.assert_dispatched,
            SendWelcome,
            times=1,
            queue="emails",
            connection="redis",
            delay=10,
            where=lambda job: job.user_id == 7,
        )
        assert told == (
            "expected SendWelcome on the queue 'emails' on the connection 'redis' with a delay of "
            "10 s that `where` accepts to be dispatched once, but it was not; dispatched were:\n"
            f"  - SendWelcome(user_id=8, text='{'x' * 56}...) on database:emails, delayed by 60 s\n"
            "  - add(a=1, b=2) on redis:high\n"
            "  - App\\Handlers\\Import@handle({'id': 7}) on database:default\n"
            "  - app.jobs.Gone (a raw payload) on database:default"
        )

    def test_those_that_fit_are_marked(self) -> None:
        with fake() as queued:
            signed_up(2)
            add.dispatch(1)
        assert words(queued.assert_dispatched, SendWelcome, times=1) == (
            "expected SendWelcome to be dispatched once, but it was twice; dispatched were:\n"
            "  * SendWelcome(user_id=7, text='hello') on database:emails\n"
            "  * SendWelcome(user_id=8, text='hello') on database:emails\n"
            "  - add(a=1, b=2) on database:math"
        )
        assert words(queued.assert_not_dispatched, add.job(1)) == (
            "expected add(a=1, b=2) not to be dispatched, but it was once; dispatched were:\n"
            "  - SendWelcome(user_id=7, text='hello') on database:emails\n"
            "  - SendWelcome(user_id=8, text='hello') on database:emails\n"
            "  * add(a=1, b=2) on database:math"
        )
        assert words(queued.assert_nothing_dispatched) == (
            "expected nothing to be dispatched, but were:\n"
            "  - SendWelcome(user_id=7, text='hello') on database:emails\n"
            "  - SendWelcome(user_id=8, text='hello') on database:emails\n"
            "  - add(a=1, b=2) on database:math"
        )

    def test_one_that_was_not_sent_yet_is_named(self) -> None:
        with fake() as queued:
            pending = dispatch(SendWelcome(user_id=1))
            assert isinstance(pending, PendingDispatch)
            assert words(queued.assert_dispatched, SendWelcome) == (
                "expected SendWelcome to be dispatched, but nothing was dispatched\n"
                "not sent yet, for a variable holds the dispatch: "
                "SendWelcome(user_id=1, text='hello')"
            )

    def test_secrets_are_not_told(self) -> None:
        manager.use(QueueManager({"encryption_keys": ["k" * 43 + "="]}))
        with fake() as queued:
            Login.dispatch(user="ann", password=Secret("s3same"))
            Hidden.dispatch(card="s3same")
        told = words(queued.assert_nothing_dispatched)
        assert "Login(user='ann', password=Secret('**********'))" in told
        assert "Hidden(card=...)" in told
        assert "s3same" not in told
        assert "s3same" not in repr(queued.dispatched())
        assert "s3same" not in json.dumps(queued.dispatched(Hidden)[0].payload)
        assert queued.jobs(Hidden) == [Hidden(card="s3same")]

    def test_a_repr_of_the_job_s_own_is_used(self) -> None:
        with fake() as queued:
            Own.dispatch(secret="s3same")
        assert words(queued.assert_nothing_dispatched).endswith("  - <mine> on database:default")

    def test_a_long_list_is_cut(self) -> None:
        with fake() as queued:
            signed_up(25)
        told = words(queued.assert_nothing_dispatched).splitlines()
        assert len(told) == 22
        assert told[-1] == "  and 5 more"

    def test_a_value_whose_repr_raises(self) -> None:
        class Rude(str):
            __slots__ = ()

            def __repr__(self) -> str:
                raise ZeroDivisionError

        job = SendWelcome(user_id=1)
        object.__setattr__(job, "text", Rude("x"))
        with fake() as queued:
            pass
        assert "text=<Rude: its repr raised ZeroDivisionError>" in words(
            queued.assert_dispatched, job
        )
