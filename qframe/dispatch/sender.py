"""Sender: one thread that pushes what coroutines await, many in one exchange.

A thousand that are awaited at once need no thousand threads, nor as many round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from qframe.connection import Connection
from qframe.contracts.step import Result
from qframe.dispatch import pusher
from qframe.exceptions import BackendUnavailable
from qframe.features.base import Plan, Pushing
from qframe.jobs.foreign import Dispatchable
from qframe.payload.envelope import Envelope

_MOST = 200
"""How many are pushed in one exchange."""


@dataclass(eq=False, slots=True)
class Parcel:
    """A push that a coroutine awaits; `done` hears the id, on the sender's thread."""

    connection: Connection
    job: Dispatchable
    envelope: Envelope
    queue: str | None
    delay: float
    context: Context
    """What listeners see."""
    done: Callable[[str], None]
    future: asyncio.Future[str]
    pushing: Pushing = field(init=False)
    plan: Plan = field(init=False)

    def prepare(self) -> None:
        """Tell the listeners, and plan the push."""
        connection, self.plan = self.connection, Plan()
        self.pushing = connection.pushing(self.job, self.envelope, self.queue, self.delay)
        connection.context.plan_push(self.pushing, self.plan)

    def conclude(self, result: Result) -> str:
        """Tell the listeners what came of it; gives the id."""
        holder = self.connection.context.pushed(self.pushing, self.plan, result)
        self.connection.tell(self.job, self.pushing, holder)
        return holder or self.envelope.uuid


class _Sender:
    """What is to be pushed by one process, and the thread that does."""

    def __init__(self) -> None:
        self._parcels: SimpleQueue[Parcel] = SimpleQueue()
        self._starting = threading.Lock()
        self._started = False

    def put(self, parcel: Parcel) -> None:
        self._parcels.put(parcel)
        with self._starting:
            if not self._started:
                threading.Thread(target=self._run, name="qframe-sender", daemon=True).start()
                self._started = True

    def _run(self) -> None:
        while True:
            parcels = [self._parcels.get()]
            with contextlib.suppress(Empty):
                while len(parcels) < _MOST:
                    parcels.append(self._parcels.get_nowait())
            pusher.wait()  # what was dropped before is pushed before
            by_connection = defaultdict[Connection, list[Parcel]](list)
            for parcel in parcels:
                by_connection[parcel.connection].append(parcel)
            outcomes = _Outcomes()
            for connection, some in by_connection.items():
                if ready := _prepared(some, outcomes):
                    _push(connection, ready, outcomes)
            outcomes.tell()


class _Outcomes:
    """What came of parcels, told to each loop in one call."""

    def __init__(self) -> None:
        self._heard = defaultdict[
            asyncio.AbstractEventLoop, list[tuple[asyncio.Future[str], str | BaseException]]
        ](list)

    def note(self, parcel: Parcel, act: Callable[..., str], *args: object) -> None:
        """Note what an act gives, in the parcel's context."""
        try:
            uuid = parcel.context.run(act, *args)
            parcel.done(uuid)
        except BaseException as error:  # noqa: BLE001 (who awaits hears of it)
            self.fail(parcel, error)
        else:
            self._heard[parcel.future.get_loop()].append((parcel.future, uuid))

    def fail(self, parcel: Parcel, error: BaseException) -> None:
        """Note that a parcel was not pushed."""
        self._heard[parcel.future.get_loop()].append((parcel.future, error))

    def tell(self) -> None:
        """Wake those who wait."""
        for loop, heard in self._heard.items():
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits
                loop.call_soon_threadsafe(_settle, heard)


def _prepared(parcels: Sequence[Parcel], outcomes: _Outcomes) -> list[Parcel]:
    """Prepare parcels, and give those that can be pushed."""
    ready = []
    for parcel in parcels:
        try:
            parcel.context.run(parcel.prepare)
        except BaseException as error:  # noqa: BLE001 (as above)
            outcomes.fail(parcel, error)
        else:
            ready.append(parcel)
    return ready


def _push(connection: Connection, parcels: Sequence[Parcel], outcomes: _Outcomes) -> None:
    try:
        results = connection.backend.apply(*(parcel.plan for parcel in parcels))
    except BaseException as error:  # noqa: BLE001 (as above)
        if len(parcels) > 1 and not isinstance(error, BackendUnavailable):
            for parcel in parcels:  # one of them is refused: each by itself
                _push(connection, [parcel], outcomes)
            return
        for parcel in parcels:
            outcomes.fail(parcel, copy.copy(error))
    else:
        for parcel, result in zip(parcels, results, strict=True):
            outcomes.note(parcel, parcel.conclude, result)


def _settle(heard: Sequence[tuple[asyncio.Future[str], str | BaseException]]) -> None:
    for future, outcome in heard:
        if future.done():
            continue  # who awaited it was cancelled
        if isinstance(outcome, str):
            future.set_result(outcome)
        elif isinstance(outcome, StopIteration):  # which no future takes
            future.set_exception(RuntimeError(f"the push raised {outcome!r}"))
        else:
            future.set_exception(outcome)


_own = _Sender()
"""That of this process."""


def send(parcel: Parcel) -> None:
    """Have a parcel pushed, whose future is told."""
    _own.put(parcel)


def _anew() -> None:
    global _own  # noqa: PLW0603 (a forked child has none of its parent's threads)
    _own = _Sender()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_anew)
