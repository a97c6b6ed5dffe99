"""Calls that are awaited: what they give, on every backend, and that none blocks the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    Batch,
    Cancelling,
    InvalidJob,
    InvalidPayload,
    JobId,
    NotTracked,
    Queueable,
    QueueManager,
    State,
    SynchronousOnly,
    WaitTimedOut,
    Worker,
    WorkerOptions,
    abulk,
    acancel,
    afind_batch,
    ajob_status,
    await_for,
    batch,
    bulk,
    cancel,
    chain,
    dispatch,
    events,
    find_batch,
    job_status,
    manager,
    wait_for,
)
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Push
from qframe.dispatch.draft import Draft, flush
from qframe.dispatch.handed import Handed
from qframe.drivers.ordered import OrderedBackend
from qframe.testing import fake
from tests.support.process import wait_for as wait_until

ran: list[int] = []
who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Feed(Queueable):
    number: int = 0

    def handle(self) -> int:
        ran.append(self.number)
        return self.number


class FeedOnce(Feed):
    unique = True


class Watched(Feed):
    track = True


class Grows(Queueable):
    """A member that looks at its batch, and adds to it."""

    async def handle(self) -> None:
        mine = self.batch()
        assert mine is not None
        assert mine.total == 1, "it is read when it is looked at"
        assert (await mine.afresh()).total == 1
        assert (await mine.aadd(Feed(number=7), [Feed(number=8), Feed(number=9)])).total == 3


@pytest.fixture
def queue(backend: dict[str, Any], fresh: Path) -> Connection:
    return use(fresh, backend)


@pytest.fixture
def embedded(fresh: Path) -> Connection:
    return use(fresh, {"driver": "database"})


def use(root: Path, settings: dict[str, Any]) -> Connection:
    connection = {"push_retries": 0, **settings}
    manager.use(
        QueueManager(
            {
                "root": str(root),
                "default": "used",
                "jobs": [__name__],
                "connections": {"used": connection},
            }
        )
    )
    ran.clear()
    return manager.default().connection()


def work() -> None:
    Worker(manager.default(), WorkerOptions(stop_when_empty=True, memory=0)).run()


# -- what they give -------------------------------------------------------------------------------


def test_bulk(queue: Connection) -> None:
    async def main() -> None:
        ids = await abulk(Feed(number=number) for number in range(450))
        assert type(ids) is list
        assert len(set(ids)) == 450
        assert await abulk([]) == []
        first, *others = await abulk(FeedOnce(number=7) for _ in range(3))
        assert others == [first] * 2

    asyncio.run(main())
    assert queue.size() == 451


def test_a_chain(queue: Connection) -> None:
    async def main() -> None:
        made = chain([Feed(number=1), Feed(number=2), Feed(number=3)]).on_queue("linked")
        assert len(await made.adispatch()) == 36
        assert len(await chain([Feed(number=4)])) == 36

    asyncio.run(main())
    Worker(
        manager.default(),
        WorkerOptions(queues=("linked", "default"), stop_when_empty=True, memory=0),
    ).run()
    assert ran == [1, 2, 3, 4]


def test_many_chains_pass_over_what_is_there(queue: Connection) -> None:
    async def main() -> None:
        await asyncio.gather(
            *(chain([FeedOnce(number=7), Feed(number=n)]).adispatch() for n in range(5))
        )

    asyncio.run(main())
    work()
    assert sorted(ran) == [0, 1, 2, 3, 4, 7]


def test_a_batch_and_what_is_asked_of_it(queue: Connection) -> None:
    async def main() -> None:
        made = await batch(Feed(number=number) for number in range(3)).name("three")
        assert isinstance(made, Batch)
        assert (made.name, made.total) == ("three", 3)
        assert (await made.aadd(Feed(number=3))).total == 4
        assert (await made.afresh()).total == 4
        assert await made.afailed_jobs() == []
        found = await afind_batch(made.id)
        assert found is not None
        assert found.total == 4
        assert await afind_batch("none") is None
        assert await made.acancel()
        assert not await made.acancel()
        with pytest.raises(InvalidJob, match="takes no jobs"):
            await made.aadd(Feed(number=4))
        assert (await batch([]).adispatch()).is_finished

    asyncio.run(main())
    work()
    assert ran == [0, 1, 2, 3]


def test_a_member_adds_to_its_batch(queue: Connection) -> None:
    made = batch([Grows()]).dispatch()
    work()
    assert ran == [7, 8, 9]
    assert made.fresh().done == 3


def test_a_status_and_its_end(queue: Connection) -> None:
    async def main() -> None:
        ids = await abulk(Watched(number=number) for number in range(30))
        waiting = await ajob_status(ids[0])
        assert waiting is not None
        assert waiting.state is State.WAITING
        assert await ajob_status("none") is None
        with pytest.raises(NotTracked):
            await await_for("none", 5)
        with pytest.raises(WaitTimedOut):
            await await_for(ids[0], 0.05)
        ended = [asyncio.create_task(await_for(each, 30)) for each in ids]
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(work))
            last = group.create_task(await_for(ids[-1], 30))
        assert last.result().state is State.COMPLETE
        assert [each.result for each in await asyncio.gather(*ended)] == [*range(30)]

    asyncio.run(main())


def test_a_job_is_cancelled(queue: Connection) -> None:
    searches = Capability.SEARCH in queue.capabilities

    async def main() -> None:
        one = await dispatch(Watched()).delay(100)
        if not searches:
            assert await acancel(one) is Cancelling.NOTED
            return
        assert await acancel(one) is Cancelling.REMOVED
        assert await acancel(one) is Cancelling.ABSENT

    asyncio.run(main())
    assert queue.size() == (not searches)


# -- nothing blocks the loop ----------------------------------------------------------------------


class Slow:
    """Makes each exchange of a backend take its time, and counts them and their threads."""

    def __init__(self, queue: Connection, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.exchanges = 0
        self.threads: set[str] = set()
        for name in ("apply", "read", "latch"):
            monkeypatch.setattr(queue.backend, name, self._slowed(getattr(queue.backend, name)))
        self.seconds = seconds

    def _slowed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*given: Any, **more: Any) -> Any:
            self.exchanges += 1
            self.threads.add(threading.current_thread().name)
            time.sleep(self.seconds)
            return act(*given, **more)

        return slowed


CALLS: list[Callable[[], Awaitable[Any]]] = [
    lambda: abulk([Feed()]),
    lambda: chain([Feed(), Feed()]).adispatch(),
    lambda: chain([Feed()]),
    lambda: batch([Feed()]).adispatch(),
    lambda: batch([Feed()]),
    lambda: afind_batch("none"),
    lambda: ajob_status("none"),
    lambda: acancel("none"),
    lambda: dispatch(Feed()),
]


@pytest.mark.parametrize("call", CALLS)
def test_the_loop_goes_on_meanwhile(
    embedded: Connection, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Awaitable[Any]]
) -> None:
    slow = Slow(embedded, monkeypatch, 0.1)

    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await call()
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) >= 2  # none, were it to block
    assert slow.threads <= {"qframe-sender", "qframe-long-sender"}


def test_a_thousand_that_wait_ask_together(
    embedded: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        ids = await abulk(Watched(number=number) for number in range(1000))
        slow = Slow(embedded, monkeypatch, 0)
        await asyncio.to_thread(int)  # its thread is there
        before = set(threading.enumerate())
        waiting = [asyncio.create_task(await_for(each, 300)) for each in ids]
        began = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: slow.exchanges >= 10, "ten exchanges")
        asked, seconds = slow.exchanges, time.monotonic() - began
        assert not set(threading.enumerate()) - before
        assert slow.threads == {"qframe-sender"}
        assert asked < 5 * 60 * max(1.0, seconds / 2), "five exchanges each time, not a thousand"
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(work))
            assert len(await asyncio.gather(*waiting)) == 1000

    asyncio.run(main())


@pytest.mark.parametrize(
    "call", [lambda: batch(Feed() for _ in range(500)), lambda: abulk(Feed() for _ in range(1500))]
)
def test_a_long_call_keeps_no_short_one_waiting(
    embedded: Connection, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Awaitable[Any]]
) -> None:
    apply = embedded.backend.apply
    begun, others = threading.Event(), threading.Event()

    def slow(*steps: Any) -> Any:
        if any(len(step.operations) > 100 for step in steps):
            begun.set()
            assert others.wait(60), "the short calls have not ended"
        return apply(*steps)

    monkeypatch.setattr(embedded.backend, "apply", slow)

    async def awaited() -> None:
        await call()

    async def main() -> None:
        long = asyncio.create_task(awaited())
        assert await asyncio.to_thread(begun.wait, 60)
        await dispatch(Feed())
        await chain([Feed()])
        assert await ajob_status("none") is None
        others.set()
        await long

    asyncio.run(main())


def test_a_batch_is_pushed_in_parts_between_which_others_have_their_turns(
    embedded: Connection,
) -> None:
    async def main() -> list[str]:
        ended: list[str] = []

        async def note(what: str, call: Awaitable[Any]) -> None:
            await call
            ended.append(what)

        async with asyncio.TaskGroup() as group:
            group.create_task(note("many", batch(Feed() for _ in range(3000))))
            group.create_task(note("few", batch([Feed()])))
        return ended

    assert asyncio.run(main()) == ["few", "many"]


def test_listeners_see_what_the_coroutine_saw(embedded: Connection) -> None:
    seen: list[str] = []

    async def main() -> None:
        who.set("me")
        await abulk([Feed()])
        await chain([Feed()])
        await batch([Feed()])

    with events.kept():
        events.listen(events.JobQueued)(lambda _event: seen.append(who.get()))
        asyncio.run(main())
    assert seen == ["me"] * 3


# -- errors ---------------------------------------------------------------------------------------


class Refusing:
    """Has every push fail, of a message with a word in it."""

    def __init__(self, queue: Connection, monkeypatch: pytest.MonkeyPatch, word: bytes) -> None:
        self.word = word
        self.error: type[Exception] = BackendUnavailable
        self.tries = 0
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._apply = queue.backend.apply
        monkeypatch.setattr(queue.backend, "apply", self)

    def __call__(self, *steps: Any) -> Any:
        pushes = [each for step in steps for each in step.operations if type(each) is Push]
        if any(self.word in each.raw for each in pushes):
            self.tries += 1
            self.reached.set()
            assert self.go_on.wait(30)
            raise self.error("refused")
        return self._apply(*steps)


@pytest.fixture
def refusing(embedded: Connection, monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(embedded, monkeypatch, b'"number":13')


class Told:
    """What was told of what nobody heard."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.unraisable: list[Any] = []
        self.failed: list[events.JobDispatchFailed] = []
        events.listen(events.JobDispatchFailed)(self.failed.append)

    def __call__(self) -> list[str]:
        gc.collect()
        flush()
        flush()
        return [each.getMessage() for each in self._caplog.records if each.levelname == "CRITICAL"]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    with events.kept():
        made = Told(caplog)
        monkeypatch.setattr("sys.unraisablehook", made.unraisable.append)
        yield made


