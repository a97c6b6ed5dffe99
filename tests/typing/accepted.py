"""What a user may write without a complaint of any type checker, and what it is to them.

`# shown: ...` is what an editor shows of the name, to each of them (test_typing.py).
"""

# pyright: strict

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, assert_type, reveal_type

from pydantic import BaseModel, Field, field_validator

from qframe import (
    INJECTED,
    Batch,
    Cancelling,
    Chunk,
    Exponential,
    Flow,
    JobId,
    JobStatus,
    PendingDispatch,
    Queueable,
    QueueManager,
    Resource,
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
    dispatch_sync,
    dispatch_unless,
    events,
    find_batch,
    foreign,
    job_status,
    queueable,
    wait_for,
)
from qframe.fastapi import JobsOfRequest
from qframe.middleware import RateLimited
from qframe.testing import override_resource, run


class SendWelcome(Queueable):
    user_id: int
    note: str = ""
    tries_left: list[int] = Field(default_factory=list[int])
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
    shop: int

    def backoff(self) -> Sequence[float]:
        return [1, 5]

    def unique_id(self) -> int:
        return self.shop

    def group(self) -> str:
        return f"shop:{self.shop}"

    def middleware(self) -> list[Any]:
        return [RateLimited("5/m", name="shop")]

    def handle(self) -> None: ...


class WithClassVars(Queueable):
    tags: ClassVar[list[str]] = ["mail"]
    backoff: ClassVar[list[int]] = [1, 5]
    unique_id: ClassVar[str] = "one"

    def handle(self) -> None: ...


class Inherits(SendWelcome):
    more: str = "x"

    tries = 7


@queueable(queue="math", tries=3, backoff=[1, 5], delay=timedelta(seconds=1), priority=0)
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
    assert_type(dispatch(SendWelcome(user_id=7)), PendingDispatch[None])
    assert_type(dispatch(SendWelcome(user_id=7, note="x")).send(), JobId[None])
    assert_type(dispatch(Inherits(user_id=7, more="y")).id, JobId[None])
    assert_type(await dispatch(WithMethods(user_id=7)), JobId[int])
    text: str = await dispatch(WithMethods(user_id=7))
    bare: PendingDispatch = dispatch(WithMethods(user_id=7))
    assert_type(bare.send(), JobId[Any])
    assert text
    dispatch(SendWelcome(user_id=7)).on_connection("redis").on_queue("high").delay(10)
    SendWelcome.dispatch(user_id=7).delay(timedelta(minutes=5))
    assert_type(add(1, 2), int)
    assert_type(add.dispatch(1, b=2), PendingDispatch[int])
    assert_type(later.dispatch(1), PendingDispatch[str])
    assert_type(await later(1), str)
    assert_type(await abulk([SendWelcome(user_id=1), SendWelcome(user_id=2)]), list[JobId[None]])
    mixed: list[JobId] = await abulk([SendWelcome(user_id=1), WithMethods(user_id=2)])
    assert mixed
    assert_type(dispatch_if(True, SendWelcome(user_id=1)), PendingDispatch[None] | None)
    assert_type(dispatch_unless(True, WithMethods(user_id=1)), PendingDispatch[int] | None)
    theirs = foreign("App\\Import@handle", {"id": 7}, tries=3, backoff=(1, 5), queue="php")
    assert_type(dispatch(theirs).delay(10).send(), JobId[Any])
    with_theirs: list[JobId] = await abulk([SendWelcome(user_id=1), theirs, foreign("App\\Tidy")])
    assert_type(await abulk([theirs, WithMethods(user_id=2)]), list[JobId[Any]])
    assert with_theirs
    manager = QueueManager({"default": "null"})
    queue = manager.connection("redis")
    assert_type(queue.push(WithMethods(user_id=7), "high"), JobId[int])
    assert_type(queue.later(10, add.job(1, 2)), JobId[int])
    assert_type(queue.push(theirs), JobId[Any])
    assert_type(queue.bulk([WithMethods(user_id=7)]), list[JobId[int]])
    assert_type(queue.bulk([theirs]), list[JobId[Any]])
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
    assert_type(await await_for(id_, 60), JobStatus[Any])
    assert_type(await acancel(id_), Cancelling)
    found = await afind_batch(id_)
    assert found is None or found.total
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(await_for(id_, 60)), asyncio.Task[JobStatus[Any]])
    tracked = await WithMethods.dispatch(user_id=7).track()
    ids, ended = await asyncio.gather(abulk([SendWelcome(user_id=7)]), await_for(tracked, 60))
    assert_type(ids, list[JobId[None]])
    assert_type(ended, JobStatus[int])
    return await ajob_status(id_)


