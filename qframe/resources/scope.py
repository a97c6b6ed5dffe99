"""ResourceScope: the resources of one worker or call, each made once, and closed in reverse.

Those without `async` are made in a thread and shared by all; the others live on an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent import futures
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any

from qframe import forks
from qframe.exceptions import Interruption, JobDefinitionError
from qframe.resources import plans
from qframe.resources.declared import Factory, Need
from qframe.resources.plans import ResourcePlan

log = logging.getLogger("qframe")

RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end on the event loop of the jobs."""
Closing = Callable[[str, Callable[[], object]], None]
"""Calls what closes the thing of this name, and ends it if that takes too long."""

_LOOK_EVERY = 0.1
"""Seconds between looks of a thread that waits for another's resource: what ends it comes then."""


def just_closed(_: str, act: Callable[[], object]) -> None:
    """Close something, however long that takes."""
    act()


class ResourceScope:
    """Makes resources when they are first needed, and closes them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._context = contextvars.copy_context()
        """What a resource is made in: it must not belong to the job that asks first."""
        self._lock = forks.lock()
        self._in_threads: dict[Factory, _ThreadResource] = {}
        self._on_loops: dict[tuple[Factory, asyncio.AbstractEventLoop], _LoopResource] = {}
        self._made: list[_ThreadResource | _LoopResource] = []
        self._is_closed = False
        forks.in_child_of(self, ResourceScope._keep_of_parent)

    @property
    def is_open(self) -> bool:
        """Whether it is this process's own, and gives resources."""
        return self._pid == os.getpid() and not self._is_closed

    # -- for a call in a thread -------------------------------------------------------------------

    def values(self, needs: Sequence[Need]) -> dict[str, Any]:
        """Return resources by the names of their parameters. Raises what a factory raises."""
        return {each.name: self._value(plans.current(each.factory)) for each in needs}

    def _value(self, plan: ResourcePlan) -> Any:  # noqa: ANN401 (a resource)
        if plans.is_for_loop(plan):
            raise JobDefinitionError(
                f"{plan.name} is async, and what it makes lives on the event loop: a handler "
                "without async cannot have it"
            )
        while True:
            wanted, is_new = self._in_thread(plan)
            if is_new:
                self._make(wanted)
            while not wanted.over.done():
                futures.wait([wanted.over], _LOOK_EVERY)
            if not wanted.was_interrupted or is_new:
                return wanted.result()

    def _in_thread(self, plan: ResourcePlan) -> tuple[_ThreadResource, bool]:
        with self._lock:
            found = self._in_threads.get(plan.factory)
            if found is not None:
                return found, False
            made = self._in_threads[plan.factory] = _ThreadResource(plan)
            return made, True

    def _make(self, wanted: _ThreadResource) -> None:
        plan = wanted.plan
        try:
            given = self.values(plan.needs)
            wanted.value = self._context.copy().run(plan.made, wanted.stack, given)
            with self._lock:
                is_late = self._is_closed
                if not is_late:
                    self._made.append(wanted)
        except BaseException as error:  # noqa: BLE001 (raised where it is asked for)
            plan.told(error)
            wanted.error, is_late = error, False
            with self._lock:
                del self._in_threads[plan.factory]
        wanted.over.set_result(None)
        if is_late:  # the others are closed by who closes the scope
            wanted.close()

    # -- for a call on an event loop --------------------------------------------------------------

    async def values_on_loop(self, needs: Sequence[Need]) -> dict[str, Any]:
        """As `values`, on the running event loop, which goes on meanwhile."""
        return {each.name: await self._awaited(plans.current(each.factory)) for each in needs}

    async def _awaited(self, plan: ResourcePlan) -> Any:  # noqa: ANN401 (a resource)
        if not plans.is_for_loop(plan):
            return await self._from_thread(plan)
        key = plan.factory, asyncio.get_running_loop()
        while True:
            wanted = self._on_loops.get(key)
            if wanted is None:
                wanted = self._on_loops[key] = _LoopResource(self, plan)
            if await wanted.is_over():
                return wanted.result()

    async def _from_thread(self, plan: ResourcePlan) -> Any:  # noqa: ANN401 (a resource)
        """Return one that is made in a thread, since its factory may block."""
        wanted, is_new = self._in_thread(plan)
        if is_new:
            threading.Thread(
                target=self._make, args=(wanted,), name=f"qframe-{plan.name}", daemon=True
            ).start()
        while not wanted.over.done():
            await asyncio.wait([asyncio.wrap_future(wanted.over)])
        if wanted.was_interrupted and not is_new:
            return await self._from_thread(plan)
        return wanted.result()

    async def live(self, wanted: _LoopResource) -> None:
        """Make a resource of the running event loop, keep it, and close it; a task of its own."""
        plan = wanted.plan
        try:
            given = await self.values_on_loop(plan.needs)
            async with AsyncExitStack() as stack:
                wanted.value = await plan.made_on_loop(stack, given)
                self._made.append(wanted)
                wanted.over.set_result(None)
                await wanted.until_closed(self._made)
        except BaseException as error:
            if wanted.over.done():
                wanted.failed_to_close(error)
            else:
                plan.told(error)
                wanted.error = error
                wanted.over.set_result(None)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self.forget(wanted)
            if wanted in self._made:
                self._made.remove(wanted)

    def forget(self, wanted: _LoopResource) -> None:
        """Have it made anew for the next job that needs it."""
        key = wanted.plan.factory, wanted.loop
        if self._on_loops.get(key) is wanted:
            del self._on_loops[key]

    # -- the end ----------------------------------------------------------------------------------

    def close(self, run: RunOnLoop | None = None, closing: Closing = just_closed) -> None:
        """Close all, the last first; `run` runs the loop of those that live on one.

        What they raise is logged. `closing` bounds the closing of each.
        """
        for each in self._last_first():
            closing(f"the resource {each.plan.name}", partial(_close, each, run))

    async def close_on_loop(self) -> None:
        """As `close`, on the running event loop."""
        for each in self._last_first():
            if isinstance(each, _LoopResource):
                await each.end()
            else:
                await asyncio.to_thread(each.close)

    def _last_first(self) -> Iterator[_ThreadResource | _LoopResource]:
        while self._pid == os.getpid():
            with self._lock:
                self._is_closed = True
                if not self._made:
                    return
                last = self._made.pop()
            yield last

    def _keep_of_parent(self) -> None:
        """In a forked child: never drop what the parent has made, which would close it here."""
        for each in self._made:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _close(resource: _ThreadResource | _LoopResource, run: RunOnLoop | None) -> None:
    if isinstance(resource, _ThreadResource):
        resource.close()
    elif run is not None and not resource.loop.is_closed():
        run(resource.end())


