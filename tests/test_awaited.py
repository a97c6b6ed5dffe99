"""Dispatches that are awaited: pushed many at a time, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    InvalidPayload,
    JobId,
    PayloadTooLarge,
    Queueable,
    QueueManager,
    dispatch,
    events,
    manager,
)
from qframe.connection import Connection
from qframe.contracts.step import Result, Step

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Feed(Queueable):
    number: int = 0

    def handle(self) -> None: ...


class FeedOnce(Queueable):
    number: int = 0
    unique = True

    def handle(self) -> None: ...


@pytest.fixture
def queue(fresh: Path) -> Connection:
    settings: dict[str, Any] = {
        "root": str(fresh),
        "connections": {"database": {"driver": "database"}},
    }
    manager.use(QueueManager(settings))
    return manager.default().connection("database")


class Applied:
    """Counts what goes to the backend, and has it fail."""

    def __init__(self, queue: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.threads: set[str] = set()
        self.refuses: type[Exception] | None = None
        self.word = b""
        """A message with it is refused, with all that go with it."""
        self._apply = queue.backend.apply
        monkeypatch.setattr(queue.backend, "apply", self)

    def __call__(self, *steps: Step) -> list[Result]:
        self.sizes.append(len(steps))
        self.threads.add(threading.current_thread().name)
        raws = [getattr(each, "raw", b"") for step in steps for each in step.operations]
        if self.refuses is not None and any(self.word in raw for raw in raws):
            raise self.refuses("refused")
        return self._apply(*steps)


@pytest.fixture
def applied(queue: Connection, monkeypatch: pytest.MonkeyPatch) -> Applied:
    return Applied(queue, monkeypatch)


async def all_of(*jobs: Queueable) -> Sequence[str | BaseException]:
    """Dispatch jobs at once; gives ids, and what went wrong."""
    found: list[str | BaseException] = await asyncio.gather(
        *(dispatch(job) for job in jobs), return_exceptions=True
    )
    return found


def test_a_thousand_take_few_exchanges_and_one_thread(queue: Connection, applied: Applied) -> None:
    ids = asyncio.run(all_of(*(Feed(number=number) for number in range(1000))))
    assert len(set(ids)) == 1000
    assert queue.size() == 1000
    assert sum(applied.sizes) == 1000
    assert len(applied.sizes) < 100
    assert applied.threads == {"qframe-sender"}
    jobs = queue.reserve(["default"], 1000)
    assert [job.data_for(Feed)["number"] for job in jobs] == list(range(len(jobs)))


def test_duplicates_have_the_id_of_the_first(queue: Connection) -> None:
    first, *others = asyncio.run(all_of(*(FeedOnce(number=7) for _ in range(5))))
    assert others == [first] * 4
    assert queue.size() == 1


def test_one_that_is_refused_takes_no_other_along(queue: Connection, applied: Applied) -> None:
    applied.refuses, applied.word = InvalidPayload, b'"number":3'
    *ids, last = asyncio.run(all_of(*(Feed(number=number) for number in (0, 1, 2, 4, 5, 3))))
    assert isinstance(last, InvalidPayload)
    assert all(isinstance(each, str) for each in ids)
    assert queue.size() == 5


def test_listeners_see_what_the_coroutine_saw_and_refuse_its_job_alone(queue: Connection) -> None:
    seen: list[str] = []

    def listener(event: events.JobQueueing) -> None:
        seen.append(who.get())
        if event.job.number == 1:
            event.payload["more"] = "x" * queue.max_payload

    async def main() -> Sequence[str | BaseException]:
        who.set("me")
        return await all_of(Feed(number=0), Feed(number=1), Feed(number=2))

    with events.kept():
        events.listen(events.JobQueueing)(listener)
        first, second, third = asyncio.run(main())
    assert seen == ["me"] * 3
    assert isinstance(second, PayloadTooLarge)
    assert {type(first), type(third)} == {JobId}
    assert queue.size() == 2


def test_each_hears_that_the_backend_is_gone(queue: Connection, applied: Applied) -> None:
    applied.refuses = BackendUnavailable
    heard = asyncio.run(all_of(Feed(), Feed(), Feed()))
    assert [type(each) for each in heard] == [BackendUnavailable] * 3
    assert len({id(each) for each in heard}) == 3
    applied.refuses = None
    assert len(asyncio.run(all_of(Feed()))) == 1
    assert queue.size() == 1


def test_loops_of_several_threads_are_told(queue: Connection) -> None:
    found: list[Sequence[str | BaseException]] = []

    def run() -> None:
        found.append(asyncio.run(all_of(*(Feed() for _ in range(50)))))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({each for some in found for each in some}) == 200
    assert queue.size() == 200


def test_one_that_nobody_waits_for_any_more_is_pushed(queue: Connection) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dispatch(Feed()), 0)
        await dispatch(Feed())

    asyncio.run(main())
    assert queue.size() in {1, 2}  # it had begun, or not


def test_a_forked_child_has_a_sender_of_its_own(queue: Connection) -> None:
    asyncio.run(all_of(Feed()))
    child = os.fork()
    if not child:
        try:
            asyncio.run(asyncio.wait_for(all_of(Feed(), Feed()), 20))
        except BaseException:  # noqa: BLE001 (told by the exit code)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.size() == 3