UNLUCKY: list[Callable[[], Awaitable[Any]]] = [
    lambda: abulk([Feed(number=13)]),
    lambda: chain([Feed(number=13), Feed()]).adispatch(),
    lambda: batch([Feed(number=13)]).adispatch(),
    lambda: dispatch(Feed(number=13)),
]


@pytest.mark.parametrize("call", UNLUCKY)
def test_an_error_reaches_who_awaits_and_nobody_else(
    embedded: Connection, refusing: Refusing, told: Told, call: Callable[[], Awaitable[Any]]
) -> None:
    async def main() -> None:
        with pytest.raises(BackendUnavailable, match="refused"):
            await call()

    asyncio.run(main())
    assert told() == []


def test_each_of_those_together_hears_of_its_own(embedded: Connection, refusing: Refusing) -> None:
    refusing.error = InvalidPayload

    async def main() -> None:
        one, two, three, four, five = await asyncio.gather(
            abulk([Feed(number=1)]),
            abulk([Feed(number=13)]),
            chain([Feed(number=13), Feed()]),
            chain([Feed(number=2)]),
            dispatch(Feed(number=3)),
            return_exceptions=True,
        )
        assert [type(each) for each in (one, four, five)] == [list, str, JobId]
        assert [type(each) for each in (two, three)] == [InvalidPayload] * 2
        assert two is not three

    asyncio.run(main())
    assert embedded.size() == 3
    assert len(embedded.store.keys("chain:")) == 1, "that was refused leaves nothing"