class _ThreadResource:
    """A resource that a thread makes."""

    value: Any = None
    error: BaseException | None = None

    def __init__(self, plan: ResourcePlan) -> None:
        self.plan = plan
        self.stack = ExitStack()
        self.over = futures.Future[None]()
        self.over.set_running_or_notify_cancel()  # who waits for it cannot cancel it

    @property
    def was_interrupted(self) -> bool:
        """Whether something ended the job that made it: others try themselves."""
        return self.error is not None and not isinstance(self.error, Exception)

    def result(self) -> Any:  # noqa: ANN401 (a resource)
        if self.error is not None:
            raise self.error
        return self.value

    def close(self) -> None:
        try:
            self.stack.close()
        except (Exception, SystemExit, asyncio.CancelledError):
            log.exception("the resource %s raised when it was closed", self.plan.name)


class _LoopResource:
    """A resource of an event loop, in a task of its own, for its cancel scopes."""

    value: Any = None
    error: BaseException | None = None

    def __init__(self, scope: ResourceScope, plan: ResourcePlan) -> None:
        self.plan = plan
        self.scope = scope
        self.loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self.loop.create_future()
        """Done when it is made, or cannot be."""
        self._wanted_by = 0
        self._end = asyncio.Event()
        self.task: asyncio.Task[None] = scope._context.copy().run(  # noqa: SLF001 (its own)
            self.loop.create_task, scope.live(self), name=f"qframe-{plan.name}"
        )

    async def is_over(self) -> bool:
        """Wait until it is made or cannot be; false if another try is due.

        Nobody else waits for one that takes too long for the last job that needs it: it is ended.
        """
        if not self.over.done():
            self._wanted_by += 1
            try:
                await asyncio.wait([self.over])
            finally:
                self._wanted_by -= 1
                if not (self._wanted_by or self.over.done()):
                    self.scope.forget(self)
                    self.task.cancel()
        return not isinstance(self.error, asyncio.CancelledError)

    def result(self) -> Any:  # noqa: ANN401 (a resource)
        if self.error is not None:
            raise self.error
        return self.value

    async def until_closed(self, made: Sequence[Any]) -> None:
        """Wait for its end, or for that of its loop, and for those that were made after it."""
        try:
            await self._end.wait()
        except asyncio.CancelledError:
            self.task.uncancel()  # it is closed, and not broken off
        self.scope.forget(self)
        later = made[made.index(self) + 1 :] if self in made else ()
        tasks = [each.task for each in later if isinstance(each, _LoopResource)]
        if tasks := [each for each in tasks if each.get_loop() is self.loop]:
            await asyncio.wait(tasks)

    async def end(self) -> None:
        self._end.set()
        await asyncio.wait([self.task])
        if isinstance(self.error, Interruption):
            raise self.error
        if self.error is not None:
            self._tell(self.error)

    def failed_to_close(self, error: BaseException) -> None:
        if self._end.is_set() and isinstance(error, asyncio.CancelledError | Interruption):
            self.error = error  # for `end`, unless that was broken off, too
        else:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        log.error("the resource %s raised when it was closed", self.plan.name, exc_info=error)


_current: ContextVar[ResourceScope | None] = ContextVar("qframe_resources", default=None)


@contextlib.contextmanager
def of_worker() -> Iterator[ResourceScope]:
    """Give the jobs that run in the body one scope; the worker closes it."""
    scope = ResourceScope()
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def _current_open() -> ResourceScope | None:
    scope = _current.get()
    return scope if scope is not None and scope.is_open else None


@contextlib.contextmanager
def for_call() -> Iterator[ResourceScope]:
    """Give the scope of the worker, or one for the body alone."""
    if (scope := _current_open()) is not None:
        yield scope
        return
    scope = ResourceScope()
    try:
        yield scope
    finally:
        scope.close()


@contextlib.asynccontextmanager
async def for_call_on_loop() -> AsyncIterator[ResourceScope]:
    """As `for_call`, on the running event loop."""
    if (scope := _current_open()) is not None:
        yield scope
        return
    scope = ResourceScope()
    try:
        yield scope
    finally:
        await scope.close_on_loop()
