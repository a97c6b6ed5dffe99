"""Tasks for the tests of qframe.celery."""

from __future__ import annotations

from typing import Annotated, Any

from qframe import Resource
from qframe.celery import Celery, Task, current_task, shared_task
from qframe.celery.exceptions import Ignore, Reject

app = Celery("tasks")
seen: list[Any] = []
"""What tasks noted, in order."""


@app.task
def add(x: int, y: int, z: int = 0) -> int:
    return x + y + z


@shared_task
def mul(x: int, y: int) -> int:
    return x * y


@app.task
def xsum(numbers: list[Any]) -> int:
    return sum(sum(each) if isinstance(each, list) else each for each in numbers)


def make_pool() -> str:
    return "a pool"


@app.task(bind=True)
def with_pool(self: Any, x: int, *, pool: Annotated[str, Resource(make_pool)]) -> Any:
    return self.request.retries, x, pool


@app.task
def identity(value: Any) -> Any:
    return value


@app.task
def note(*given: Any, **named: Any) -> None:
    seen.append((given, named) if named else given)


@app.task
def fail(message: str = "it broke") -> None:
    raise ValueError(message)


class OwnError(Exception):
    """An exception of this module."""


@app.task
def fail_in_its_own_way(*_: Any) -> None:
    raise OwnError("one of ours")


@app.task(bind=True)
def request(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    seen.append(self.request)
    assert current_task == self
    return {"id": self.request.id, "retries": self.request.retries, "name": current_task.name}


@app.task(bind=True, default_retry_delay=0)
def retried(self: Any, until: int, **options: Any) -> int:
    seen.append(self.request.retries)
    if self.request.retries < until:
        try:
            raise KeyError("not yet")
        except KeyError as error:
            raise self.retry(exc=error, countdown=0, **options) from error
    return int(self.request.retries)


@app.task(bind=True, max_retries=2)
def retried_without_reason(self: Any) -> None:
    raise self.retry(countdown=0)


@app.task(autoretry_for=(KeyError,), dont_autoretry_for=(), retry_kwargs={"countdown": 0})
def automatic(kind: str, until: int = 99) -> int:
    count = int(current_task.request.retries)
    seen.append(count)
    if count < until:
        raise {"key": KeyError, "value": ValueError}[kind]("as asked")
    return count


@app.task(
    autoretry_for=(KeyError,),
    retry_backoff=3,
    retry_backoff_max=10,
    retry_jitter=False,
    max_retries=5,
)
def backing_off() -> None:
    raise KeyError("later")


@app.task(bind=True)
def ignored(self: Any) -> None:
    raise Ignore("not this time")


@app.task(bind=True)
def rejected(self: Any, requeue: bool) -> str:
    if not self.request.delivery_info["redelivered"]:
        raise Reject("no", requeue=requeue)
    return "then yes"


@app.task(ignore_result=True)
def forgotten() -> str:
    return "nobody asks"


class Hooked(Task):
    """A base class with all hooks."""

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        seen.append(("before_start", args))

    def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
        seen.append(("on_success", retval))

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(("on_retry", repr(exc)))

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(("on_failure", repr(exc), "ValueError" in str(einfo)))

    def after_return(
        self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        seen.append(("after_return", status))


@app.task(base=Hooked, bind=True, default_retry_delay=0)
def hooked(self: Any, how: str) -> str:
    if how == "retry" and not self.request.retries:
        raise self.retry(exc=KeyError("again"), countdown=0)
    if how == "fail":
        raise ValueError("hooked")
    return how


class Calling(Task):
    """A base class with a `__call__` of its own, as for Flask's application context."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seen.append("context")
        return super().__call__(*args, **kwargs)


@app.task(base=Calling, bind=True)
def called(self: Any) -> bool:
    return bool(self.request.called_directly)


class Counter(Task):
    """A task that is a class."""

    name = "tasks.counter"

    def run(self, by: int) -> int:
        return by + 1


counter = app.register_task(Counter())


@app.task(name="elsewhere.named")
def named() -> str:
    return "by its name"


@app.task
async def on_a_loop(x: int) -> int:
    return x + 1


@app.task
def errback(request: Any, exc: Any, traceback: Any) -> None:
    seen.append((request.id, repr(exc)))


@app.task
def old_errback(task_id: str) -> None:
    seen.append(task_id)


@app.task(soft_time_limit=30, time_limit=60, priority=3, queue="slow")
def limited() -> None: ...
