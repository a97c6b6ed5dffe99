"""Aftermath: settles the jobs that dead workers of a pool had begun.

In a thread of its own, so that a backend that does not answer holds nothing up. The driver is
imported shortly after the pool's start: at a death that would take longer than all the rest. The
backend is connected to when the first worker has died in a job.
"""

from __future__ import annotations

import contextlib
import logging
import queue as queues
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from qframe import tracebacks
from qframe.contracts import Capability, Job, Queue
from qframe.exceptions import BackendUnavailable, InvalidPayload, JobTimedOut, SettleError
from qframe.worker.options import WorkerOptions
from qframe.worker.retry import DIED, TIMED_OUT, Limits
from qframe.worker.slip import Entry, State

log = logging.getLogger("qframe")

_LOOKS = (0.02, 0.05, 0.1, 0.2)
"""Pauses before a job is looked for again: its start may be on its way still."""
_STARTING = 3.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_PARTING = 5.0
"""Seconds the end of a pool waits for a backend that does not answer."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a dead worker left: the job as its slip names it, and what became of the worker.

    `late`: the job had reached its hard timeout. `stopping`: the pool itself ended the worker on
    its way to its own end, so the attempt is not to count.
    """

    entry: Entry
    worker: int
    words: str
    late: bool = False
    stopping: bool = False


class Fate(StrEnum):
    """What became of a job."""

    READY = "ready again"
    RETRIED = "tried again"
    GIVEN_BACK = "given back"
    DELETED = "done"
    BACK = "back by itself"
    GONE = "gone"
    """Settled by its worker before it died, or passed to another."""
    LEFT = "left to its lease"


@dataclass(frozen=True, slots=True)
class Settled:
    """How it ended: `name` and `uuid` are the job's where it was found, `delay` in seconds."""

    left: Left
    fate: Fate
    name: str = ""
    uuid: str = ""
    delay: float = 0.0


class Aftermath:
    """Settles what it is given, one after the other, and tells of each.

    `connect` opens the connection; `tell` is called in the thread.
    """

    def __init__(
        self,
        connect: Callable[[], Queue],
        options: WorkerOptions,
        tell: Callable[[Settled], None],
    ) -> None:
        self._connect = connect
        self._options = options
        self._tell = tell
        self._left: queues.SimpleQueue[Left | None] = queues.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._needed = threading.Event()
        self._ended = threading.Event()

    def begin(self) -> None:
        """Get ready, if that has not been begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="qframe-aftermath", daemon=True)
            self._thread.start()

    def settle(self, left: Left) -> None:
        """Settle a job soon."""
        self.begin()
        self._left.put(left)
        self._needed.set()

    def end(self) -> None:
        """Settle what there still is, as far as the backend answers."""
        if self._thread is not None:
            self._ended.set()
            self._needed.set()
            self._left.put(None)
            self._thread.join(_PARTING + 1)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        queue = self._made()
        while (left := self._left.get()) is not None:
            try:
                queue = queue or self._connect()
                settled = self._settled(queue, left)
            except Exception as error:  # noqa: BLE001 (a driver's own bug must not end the thread)
                log.warning("what worker %d left: %s", left.worker, tracebacks.brief(error))
                settled = Settled(left, Fate.LEFT)
            self._tell(settled)
        if queue is not None:
            queue.close()

    def _made(self) -> Queue | None:
        """Make the queue once the workers had time to start, or as soon as there is need."""
        self._needed.wait(_STARTING)
        if not self._ended.is_set():
            with contextlib.suppress(Exception):  # said when it is needed
                return self._connect()
        return None

    def _settled(self, queue: Queue, left: Left) -> Settled:
        """Settle, trying again while the backend does not answer and the lease may still hold."""
        give_up = time.monotonic() + queue.retry_after
        pause = _FIRST_PAUSE
        while True:
            try:
                if Capability.TAKE_UP not in queue.capabilities:
                    return self._explain(queue, left)
                job = _found(queue, left)
                return Settled(left, Fate.GONE) if job is None else self._settle(queue, left, job)
            except SettleError:
                return Settled(left, Fate.GONE)
            except BackendUnavailable as error:
                if self._ended.is_set():
                    give_up = min(give_up, time.monotonic() + _PARTING)
                if time.monotonic() + pause > give_up:
                    log.warning("what worker %d left: %s", left.worker, error)
                    return Settled(left, Fate.LEFT)
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _explain(self, queue: Queue, left: Left) -> Settled:
        """Note how it ended, where the job goes back by itself with its worker's connection."""
        how = TIMED_OUT if left.late else DIED
        ran = left.entry.state is not State.DONE and not left.stopping
        kept = ran and queue.explain(left.entry.ticket, how, left.words)
        return Settled(left, Fate.BACK if kept else Fate.GONE)

    def _settle(self, queue: Queue, left: Left, job: Job) -> Settled:
        fate, delay = Fate.READY, 0.0
        if left.entry.state is State.DONE:
            job.delete()
            fate = Fate.DELETED
        elif left.late:
            delay = self._delay(job, left)
            if delay:
                fate = Fate.RETRIED
                job.retry(delay, TIMED_OUT, left.words)
            else:
                job.recover(TIMED_OUT, left.words)
        elif left.stopping and Capability.UNCOUNTED in queue.capabilities:
            job.give_back()
            fate = Fate.GIVEN_BACK
        else:
            job.recover(DIED, left.words)
        return Settled(left, fate, job.name, job.uuid, delay)

    def _delay(self, job: Job, left: Left) -> float:
        """Give the backoff of a job that timed out; none where that was its last attempt.

        Whoever takes it next then fails it, where its class is known and listeners hear of it.
        """
        try:
            message = {**job.payload, **left.entry.policy}
        except InvalidPayload:
            message = {}
        limits = Limits(None, message, self._options)
        error = JobTimedOut(left.words)
        return 0.0 if limits.ends_with(error, job) else limits.backoff(None, job, error)


def _found(queue: Queue, left: Left) -> Job | None:
    """Take the job up; its worker's last words to the backend may come a moment after ours."""
    job = queue.take_up(left.entry.ticket)
    for pause in _LOOKS if left.entry.state is State.RUNNING else ():
        if job is not None:
            break
        time.sleep(pause)
        job = queue.take_up(left.entry.ticket)
    return job
