"""What becomes of calls on event loops when a task, a loop, a process or a backend ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    InvalidJob,
    PendingDispatch,
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    abulk,
    ajob_status,
    await_for,
    batch,
    bulk,
    chain,
    dispatch,
    events,
    manager,
)
from qframe.connection import Connection
from qframe.contracts.step import Push
from qframe.dispatch.draft import flush
from tests.support.process import Project, wait_for


class Feed(Queueable):
    number: int = 0
    track = True

    def handle(self) -> None: ...


@pytest.fixture
def queue(fresh: Path) -> Connection:
    connections = {"database": {"push_retries": 0}}
    manager.use(QueueManager({"root": str(fresh), "jobs": [__name__], "connections": connections}))
    return manager.default().connection("database")


class Gate:
    """Lets no push through before it is opened."""

    def __init__(self, queue: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._apply = queue.backend.apply
        monkeypatch.setattr(queue.backend, "apply", self)

    def __call__(self, *steps: Any) -> Any:
        if any(type(each) is Push for step in steps for each in step.operations):
            self.reached.set()
            assert self._open.wait(30)
            if self.error is not None:
                raise self.error
        return self._apply(*steps)

    def open(self, error: Exception | None = None) -> None:
        self.error = error
        self._open.set()

    async def is_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait, 30)


@pytest.fixture
def gate(queue: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(queue, monkeypatch)
    yield made
    made.open()
    flush()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[events.JobDispatchFailed]]:
    heard: list[events.JobDispatchFailed] = []
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    with events.kept():
        events.listen(events.JobDispatchFailed)(heard.append)
        yield heard


CALLS: list[Callable[[], Awaitable[Any]]] = [
    lambda: dispatch(Feed()),
    lambda: abulk([Feed() for _ in range(3)]),
    lambda: chain([Feed(), Feed()]).adispatch(),
    lambda: batch([Feed() for _ in range(3)]).adispatch(),
]
SIZES = [1, 3, 1, 3]


# -- a task that is cancelled ---------------------------------------------------------------------


@pytest.mark.parametrize(("call", "size"), [*zip(CALLS, SIZES, strict=True)])
def test_who_is_cancelled_takes_nothing_back(
    queue: Connection, gate: Gate, call: Callable[[], Awaitable[Any]], size: int
) -> None:
    async def main() -> None:
        async def waits() -> None:
            await call()

        task = asyncio.create_task(waits())
        await gate.is_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()

    asyncio.run(main())
    flush()
    assert queue.size() == size, "once, and whole"


@pytest.mark.parametrize("call", CALLS)
def test_an_error_that_comes_after_that_is_told(
    queue: Connection,
    gate: Gate,
    lost: list[events.JobDispatchFailed],
    call: Callable[[], Awaitable[Any]],
) -> None:
    async def main() -> None:
        task = asyncio.create_task(_awaited(call()))
        await gate.is_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open(BackendUnavailable("away"))

    asyncio.run(main())
    flush()
    assert {str(event.error) for event in lost} == {"away"}


def test_so_is_one_that_comes_just_as_who_awaits_leaves(
    queue: Connection, gate: Gate, lost: list[events.JobDispatchFailed]
) -> None:
    async def main() -> None:
        made = dispatch(Feed())
        task = asyncio.create_task(_awaited(made))
        await gate.is_reached()
        gate.open(BackendUnavailable("away"))
        handed = made._draft.handed
        assert handed is not None
        wait_for(lambda: handed.is_over, "the end of the push, for which the loop stands still")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    flush()
    assert [str(event.error) for event in lost] == ["away"]


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


def test_who_awaits_a_dispatch_again_awaits_the_same(queue: Connection, gate: Gate) -> None:
    async def main() -> None:
        made = dispatch(Feed())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_awaited(made), 0.05)
        await gate.is_reached()
        first = asyncio.create_task(_awaited(made))
        await asyncio.sleep(0)
        gate.open()
        assert await _awaited(made) is await first

    asyncio.run(main())
    assert queue.size() == 1


def test_a_dispatch_that_is_under_way_is_not_sent_twice(queue: Connection, gate: Gate) -> None:
    async def main() -> str:
        made = dispatch(Feed())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(made), 0.05)
        threading.Timer(0.1, gate.open).start()
        return made.send()

    sent = asyncio.run(main())
    assert len(sent) == 36
    assert queue.size() == 1


def test_a_dispatch_that_failed_may_be_awaited_again(queue: Connection, gate: Gate) -> None:
    async def main() -> None:
        made = dispatch(Feed())
        gate.open(BackendUnavailable("away"))
        with pytest.raises(BackendUnavailable):
            await made
        gate.open()
        assert await made == await made

    asyncio.run(main())
    assert queue.size() == 1


def test_a_question_nobody_waits_for_is_asked_no_more(
    queue: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    read = queue.backend.read

    def noting(*keys: str) -> Any:
        asked.append(time.monotonic())
        return read(*keys)

    async def main() -> None:
        uuid = await dispatch(Feed())
        monkeypatch.setattr(queue.backend, "read", noting)
        question = asyncio.create_task(await_for(uuid, 60))
        await asyncio.to_thread(wait_for, lambda: len(asked) > 1, "it to be asked")
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        count = len(asked)
        await asyncio.sleep(0.6)
        assert len(asked) <= count + 1
        assert await ajob_status(uuid) is not None

    asyncio.run(main())


go_on = threading.Event()


class Bulks(Queueable):
    """Queues others when it may go on."""

    def handle(self) -> None:
        assert go_on.wait(30)
        bulk([Feed()])


def test_a_job_of_the_sync_connection_goes_on_when_nobody_awaits_it(fresh: Path) -> None:
    manager.use(QueueManager({"root": str(fresh), "default": "sync", "jobs": [__name__]}))
    done: list[str] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(dispatch(Bulks())), 0.1)
        go_on.set()
        await asyncio.to_thread(wait_for, lambda: len(done) == 2, "both to have run", 30)

    with events.kept():
        events.listen(events.JobProcessed)(lambda event: done.append(event.job.name))
        asyncio.run(main())


# -- loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "size"), [*zip(CALLS, SIZES, strict=True)])
def test_a_loop_that_is_closed_loses_nothing(
    queue: Connection, gate: Gate, call: Callable[[], Awaitable[Any]], size: int
) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(_awaited(loop.run_until_complete(_made(call))))
    loop.run_until_complete(gate.is_reached())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.open()
    flush()
    assert queue.size() == size
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio's own report


async def _made(call: Callable[[], Any]) -> Any:
    return call()


@pytest.mark.parametrize("call", CALLS)
def test_nor_the_error_that_comes_after_that(
    queue: Connection,
    gate: Gate,
    lost: list[events.JobDispatchFailed],
    call: Callable[[], Awaitable[Any]],
) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(_awaited(loop.run_until_complete(_made(call))))
    loop.run_until_complete(gate.is_reached())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.open(BackendUnavailable("away"))
    flush()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio's own report
    del task
    flush()
    assert {str(event.error) for event in lost} == {"away"}


def test_loops_in_several_threads_each_hear_of_their_own(queue: Connection) -> None:
    found: list[Any] = []

    async def main(first: int) -> None:
        numbers = range(first, first + 20)
        ids = await asyncio.gather(*(abulk([Feed(number=number)]) for number in numbers))
        await asyncio.gather(*(chain([Feed()]) for _ in range(20)))
        statuses = await asyncio.gather(*(ajob_status(each) for (each,) in ids))
        batches = await asyncio.gather(*(batch([Feed()]) for _ in range(3)))
        found.append((len(statuses), {each.total for each in batches}))

    threads = [threading.Thread(target=asyncio.run, args=(main(n * 100),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [(20, {1})] * 4
    assert queue.size() == 4 * (20 + 20 + 3)


class Leaves(Queueable):
    """Awaits no longer what it has begun."""

    async def handle(self) -> None:
        task = asyncio.create_task(abulk([Feed(number=number) for number in range(3)], "made"))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_job_is_settled_after_what_it_has_left(
    queue: Connection, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    happened: list[str] = []
    apply = queue.backend.apply

    def slow(*steps: Any) -> Any:
        pushes = [each for step in steps for each in step.operations if type(each) is Push]
        if pushes:
            time.sleep(0.2)
            happened.append("pushed")
        return apply(*steps)

    queue.push(Leaves())
    monkeypatch.setattr(queue.backend, "apply", slow)
    with events.kept():
        events.listen(events.JobProcessed)(lambda _event: happened.append("processed"))
        options = WorkerOptions(stop_when_empty=True, memory=0, concurrency=concurrency)
        Worker(manager.default(), options).run()
    assert happened == ["pushed", "processed"]
    assert queue.size("made") == 3


# -- processes ------------------------------------------------------------------------------------


def test_a_child_has_senders_of_its_own(queue: Connection) -> None:
    async def main(count: int) -> None:
        await abulk([Feed() for _ in range(count)])
        await batch([Feed()])
        assert await ajob_status(await dispatch(Feed())) is not None

    asyncio.run(main(2))
    child = os.fork()
    if not child:
        try:
            asyncio.run(asyncio.wait_for(main(3), 20))
        except BaseException:  # noqa: BLE001 (told by the exit code)
            os._exit(1)
        os._exit(0)
    assert _ended(child) == 0
    assert queue.size() == 2 + 1 + 1 + 3 + 1 + 1


def test_a_child_cannot_wait_for_what_its_parent_has_begun(queue: Connection, gate: Gate) -> None:
    async def main() -> int:
        made = dispatch(Feed())
        first = asyncio.create_task(_awaited(made))
        await gate.is_reached()
        child = os.fork()
        if not child:
            signal.alarm(20)  # rather than wait for ever
            os._exit(_refused(made))
        code = await asyncio.to_thread(_ended, child)
        gate.open()
        assert len(await first) == 36
        return code

    assert asyncio.run(main()) == 0
    assert queue.size() == 1


def _refused(made: PendingDispatch) -> int:
    try:
        return len(made.send())
    except InvalidJob as error:
        return 0 if "not to a fork" in str(error) else 1


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


JOBS = """\
import asyncio, os, sys, time
import jobs
from qframe import Queueable, abulk, batch, chain, dispatch, manager

