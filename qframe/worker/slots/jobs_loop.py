"""JobsLoop: the event loop, on the worker's own thread, that all `async` jobs of a worker share."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from qframe.exceptions import Interruption
from qframe.jobs import execution
from qframe.worker.slots import interrupts
from qframe.worker.slots.interrupts import StartedTask, Steps, TaskSteps, current
from qframe.worker.slots.turns import STILL, Turns

log = logging.getLogger("qframe")

_FRAMES = 12
_BLOCKED = 1.0


class JobsLoop:
    """Runs until it is stopped, whatever a task of a job raises."""

    def __init__(self) -> None:
        self.loop = _made()
        self.loop.set_task_factory(self._task)  # type: ignore[arg-type] # typeshed knows no Task here
        self.loop.set_exception_handler(self._on_error)
        self.thread = 0
        self._over = False
        self._ticked = time.monotonic()
        self._ticks = False
        self.turns = Turns()
        self.begins: Callable[[], None] = lambda: None
        """Called on its thread before it runs."""
        self.came_round: Callable[[], None] = lambda: None
        """Called on its thread, a few times a second while it runs."""

    def run(self) -> None:
        self.thread = threading.get_ident()
        self.turns.enter()
        asyncio.set_event_loop(self.loop)
        while not self._over:
            self.begins()
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt, Interruption) as error:
                log.warning("a task that a job had started raised %s", type(error).__name__)

    def stop(self) -> None:
        """Makes `run` return; from any thread."""
        self._over = True
        self.call(self.loop.stop)

    def call(self, act: Callable[..., object], *args: object) -> None:
        """Calls `act` on the loop soon; from any thread."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(act, *args)

    def start(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context
    ) -> asyncio.Task[Any]:
        """Starts the task of a job; on the loop's thread."""
        return asyncio.Task(coroutine, loop=self.loop, context=context)

    def close(self, patience: float) -> None:
        """Cancels the tasks that jobs have left, which have so many seconds to end."""
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        with suppress(SystemExit, KeyboardInterrupt, Interruption):
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=patience))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()

    def finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (what the job gave)
        done = threading.Event()
        ended: list[asyncio.Task[Any]] = []
        whose = current.get()
        context = contextvars.copy_context()

        def end(task: asyncio.Task[Any]) -> None:
            if whose is not None:
                whose.task = None
            ended.append(task)
            done.set()

        def begin() -> None:
            steps = coroutine if whose is None else Steps(coroutine, whose)
            task = self.start(_kept(steps), context)
            if whose is not None:
                whose.task = task
            task.add_done_callback(end)

        if whose is not None:
            whose.awaits = True
        self.loop.call_soon_threadsafe(begin)
        done.wait()
        if whose is not None:
            whose.awaits = False
        result, error = ended[0].result()
        if error is not None:
            raise error
        return result

    # -- what a job leaves ------------------------------------------------------------------------

    def _task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        **options: Any,  # noqa: ANN401 (asyncio's own)
    ) -> asyncio.Task[Any]:
        whose = current.get()
        if whose is None or not asyncio.iscoroutine(coroutine):  # which `Task` refuses
            return asyncio.Task(coroutine, loop=loop, **options)
        before = whose.processor
        task = StartedTask(TaskSteps(coroutine, whose), loop=loop, **options)
        whose.processor = before  # a first step that runs at once is a part of the running one
        whose.has_started(task)
        return task

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs the error of a task or callback that a job has left."""
        error = context.get("exception")
        log.error("on the event loop: %s", context.get("message"), exc_info=error)

    # -- whether it is blocked --------------------------------------------------------------------

    def blocked(self) -> float:
        """Returns for how many seconds it has not come round since an earlier call of this."""
        now = time.monotonic()
        if self._ticks:
            return now - self._ticked
        self._ticks, self._ticked = True, now
        self.call(self._tick)
        return 0.0

    def stands_since(self) -> float:
        """Returns since when it has not come round; infinity if it has since `blocked`."""
        return self._ticked if self._ticks else math.inf

    def is_blocked(self) -> bool:
        """Whether it counts as blocked for good, if it is to end its jobs."""
        return self.blocked() > _BLOCKED

    def _tick(self) -> None:
        self._ticks = False
        late = time.monotonic() - self._ticked
        if late > STILL:
            self.turns.stood += late
        self.came_round()

    def was_kept(self, seconds: float) -> None:
        """Notes that it could not run for so long, if its own tick does not show that."""
        if not self._ticks:
            self.turns.stood += seconds

    def current(self) -> asyncio.Task[Any] | None:
        """Returns the running task; from any thread."""
        return asyncio.current_task(self.loop)

    def stack(self) -> str:
        """Returns the job's frames on its thread, without those that called it."""
        frame = sys._current_frames().get(self.thread)  # noqa: SLF001 (the one way there is)
        if frame is None:
            return ""
        frames = traceback.extract_stack(frame)
        around = [place for place, each in enumerate(frames) if each.filename in _AROUND_JOBS]
        return "".join(traceback.format_list(frames[(around or [-1])[-1] + 1 :][-_FRAMES:]))


_AROUND_JOBS = {asyncio.events.__file__, execution.__file__, interrupts.__file__, __file__}


async def _kept(steps: Any) -> tuple[Any, BaseException | None]:  # noqa: ANN401 (what the job gave)
    """Returns value and error; what ends a process must not reach the loop."""
    try:
        return await steps, None
    except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
        return None, error


def _made() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 (an extra)
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made
