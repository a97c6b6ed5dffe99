"""What a user may write without a complaint of mypy in strict mode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, assert_type

from pydantic import Field, field_validator

from qframe import (
    Batch,
    Cancelling,
    Exponential,
    JobStatus,
    PendingDispatch,
    Queueable,
    QueueManager,
    RetryLater,
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
    dispatch_if,
    dispatch_unless,
    events,
    find_batch,
    foreign,
    job_status,
    queueable,
    wait_for,
)


class SendWelcome(Queueable):
    user_id: int
    note: str = ""
    tries_left: list[int] = Field(default_factory=list)
    limit: ClassVar[int] = 5

    connection = "redis"
    queue = "emails"
    delay = 10
    tries = 5
    max_exceptions = 3
    backoff = (1, 5, 10)
    timeout = 60
    fail_on_timeout = True
    retry_until = timedelta(hours=1)
    expires = datetime(2030, 1, 1, tzinfo=UTC)
    job_name = "App\\Jobs\\SendWelcome"
    display_name = "welcome"
    tags = ("mail",)

    @field_validator("note")
    @classmethod
    def strip(cls, value: str) -> str:
        return value.strip()

    def set_up(self) -> None: ...

    def handle(self) -> None:
        assert_type(self.user_id, int)
        assert_type(self.attempts, int)
        self.release(timedelta(seconds=5))
        self.fail("no use")
        self.fail(ValueError())
        self.delete()

    def tear_down(self) -> None: ...

    def succeeded(self) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class WithMethods(Queueable):
    user_id: int

    tries = None

    def backoff(self, attempt: int, error: BaseException) -> float:
        return 2.0**attempt

    def retry_until(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=1)

    def display_name(self) -> str:
        return f"for {self.user_id}"

    def tags(self) -> list[str]:
        return [f"user:{self.user_id}"]

    async def handle(self) -> int:
        return self.user_id

    async def failed(self, error: BaseException) -> None: ...


class ShortBackoff(Queueable):
    def backoff(self) -> Sequence[float]:
        return [1, 5]

    def handle(self) -> None: ...


class Inherits(SendWelcome):
    more: str = "x"

    tries = 7


@queueable(queue="math", tries=3, backoff=[1, 5], delay=timedelta(seconds=1))
def add(a: int, b: int = 2) -> int:
    return a + b


@queueable(backoff=Exponential(1, most=timedelta(minutes=10)))
def multiply(a: int, b: int) -> int:
    return a * b


class Growing(Queueable):
    def backoff(self, attempt: int, error: BaseException) -> float | Exponential:
        return error.retry_after if isinstance(error, RetryLater) else Exponential(1)

    def handle(self) -> None:
        raise RetryLater(timedelta(minutes=1), "not now") from OSError()


@queueable
async def later(a: int) -> str:
    return str(a)


async def use() -> None:
    assert_type(dispatch(SendWelcome(user_id=7)), PendingDispatch)
    assert_type(dispatch(SendWelcome(user_id=7, note="x")).send(), str)
    assert_type(dispatch(Inherits(user_id=7, more="y")).id, str)
    assert_type(await dispatch(WithMethods(user_id=7)), str)
    dispatch(SendWelcome(user_id=7)).on_connection("redis").on_queue("high").delay(10)
    SendWelcome.dispatch(user_id=7).delay(timedelta(minutes=5))
    assert_type(add(1, 2), int)
    assert_type(add.dispatch(1, b=2), PendingDispatch)
    assert_type(await later(1), str)
    assert_type(await abulk([SendWelcome(user_id=1), WithMethods(user_id=2)]), list[str])
    assert_type(dispatch_if(True, SendWelcome(user_id=1)), PendingDispatch | None)
    assert_type(dispatch_unless(True, SendWelcome(user_id=1)), PendingDispatch | None)
    theirs = foreign("App\\Import@handle", {"id": 7}, tries=3, backoff=(1, 5), queue="php")
    assert_type(dispatch(theirs).delay(10).send(), str)
    assert_type(await abulk([SendWelcome(user_id=1), theirs, foreign("App\\Tidy")]), list[str])
    manager = QueueManager({"default": "null"})
    assert_type(manager.connection("redis").push(SendWelcome(user_id=7), "high"), str)
    assert_type(Worker(manager, WorkerOptions(tries=5)).run(), int)


async def ask(id_: str) -> JobStatus | None:
    assert_type(await chain([SendWelcome(user_id=7)]).adispatch(), str)
    assert_type(await chain([SendWelcome(user_id=7)]), str)
    made = await batch([SendWelcome(user_id=7)]).name("x").adispatch()
    assert_type(made, Batch)
    assert_type(await batch([SendWelcome(user_id=7)]), Batch)
    assert_type(await made.afresh(), Batch)
    assert_type(await made.aadd(SendWelcome(user_id=8)), Batch)
    assert_type(await made.acancel(), bool)
    assert_type(await made.afailed_jobs(), list[str])
    assert_type(await await_for(id_, 60), JobStatus)
    assert_type(await acancel(id_), Cancelling)
    found = await afind_batch(id_)
    assert found is None or found.total
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(await_for(id_, 60)), asyncio.Task[JobStatus])
    ids, ended = await asyncio.gather(abulk([SendWelcome(user_id=7)]), await_for(id_, 60))
    assert_type(ids, list[str])
    assert_type(ended, JobStatus)
    return await ajob_status(id_)


def block(id_: str) -> JobStatus | None:
    assert_type(bulk([SendWelcome(user_id=7)]), list[str])
    assert_type(chain([SendWelcome(user_id=7)]).dispatch(), str)
    made = batch([SendWelcome(user_id=7)]).dispatch()
    assert_type(made, Batch)
    assert_type(made.add(SendWelcome(user_id=8)), Batch)
    assert_type(made.cancel(), bool)
    assert_type(made.fresh().failed_jobs, list[str])
    assert_type(wait_for(id_, 60), JobStatus)
    assert_type(cancel(id_), Cancelling)
    assert_type(find_batch(id_), Batch | None)
    return job_status(id_)


@events.listen(events.JobFailed)
def tell(event: events.JobFailed) -> None:
    assert_type(event.error, BaseException)
    assert_type(event.job.uuid, str)