class Mark(Queueable):
    word: str
    def handle(self):
        jobs.note("mark", self.word)

def slow(seconds):
    queue = manager.default().connection()
    apply = queue.backend.apply
    def later(*steps):
        time.sleep(seconds)
        return apply(*steps)
    queue.backend.apply = later
    return queue
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app") as made:
        made.write("marks.py", JOBS)
        yield made


def marks(project: Project) -> list[str]:
    project.drain()
    return sorted(words[1] for words in project.notes("mark"))


MAIN = """\
async def main():
    slow(0.3)
    tasks = [asyncio.create_task(waits(dispatch(Mark(word=f"d{n}")))) for n in range(3)]
    tasks.append(asyncio.create_task(waits(abulk([Mark(word="b1"), Mark(word="b2")]))))
    tasks.append(asyncio.create_task(waits(chain([Mark(word="c1"), Mark(word="c2")]))))
    tasks.append(asyncio.create_task(waits(batch([Mark(word="m1"), Mark(word="m2")]))))
    await asyncio.sleep(0.05)

async def waits(call):
    await call
"""
ALL = ["b1", "b2", "c1", "c2", "d0", "d1", "d2", "m1", "m2"]


def test_the_exit_waits_for_what_is_under_way(project: Project) -> None:
    """`asyncio.run` cancels what still awaits; that takes nothing back."""
    finished = project.python(
        f"from marks import *\n{MAIN}if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    assert (finished.code, finished.err) == (0, "")
    assert marks(project) == ALL


def test_so_it_does_where_a_loop_was_only_stopped(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "async def waits():\n"
        "    await abulk([Mark(word='b1'), Mark(word='b2')])\n"
        "if __name__ == '__main__':\n"
        "    slow(0.5)\n"
        "    loop = asyncio.new_event_loop()\n"
        "    task = loop.create_task(waits())\n"
        "    loop.run_until_complete(asyncio.sleep(0.05))\n"
    )
    assert finished.code == 0, finished
    assert marks(project) == ["b1", "b2"]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_so_does_that_of_a_process_of_multiprocessing(project: Project, how: str) -> None:
    project.write(
        "child.py",
        f"from marks import *\n{MAIN}"
        "def work():\n"
        "    asyncio.run(main())\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing\n"
        f"    process = multiprocessing.get_context('{how}').Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    assert process.exitcode == 0\n",
    )
    finished = project.python("import runpy; runpy.run_path('child.py', run_name='__main__')")
    assert finished.code == 0, finished
    assert marks(project) == ALL


def test_what_fails_at_the_exit_is_told(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "async def main():\n"
        "    queue = slow(0.3)\n"
        "    queue.backend.apply = lambda *_: time.sleep(0.3) or open('/nowhere/at/all')\n"
        "    global tasks\n"
        "    calls = abulk([Mark(word='lost')]), chain([Mark(word='lost')]).adispatch()\n"
        "    tasks = [asyncio.create_task(each) for each in calls]\n"
        "    await asyncio.sleep(0.05)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    assert finished.code == 0
    assert (
        "a bulk of 1 jobs could not be pushed to database:default: FileNotFoundError"
        in finished.err
    )
    assert "of 1 links could not be pushed to database:default: FileNotFoundError" in finished.err


def test_what_does_not_end_at_the_exit_is_told(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "from qframe.dispatch import pusher\n"
        "async def main():\n"
        "    pusher._STUCK = 0.3\n"
        "    slow(60)\n"
        "    task = asyncio.create_task(abulk([Mark(word='stuck')]))\n"
        "    await asyncio.sleep(0.05)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    assert finished.code == 0, finished
    assert "has not been pushed in 0.3 s" in finished.err
    assert (
        "could not be pushed to database:default: BackendUnavailable: it does not end"
        in finished.err
    )
