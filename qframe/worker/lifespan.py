"""Lifespan: the program's own context manager around all jobs of a process, on their event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from qframe.exceptions import ConfigurationError
from qframe.jobs import named
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.resources.scope import Closing, RunOnLoop, just_closed

log = logging.getLogger("qframe")

_LOOK_EVERY = 0.1
"""Seconds between looks for a signal to stop while it is entered."""
_TURN_EVERY = 0.5
_TURNS = 10
"""How often the loop turns at a look: an error takes some turns from a task to the lifespan."""


class Lifespan:
    """What `worker.lifespan` names, `module:function`; used once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._shown = one_line(path, 100)
        self.name = f"the lifespan {self._shown}"
        self.has_ended = False
        """Whether an async one ended before the jobs did."""
        self._on_end: Callable[[], None] = lambda: None
        self._make: Callable[[], Any] | None = None
        self._made: Any = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Event | None = None
        self._looked = 0.0

    def load(self) -> None:
        """Imports it. Raises `ConfigurationError`."""
        self._make = named.function("worker.lifespan", self._path)

    @contextmanager
    def around(
        self,
        run: RunOnLoop,
        stops: Callable[[], bool],
        on_end: Callable[[], None] = lambda: None,
        closing: Closing = just_closed,
    ) -> Iterator[bool]:
        """Enters it, and leaves it behind the body; gives whether to go on.

        That is false if `stops` became true meanwhile: an `async` one is cancelled then. Raises
        `ConfigurationError` if it raises while it is entered; what it raises later is logged. If an
        `async` one ends while the body runs, `on_end` is called. `closing` bounds leaving it.
        """
        self._on_end = on_end
        try:
            entered = self._enter(run, stops)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"worker.lifespan: {self._shown!r} cannot be entered: {tracebacks.placed(error)}"
            ) from error
        try:
            yield entered and not stops()
        finally:
            if entered:
                closing(self.name, partial(self._leave, run))

    def look(self, run: RunOnLoop) -> None:
        """Turns the loop of an `async` one, so that its end is noticed while no job turns it."""
        task, now = self._task, time.monotonic()
        if task is None or now - self._looked < _TURN_EVERY:
            return
        self._looked = now
        if not task.done():
            with suppress(SystemExit):  # of a task that it has started: it ends by that
                run(_turns())
        if task.done():
            self._note_end(task)

    def _enter(self, run: RunOnLoop, stops: Callable[[], bool]) -> bool:
        if self._make is None:
            self.load()
        assert self._make is not None  # noqa: S101 (loaded)
        made, self._task = self._make(), None
        self._made = made
        if isinstance(made, AbstractAsyncContextManager):
            return bool(run(self._begin(made, stops)))
        if not isinstance(made, AbstractContextManager):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(
                "it is called without arguments and returns a context manager, also an async one "
                f"(contextlib.asynccontextmanager), not {type(made).__name__}"
            )
        made.__enter__()
        return True

    def _leave(self, run: RunOnLoop) -> None:
        try:
            if self._task is None:
                self._made.__exit__(None, None, None)
            elif not self._task.done():
                run(self._end(self._task))
        except (Exception, SystemExit):
            log.exception("%s raised when the worker left it", self.name)

    # -- an async one lives in one task, for its cancel scopes and context variables ------------

    async def _begin(
        self, made: AbstractAsyncContextManager[Any], stops: Callable[[], bool]
    ) -> bool:
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[None] = loop.create_future()
        over = self._over = asyncio.Event()

        async def live() -> None:
            async with made:
                entered.set_result(None)
                await over.wait()

        task = self._task = loop.create_task(live(), name="qframe-lifespan")
        while not (entered.done() or task.done()):
            await asyncio.wait(
                [task, entered], timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED
            )
            if not entered.done() and stops():
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()  # raises
                return False
        if not entered.done():
            if task.cancelled():
                raise RuntimeError("its own code cancelled it")
            task.result()  # raises
        task.add_done_callback(self._note_end)
        return True

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Tells of an end that nobody asked for, as by the error of a task that it has started."""
        assert self._over is not None  # noqa: S101 (it has begun)
        if self._over.is_set() or self.has_ended:
            return
        self.has_ended = True
        if not task.cancelled():  # as it is when a timeout has ended the loop
            log.error("%s ended while jobs ran", self.name, exc_info=task.exception())
        self._on_end()

    async def _end(self, task: asyncio.Task[None]) -> None:
        assert self._over is not None  # noqa: S101 (it has begun)
        self._over.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # raises


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