def block(id_: str) -> JobStatus | None:
    assert_type(bulk([SendWelcome(user_id=7)]), list[JobId[None]])
    assert_type(bulk([SendWelcome(user_id=7)], spread=timedelta(hours=1)), list[JobId[None]])
    assert_type(bulk(WithMethods(user_id=each) for each in range(3)), list[JobId[int]])
    assert_type(wait_for(bulk([later.job(1), later.job(2)])[0], 5).result, str)
    assert_type(chain([SendWelcome(user_id=7)]).dispatch(), str)
    made = batch([SendWelcome(user_id=7)]).dispatch()
    assert_type(made, Batch)
    assert_type(made.add(SendWelcome(user_id=8)), Batch)
    assert_type(made.cancel(), bool)
    assert_type(made.fresh().failed_jobs, list[str])
    assert_type(wait_for(id_, 60), JobStatus[Any])
    assert_type(cancel(id_), Cancelling)
    assert_type(find_batch(id_), Batch | None)
    return job_status(id_)


@events.listen(events.JobFailed)
def tell(event: events.JobFailed) -> None:
    assert_type(event.error, BaseException)
    assert_type(event.job.uuid, str)


# -- what it returns, from the call to the result -------------------------------------------------


class Invoice(BaseModel):
    total: Decimal


class MakeInvoice(Queueable):
    order: int
    discount: Decimal = Decimal(0)

    async def handle(self) -> Invoice:
        return Invoice(total=self.discount)


class Mail(Queueable):
    invoice: Invoice
    copies: int | None = None

    def handle(self, connection: str) -> bool:  # a parameter that something else gives it
        return bool(connection)


class Numbers(Queueable):
    def handle(self) -> list[int]:
        return [1]


reveal_type(MakeInvoice.dispatch)  # shown: order: int | Decimal | PendingDispatch[Invoice]
reveal_type(MakeInvoice.dispatch_sync)  # shown: order: int | discount: Decimal | -> Invoice
reveal_type(Mail.dispatch_if)  # shown: object | invoice: Invoice | PendingDispatch[bool] | None
reveal_type(add.dispatch)  # shown: a: int | b: int | PendingDispatch[int]
reveal_type(later.dispatch)  # shown: a: int | PendingDispatch[str]
reveal_type(SendWelcome(user_id=7).tags)  # shown: tuple


async def results() -> None:
    pending = MakeInvoice.dispatch(order=7, discount=Decimal(1)).on_queue("high").delay(10).track()
    assert_type(pending, PendingDispatch[Invoice])
    assert_type(pending.send(), JobId[Invoice])
    assert_type(pending.id, JobId[Invoice])
    assert_type(await pending, JobId[Invoice])
    assert_type((await await_for(pending.send(), 5)).result, Invoice)
    found = await ajob_status(await pending)
    assert_type(found, JobStatus[Invoice] | None)
    assert_type(wait_for(later.dispatch(1).send(), 5).result, str)
    assert_type(wait_for(dispatch(add.job(1)).send(), 5).result, int)
    assert_type(wait_for(str(pending.id), 5).result, Any)
    assert_type(Mail.dispatch(invoice=Invoice(total=Decimal(1))).send(), JobId[bool])
    assert_type(MakeInvoice.dispatch_if(found, order=7), PendingDispatch[Invoice] | None)
    assert_type(MakeInvoice.dispatch_unless(found, order=7), PendingDispatch[Invoice] | None)
    assert_type(MakeInvoice.dispatch_sync(order=7), Invoice)
    assert_type(dispatch_sync(MakeInvoice(order=7)), Invoice)
    assert_type(dispatch_sync(add.job(1)), int)
    assert_type(run(MakeInvoice(order=7)).result, Invoice)
    assert_type(run(later.job(1)).result, str)


