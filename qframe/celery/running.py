"""The running tasks of this context: `self.request` and `current_task`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class TaskRequest:
    """What a task knows of its call."""

    id: str | None = None
    """The task's id, that of its job."""
    task: str | None = None
    args: list[Any] | tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    retries: int = 0
    """How often it was started before."""
    is_eager: bool = False
    """Whether `apply` called it, in its caller's process."""
    called_directly: bool = True
    hostname: str | None = None
    queue: str | None = None
    delivery_info: dict[str, Any] = field(default_factory=dict)
    expires: float | None = None
    """Epoch seconds."""
    timelimit: tuple[float | None, float | None] = (None, None)
    """The hard and the soft time limit."""
    instance: Any = field(default=None, repr=False)
    entered: bool = field(default=False, repr=False)
    """Whether the task's own code has begun."""
    retry: Any = field(default=None, repr=False)
    """What `retry` has decided."""

    @property
    def correlation_id(self) -> str | None:
        """The id."""
        return self.id

    @property
    def root_id(self) -> str | None:
        """The id."""
        return self.id

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute."""
        return getattr(self, key, default)


_stack: ContextVar[tuple[TaskRequest, ...]] = ContextVar("qframe_celery_requests", default=())


@contextmanager
def running(request: TaskRequest) -> Iterator[None]:
    """Run the body as the call of a task."""
    token = _stack.set((*_stack.get(), request))
    try:
        yield
    finally:
        _stack.reset(token)


def request_of(task: Any) -> TaskRequest:
    """Return the innermost call of a task in this context; outside of one, an empty request."""
    for request in reversed(_stack.get()):
        if request.instance is task:
            return request
    return TaskRequest(task=task.name)


def innermost() -> TaskRequest | None:
    """Return the innermost call of any task."""
    stack = _stack.get()
    return stack[-1] if stack else None


def in_worker() -> bool:
    """Whether this is code of a task that a worker runs."""
    return any(not (each.is_eager or each.called_directly) for each in _stack.get())


class _CurrentTask:
    """Stands for the running task; false outside of one."""

    def _get(self) -> Any:
        request = innermost()
        return None if request is None else request.instance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    def __bool__(self) -> bool:
        return self._get() is not None

    def __eq__(self, other: object) -> bool:
        return other is self._get() or other is self

    def __hash__(self) -> int:
        return hash(self._get())

    def __repr__(self) -> str:
        return repr(self._get())


current_task: Any = _CurrentTask()


def finished(value: Any) -> Any:
    """Return the result of a task, which may be an `async def`."""
    if not inspect.isawaitable(value):
        return value

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())