def test_a_chain_that_cannot_be_pushed_leaves_nothing(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its facts are elsewhere they are there already."""
    connections = {name: {"driver": "memory"} for name in ("used", "kept")}
    manager.use(
        QueueManager(
            {
                "root": str(fresh),
                "default": "used",
                "connections": connections,
                "store": {"driver": "kept"},
            }
        )
    )
    queue = manager.default().connection()
    assert isinstance(queue.backend, OrderedBackend)

    def refuse(*_: Any) -> None:
        raise InvalidPayload("refused")

    async def main() -> None:
        with pytest.raises(InvalidPayload):
            await chain([Feed(), Feed()])

    monkeypatch.setattr(queue.backend.messages, "apply", refuse)
    asyncio.run(main())
    assert queue.store.keys("chain:") == []


def test_a_bad_job_is_refused_before_anything_is_pushed(embedded: Connection) -> None:
    class Here(Queueable):
        def handle(self) -> None: ...

    async def main() -> None:
        with pytest.raises(InvalidJob, match="takes a job"):
            await abulk([Feed(), "no job"])  # type: ignore[arg-type]
        for bad in (abulk([Feed(), Here()]), chain([Feed(), Here()]), batch([Feed(), Here()])):
            with pytest.raises(InvalidJob, match="Here"):
                await bad

    asyncio.run(main())
    left = embedded.size()
    assert left <= 1, "the internal job of the batch, whose members were refused"


async def leave(call: Awaitable[Any], refusing: Refusing) -> None:
    """Await something no longer once its push has begun."""
    refusing.go_on.clear()

    async def awaited() -> None:
        await call

    task = asyncio.create_task(awaited())
    await asyncio.to_thread(refusing.reached.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    refusing.go_on.set()


@pytest.mark.parametrize(
    ("call", "what", "numbers"),
    [
        (UNLUCKY[0], "a bulk of 1 jobs", [13]),
        (UNLUCKY[1], "the chain", [13]),
        (UNLUCKY[2], "a batch", []),
        (UNLUCKY[3], "Feed", [13]),
    ],
)
def test_an_error_nobody_hears_is_told_three_ways(
    embedded: Connection,
    refusing: Refusing,
    told: Told,
    call: Callable[[], Awaitable[Any]],
    what: str,
    numbers: list[int],
) -> None:
    asyncio.run(leave(call(), refusing))
    (line,) = told()
    assert what in line
    assert "could not be pushed to used:default: BackendUnavailable: refused" in line
    (event,) = told.failed
    assert [event.payload["data"]["number"] for event in told.failed if event.payload] == numbers
    assert isinstance(event.error, BackendUnavailable)
    (unraisable,) = told.unraisable
    assert isinstance(unraisable.exc_value, BackendUnavailable)


def test_a_bulk_that_fails_is_told_of_job_by_job(
    embedded: Connection, refusing: Refusing, told: Told
) -> None:
    asyncio.run(leave(abulk([Feed(number=number) for number in (1, 13, 2)], "high"), refusing))
    assert len(told()) == 1
    assert [event.payload["data"]["number"] for event in told.failed] == [1, 13, 2]
    assert {event.queue for event in told.failed} == {"high"}
    assert [event.job.number for event in told.failed] == [1, 13, 2]


def test_what_is_awaited_is_tried_once(embedded: Connection, refusing: Refusing) -> None:
    embedded.settings.push_retries = 3

    async def main() -> None:
        with pytest.raises(BackendUnavailable):
            await abulk([Feed(number=13)])

    asyncio.run(main())
    assert refusing.tries == 1


# -- those that block ----------------------------------------------------------------------------


BLOCKING: list[tuple[Callable[[Batch], Any], str]] = [
    (lambda _: bulk([Feed()]), "bulk() blocks, .* await abulk()"),
    (lambda _: chain([Feed()]).dispatch(), "dispatch() of a chain blocks, .* adispatch()"),
    (lambda _: batch([Feed()]).dispatch(), "dispatch() of a batch blocks, .* adispatch()"),
    (lambda _: job_status("none"), "job_status() blocks, .* ajob_status()"),
    (lambda _: wait_for("none", 5), "wait_for() blocks, .* await_for()"),
    (lambda _: cancel("none"), "cancel() blocks, .* acancel()"),
    (lambda _: find_batch("none"), "find_batch() blocks, .* afind_batch()"),
    (lambda made: made.add(Feed()), "add() of a batch blocks, .* aadd()"),
    (lambda made: made.fresh(), "fresh() of a batch blocks, .* afresh()"),
    (lambda made: made.cancel(), "cancel() of a batch blocks, .* acancel()"),
    (lambda made: made.failed_jobs, "failed_jobs of a batch blocks, .* afailed_jobs()"),
]


@pytest.mark.parametrize(("call", "said"), BLOCKING)
def test_on_a_running_loop_they_name_what_to_await_and_do_nothing(
    embedded: Connection, call: Callable[[Batch], Any], said: str
) -> None:
    made = batch([Feed()]).dispatch()

    async def main() -> None:
        with pytest.raises(SynchronousOnly, match=re.escape(said).replace(r"\.\*", ".*")):
            call(made)

    asyncio.run(main())
    assert embedded.size() == made.fresh().total == 1
    assert not made.fresh().is_cancelled


def test_elsewhere_they_block(embedded: Connection) -> None:
    ids = bulk([Watched(), Feed()])
    assert type(ids) is list
    assert type(chain([Feed()]).dispatch()) is str
    made = batch([Feed()]).dispatch()
    assert type(made) is Batch
    assert made.add(Feed()).total == 2
    assert made.cancel() is True
    assert type(made.failed_jobs) is list
    assert job_status("none") is None
    assert find_batch("none") is None
    assert cancel(ids[0]) is Cancelling.REMOVED
    with pytest.raises(WaitTimedOut):
        wait_for(bulk([Watched()])[0], 0)


# -- beside queues --------------------------------------------------------------------------------


def test_a_fake_takes_them_at_once(embedded: Connection) -> None:
    async def main() -> None:
        with fake() as queued:
            await abulk([Feed(number=1)])
            queued.assert_dispatched(Feed(number=1))
            await chain([Feed(number=2), Feed(number=3)])
            queued.assert_chained([Feed(number=2), Feed(number=3)])
            assert (await batch([Feed(number=4)])).total == 1
            queued.assert_batched(jobs=[Feed(number=4)])
            assert len(await abulk([Feed()])) == 1
            assert len(await chain([Feed()])) == 36
            assert len(await dispatch(Feed())) == 36

    asyncio.run(main())
    assert embedded.size() == 0


class Nested(Queueable):
    """Dispatches, on the connection that runs it, from a loop of its own."""

    async def handle(self) -> None:
        await abulk([Feed(number=1)])
        await chain([Feed(number=2), Feed(number=3)])
        await dispatch(Feed(number=4))


def test_on_the_sync_connection_jobs_run_in_the_call(fresh: Path) -> None:
    use(fresh, {"driver": "sync"})

    async def main() -> None:
        assert len(await abulk([Feed(number=1), Feed(number=2)])) == 2
        assert ran == [1, 2]
        await chain([Feed(number=3), Feed(number=4)])
        made = await batch([Feed(number=5)])
        assert made.done == 1
        assert ran == [1, 2, 3, 4, 5]
        with pytest.raises(ZeroDivisionError):
            await abulk([Fails()])
        ran.clear()
        await dispatch(Nested())
        await asyncio.wait_for(abulk([Nested()]), 20)
        assert ran == [1, 2, 3, 4] * 2

    asyncio.run(main())


class Fails(Queueable):
    def handle(self) -> None:
        raise ZeroDivisionError


def test_on_the_null_connection_nothing_happens(fresh: Path) -> None:
    use(fresh, {"driver": "null"})

    async def main() -> None:
        assert len(await abulk([Feed()])) == 1
        assert len(await chain([Feed()])) == 36
        assert (await batch([Feed()])).total == 0

    asyncio.run(main())


def test_no_call_holds_on_to_what_it_did(embedded: Connection) -> None:
    """What is left of a thousand calls would be looked through by the garbage collector."""

    async def main() -> None:
        await asyncio.gather(
            *(abulk([Feed()]) for _ in range(50)), *(dispatch(Feed()) for _ in range(50))
        )

    def left() -> list[object]:
        found = (each for each in gc.get_objects() if issubclass(type(each), Handed | Draft))
        return [each for each in found if id(each) not in others]

    others: set[int] = set()
    gc.collect()
    gc.disable()
    try:
        others = {id(each) for each in left()}  # frames of other tests may hold some
        asyncio.run(main())
        wait_until(lambda: not left(), "the sender to let go of them")
    finally:
        gc.enable()


def test_they_are_coroutines_to_asyncio(embedded: Connection) -> None:
    async def main() -> None:
        made: Coroutine[Any, Any, list[JobId]] = abulk([Feed()])
        assert asyncio.iscoroutine(made)
        assert len(await asyncio.create_task(made)) == 1
        task = asyncio.create_task(await_for((await abulk([Watched()]))[0], 30))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(chain([Feed()]), 20)

    asyncio.run(main(), debug=True)
