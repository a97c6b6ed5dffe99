"""What mypy complains of: each marked line, and no other."""

from __future__ import annotations

from qframe import (
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    abulk,
    afind_batch,
    ajob_status,
    await_for,
    bulk,
    dispatch,
    events,
    foreign,
    job_status,
    queueable,
)


class SendWelcome(Queueable):
    user_id: int

    def handle(self) -> None: ...


SendWelcome(user_id="x")  # type: ignore[arg-type]
SendWelcome()  # type: ignore[call-arg]
SendWelcome(7)  # type: ignore[call-arg]
SendWelcome(user_id=7, usr=8)  # type: ignore[call-arg]
print(SendWelcome(user_id=7).user_idd)  # type: ignore[attr-defined]


class WrongOptions(Queueable):
    tries = "x"  # type: ignore[assignment]
    timeout = "60"  # type: ignore[assignment]
    queue = 5  # type: ignore[assignment]
    backoff = "1,5,10"  # type: ignore[assignment]
    delay = None  # type: ignore[assignment]
    fail_on_timeout = "yes"  # type: ignore[assignment]
    retry_until = "tomorrow"  # type: ignore[assignment]
    max_exceptions = 1.5  # type: ignore[assignment]

    def handle(self) -> None: ...


class WrongHooks(Queueable):
    def failed(self) -> None: ...  # type: ignore[override]

    def handle(self) -> None: ...


@queueable(queue="math")
def add(a: int, b: int) -> int:
    return a + b


add.dispatch("x", 2)  # type: ignore[arg-type]
add.dispatch(1)  # type: ignore[call-arg]
add("x", 2)  # type: ignore[arg-type]
queueable(tries="3")  # type: ignore[call-overload]
queueable(tris=3)  # type: ignore[call-overload]

dispatch(SendWelcome)  # type: ignore[arg-type]
dispatch("app.jobs.SendWelcome")  # type: ignore[arg-type]
dispatch(SendWelcome(user_id=7)).delay("10")  # type: ignore[arg-type]
dispatch(SendWelcome(user_id=7)).on_queue(5)  # type: ignore[arg-type]
dispatch(SendWelcome(user_id=7)).on_que("high")  # type: ignore[attr-defined]

foreign("App\\Import", {}, tris=3)  # type: ignore[call-arg]
foreign("App\\Import", {}, tries="3")  # type: ignore[arg-type]
foreign(7)  # type: ignore[arg-type]

Worker(QueueManager(), WorkerOptions(tris=5))  # type: ignore[call-arg]
WorkerOptions(tries="5")  # type: ignore[arg-type]


async def ask(id_: str) -> None:
    print((await ajob_status(id_)).state)  # type: ignore[union-attr]
    print((await afind_batch(id_)).total)  # type: ignore[union-attr]
    print((await await_for(id_, 60)).stat)  # type: ignore[attr-defined]
    numbers: list[int] = await abulk([SendWelcome(user_id=7)])  # type: ignore[assignment]
    print(numbers, job_status(id_).stat)  # type: ignore[union-attr]
    await bulk([SendWelcome(user_id=7)])  # type: ignore[misc]


@events.listen(events.JobFailed)  # type: ignore[arg-type]
def tell(event: events.JobQueued) -> None: ...