def graph() -> None:
    flow = Flow("order 7")
    invoice, numbers = flow.add(MakeInvoice(order=7)), flow.add(Numbers(), on_failure="cancel")
    assert_type(invoice.result, Invoice)
    flow.add(Mail(invoice=invoice.result), after=[numbers])
    count = flow.add(add.job(1), after=[invoice], on_failure="continue")
    assert_type(count.result, int | None)
    flow.add(Mail(invoice=invoice.result, copies=count.result))
    made = flow.map(MakeInvoice, over=numbers.result, discount=Decimal(1))
    assert_type(made.result, list[Invoice])
    some = flow.map(MakeInvoice, over=numbers.result, on_failure="continue")
    assert_type(some.result, list[Invoice | None])
    assert_type(flow.map(later, over=[count.result]).result, list[str])
    assert_type(flow.add([Numbers(), Numbers()]).result, Any)
    assert_type(flow.add(chain([Numbers()])).result, Any)
    flow.add(batch([Numbers()]), after=[made])


# -- a class that is in a variable ----------------------------------------------------------------


class OfShop(Queueable):
    shop: int

    @classmethod
    def start(cls, shop: int) -> str:
        return cls.dispatch(shop=shop).send()

    def again(self) -> str:
        type(self).dispatch_if(self.shop, shop=self.shop)
        return self.dispatch(shop=1).send()

    def handle(self) -> int:
        return self.shop


def any_class(job: type[Queueable], fields: dict[str, Any]) -> str:
    job.dispatch_sync(**fields)
    return job.dispatch(**fields).on_queue("high").send()


def any_of_them(job: type[OfShop]) -> str:
    assert_type(job.dispatch_unless(False, shop=7), PendingDispatch[int] | None)
    return OfShop(shop=7).dispatch(shop=8).send()


async def with_a_request(jobs: JobsOfRequest, job: type[OfShop]) -> None:
    jobs.add_task(OfShop, shop=7)
    jobs.add_task(add, 1, b=2)
    jobs.add_task(later, 1)
    jobs.add_task(OfShop(shop=7))
    jobs.add_task(add.job(1))
    jobs.add_task(foreign("App\\Import"))
    jobs.add_task(job, shop=7)


def any_jobs(jobs: list[Queueable]) -> list[JobId]:
    return [dispatch(job).send() for job in jobs]


class Pool:
    def query(self, text: str) -> int:
        return len(text)


@asynccontextmanager
async def make_pool() -> AsyncGenerator[Pool]:
    yield Pool()


class Report(Queueable):
    text: str

    async def handle(self, pool: Annotated[Pool, Resource(make_pool)]) -> int:
        return pool.query(self.text)


class ReportByName(Queueable):
    text: str

    def handle(self, *, pool: Annotated[Pool, Resource(Pool)], more: int = 1) -> str:
        return self.text * pool.query(self.text) * more


class ManyReports(Queueable):
    text: str
    chunk = Chunk(100)

    @classmethod
    async def handle_many(
        cls, jobs: Sequence[ManyReports], pool: Annotated[Pool, Resource(make_pool)]
    ) -> list[int]:
        return [pool.query(job.text) for job in jobs]


@queueable
async def report(text: str, pool: Annotated[Pool, Resource(make_pool)] = INJECTED) -> int:
    return pool.query(text)


async def with_resources() -> None:
    assert_type(Report.dispatch_sync(text="x"), int)
    assert_type(Report.dispatch(text="x"), PendingDispatch[int])
    assert_type(ReportByName.dispatch_sync(text="x"), str)
    assert_type(report.dispatch("x"), PendingDispatch[int])
    assert_type(await report("x"), int)
    assert_type(await report("x", pool=Pool()), int)
    assert_type(await Report(text="x").handle(Pool()), int)
    assert_type(ReportByName(text="x").handle(pool=Pool()), str)
    with override_resource(make_pool, Pool):
        assert_type(run(report.job("x")).result, int)
    ManyReports.dispatch(text="x")
