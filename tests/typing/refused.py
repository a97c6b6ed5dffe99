"""What type checkers complain of: each marked line, and no other (test_typing.py).

Each mark is for all three, but for those it names with a reason, which do not find it.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated

from qframe import (
    INJECTED,
    Flow,
    JobId,
    PendingDispatch,
    Queueable,
    QueueManager,
    Resource,
    Worker,
    WorkerOptions,
    abulk,
    afind_batch,
    ajob_status,
    await_for,
    bulk,
    dispatch,
    dispatch_sync,
    events,
    foreign,
    job_status,
    queueable,
    wait_for,
)
from qframe.fastapi import JobsOfRequest
from qframe.testing import override_resource, run


class SendWelcome(Queueable):
    user_id: int

    def handle(self) -> None: ...


SendWelcome(user_id="x")  # error
SendWelcome()  # error
SendWelcome(7)  # error
SendWelcome(user_id=7, usr=8)  # error
print(SendWelcome(user_id=7).user_idd)  # error


class Total(Queueable):
    prices: list[Decimal]

    async def handle(self) -> Decimal:
        return sum(self.prices, Decimal(0))


SendWelcome.dispatch(user_id="x")  # error
SendWelcome.dispatch()  # error
SendWelcome.dispatch(7)  # error
SendWelcome.dispatch(user_id=7, usr=8)  # error
SendWelcome.dispatch(user_id=7).on_que("high")  # error
SendWelcome.dispatch(user_id=7).delay("10")  # error
SendWelcome.dispatch_sync(user_id=None)  # error
SendWelcome.dispatch_sync(usr=7)  # error
SendWelcome.dispatch_if(True)  # error
SendWelcome.dispatch_if(True, user_id="x")  # error
SendWelcome.dispatch_unless(False, user=7)  # error
Total.dispatch(prices=[1.5])  # error
Total.dispatch_if(True, prices=Decimal(1))  # error
print(SendWelcome.dispatch_if(True, user_id=7).send())  # error


def results(id_: str) -> None:
    number: int = wait_for(Total.dispatch(prices=[]).send(), 5).result  # error
    nothing: str = wait_for(SendWelcome.dispatch(user_id=7).send(), 5).result  # error
    maybe: Decimal = job_status(dispatch(Total(prices=[])).send()).result  # error
    wrong: JobId[int] = Total.dispatch(prices=[]).send()  # error
    text: JobId[int] = id_  # error
    sync: int = Total.dispatch_sync(prices=[])  # error
    also: int = dispatch_sync(Total(prices=[]))  # error
    ran: int = run(Total(prices=[])).result  # error
    pushed: JobId[int] = QueueManager().connection().push(Total(prices=[]))  # error
    added: JobId[str] = add.dispatch(1, 2).send()  # error
    other: PendingDispatch[int] = later.dispatch(1)  # error
    many: list[JobId[int]] = bulk([Total(prices=[])])  # error (not mypy: may be of any class)
    first: int = wait_for(bulk([Total(prices=[])])[0], 5).result  # error
    print(many, first)
    print(number, nothing, maybe, wrong, text, sync, also, ran, pushed, added, other)


def graph(flow: Flow) -> None:
    total = flow.add(Total(prices=[]))
    flow.add(SendWelcome(user_id=total.result))  # error
    flow.add(SendWelcome(user_id=flow.add(add.job(1, 2), on_failure="continue").result))  # error
    flow.map(SendWelcome, over=total.result)  # error
    flow.add(SendWelcome)  # error (not ty: takes a class for a job)
    flow.add(SendWelcome(user_id=7), on_failur="block")  # error


def with_a_request(jobs: JobsOfRequest) -> None:
    jobs.add_task(SendWelcome, user_id="x")  # error
    jobs.add_task(SendWelcome)  # error
    jobs.add_task(add, "x", 2)  # error
    jobs.add_task(later)  # error
    jobs.add_task(results, "x")  # error
    jobs.add_task(SendWelcome(user_id=7), 8)  # error


class WrongOptions(Queueable):
    tries = "x"  # error
    timeout = "60"  # error
    queue = 5  # error
    backoff = "1,5,10"  # error (not pyright, ty: an option that may be a method is free)
    delay = None  # error
    fail_on_timeout = "yes"  # error
    retry_until = "tomorrow"  # error (not pyright, ty: an option that may be a method is free)
    max_exceptions = 1.5  # error

    def handle(self) -> None: ...


class WrongMethods(Queueable):
    def backoff(self) -> str:  # error (not pyright: as above)
        return "1,5,10"

    def retry_until(self) -> str:  # error (not pyright: as above)
        return "tomorrow"

    def tags(self) -> list[int]:  # error (not pyright: as above)
        return [1]

    def display_name(self) -> date:  # error (not pyright: as above)
        return date.min

    def handle(self) -> None: ...


class WrongHooks(Queueable):
    def failed(self) -> None: ...  # error

    def handle(self) -> None: ...


@queueable(queue="math")
def add(a: int, b: int) -> int:
    return a + b


@queueable
async def later(a: int) -> str:
    return str(a)


later.dispatch("x")  # error
add.dispatch("x", 2)  # error
add.dispatch(1)  # error
add("x", 2)  # error
queueable(tries="3")  # error
queueable(tris=3)  # error (not ty: takes any key of an unpacked TypedDict)

dispatch(SendWelcome)  # error (not ty: takes a class for a job)
dispatch("app.jobs.SendWelcome")  # error
dispatch(SendWelcome(user_id=7)).delay("10")  # error
dispatch(SendWelcome(user_id=7)).on_queue(5)  # error
dispatch(SendWelcome(user_id=7)).on_que("high")  # error

foreign("App\\Import", {}, tris=3)  # error (not ty: takes any key of an unpacked TypedDict)
foreign("App\\Import", {}, tries="3")  # error
foreign(7)  # error

Worker(QueueManager(), WorkerOptions(tris=5))  # error
WorkerOptions(tries="5")  # error


async def ask(id_: str) -> None:
    print((await ajob_status(id_)).state)  # error
    print((await afind_batch(id_)).total)  # error
    print((await await_for(id_, 60)).stat)  # error
    numbers: list[int] = await abulk([SendWelcome(user_id=7)])  # error
    print(numbers, job_status(id_).stat)  # error
    await bulk([SendWelcome(user_id=7)])  # error


@events.listen(events.JobFailed)  # error
def tell(event: events.JobQueued) -> None: ...


class Pool: ...


class Report(Queueable):
    text: str

    def handle(self, pool: Annotated[Pool, Resource(Pool)]) -> int:
        return pool.query(self.text)  # error


@queueable
def report(text: str, pool: Annotated[Pool, Resource(Pool)] = INJECTED) -> int:
    return len(text)


@queueable
def without_default(text: str, pool: Annotated[Pool, Resource(Pool)]) -> int:
    return len(text)


Report.dispatch(text="x", pool=Pool())  # error
Report.dispatch(text=1)  # error
Report(text="x").handle()  # error
Report(text="x").handle("pool")  # error
report.dispatch(1)  # error
report("x", pool="pool")  # error
without_default.dispatch("x")  # error
Resource("app.pool:make_pool")  # error
override_resource(Pool, Pool())  # error
