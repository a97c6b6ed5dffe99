"""Draft: what `dispatch` is about to push, when, and how if it is dropped."""

from __future__ import annotations

import atexit
import contextvars
import sys
import threading
import time
from enum import Enum, auto
from functools import partial
from typing import Any

from qframe import manager
from qframe.connection import Connection, substitute
from qframe.contracts.identity import JobId, job_id
from qframe.contracts.transaction import AsyncTransaction, run_in
from qframe.dispatch import lost, pusher
from qframe.dispatch.after_commit import open_for
from qframe.dispatch.background import BackgroundConnection
from qframe.dispatch.calls import Apply, Call
from qframe.dispatch.deferred import run_at_end
from qframe.dispatch.handed import Handed, report_unraised
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.sender import send, send_from_thread
from qframe.dispatch.sync import SyncConnection
from qframe.dispatch.within import joined
from qframe.drivers import guard, process
from qframe.exceptions import BackendUnavailable, BackendUnusable, Interruption, InvalidJob
from qframe.features.base import Plan
from qframe.hooks import OpenTransaction
from qframe.jobs import execution
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.tracing import sending
from qframe.jobs.uniqueness import ONCE
from qframe.payload.timing import When, seconds_until

_LONGEST_PAUSE = 10.0
_NONE = JobId("")
unsent: dict[Draft, bool] = {}
"""Drafts to push when they go out of scope."""


class Moment(Enum):
    """When a draft is pushed."""

    OPEN = auto()
    """Unspecified: when it is sent, or with the program's open transaction."""
    THEN = auto()
    """When it is sent, whatever transaction is open."""
    IN_OPEN = auto()
    """In the open transaction, or at its commit."""
    AT_COMMIT = auto()
    """At the commit of a transaction that the program named."""
    WITHIN = auto()
    """When it is awaited, in an asynchronous transaction."""


class Draft:
    """The job to push, separate from `PendingDispatch`, which must be free to go out of scope.

    It is sent once it has its `id`.
    """

    __slots__ = (
        "connection",
        "context",
        "delay",
        "disarmed",
        "envelope",
        "group",
        "handed",
        "id",
        "job",
        "moment",
        "named",
        "once",
        "opened",
        "pid",
        "queue",
        "rank",
        "thread",
        "track",
        "transaction",
    )  # fmt: skip

    opened: OpenTransaction
    thread: int
    """The thread of that transaction."""
    transaction: AsyncTransaction

    def __init__(self, job: Dispatchable) -> None:
        self.job = job
        self.pid = process.own.pid
        self.context = contextvars.copy_context()
        """The context for listeners, for a push from another thread or at a commit."""
        self.queue: str | None = None
        self.named: str | None = None
        """The connection that the dispatch named."""
        self.delay: When = job.delay
        self.id: JobId[Any] = _NONE
        self.track = 0.0
        self.rank: int | None = None
        self.once: dict[str, Any] | None = None
        self.group = ""
        self.moment = Moment.OPEN
        self.disarmed = False
        """Whether a call raised: then no commit pushes it, unless it is sent later."""
        self.handed: Handed[JobId[Any]] | None = None
        """The awaited push."""
        self.connection = manager.connection_of(job)
        self.envelope = self.connection.envelope(job)
        unsent[self] = True

    # -- the push ---------------------------------------------------------------------------------

    def use(self, connection: Connection) -> None:
        """Push it to this connection."""
        self.connection = connection
        self.envelope = connection.envelope(self.job)
        if self.track:
            connection.track(self.envelope, self.track)
        if self.rank is not None:
            self.prioritize(self.rank)
        if self.once is not None:
            self.go_once(self.once)
        if self.group:
            self.join(self.group)

    def place(self) -> None:
        """Push it to the connection for what it names."""
        self.use(manager.default().connection_of(self.job, self.named, self.queue))

    def prioritize(self, priority: int) -> None:
        """Set a priority in place of the class's."""
        self.rank = priority
        self.envelope.payload["priority"] = priority
        self.envelope.encode()

    def go_once(self, key: dict[str, Any]) -> None:
        """Set the idempotency key, in place of the class's, as it is in the payload."""
        self.once = key
        self.connection.add(self.envelope, {ONCE: key})

    def join(self, group: str) -> None:
        """Put it into a group, in place of the class's."""
        if isinstance(self.job, Foreign):
            raise InvalidJob(f"{self.job.name} runs in another program, which has no groups")
        self.group = group
        self.connection.add(self.envelope, {"group": group})

    def keep_status(self, seconds: float) -> None:
        if isinstance(self.job, Foreign):
            raise InvalidJob(
                f"{self.job.name} runs in another program, which keeps no status of it"
            )
        self.track = seconds
        self.connection.track(self.envelope, seconds)

    @property
    def is_faked(self) -> bool:
        return substitute(self.connection, self.job) is not None

    # -- when to push ---------------------------------------------------------------------------

    def keep(self) -> None:
        """Remove it from the drafts that are pushed when they go out of scope."""
        unsent.pop(self, None)

    def disarm(self) -> None:
        """Leave it to a later `send`, because a call raised."""
        self.disarmed = True
        self.keep()

    def join_open(self) -> None:
        """Join the open transaction, if a framework names one."""
        if self.moment is not Moment.OPEN:
            return
        opened = open_for(self.connection)
        if opened is None or self.is_faked:
            return
        self.moment, self.opened, self.thread = Moment.IN_OPEN, opened, threading.get_ident()
        if opened.within() is None:
            self.keep()  # the commit sends it
        opened.on_commit(lambda: _send_in_open(self, opened))

    def leave_open(self) -> None:
        """Leave a transaction that only the framework named."""
        if self.moment is Moment.IN_OPEN:
            unsent[self] = True
        if self.moment in (Moment.OPEN, Moment.IN_OPEN):
            self.moment = Moment.THEN

    def wait_for_commit(self) -> None:
        """Wait for `send_committed`, at the commit of a transaction."""
        self.leave_open()
        if self.moment is Moment.WITHIN:
            raise _refusal()
        self.moment = Moment.AT_COMMIT
        self.keep()

    def go_within(self, transaction: AsyncTransaction | None) -> None:
        """Use a transaction of the program; an asynchronous one when it is awaited."""
        self.leave_open()
        if self.moment is not Moment.THEN:
            raise _refusal()
        if self.id:
            raise InvalidJob("the dispatch has been pushed already: within is in place of send")
        if transaction is None:
            self.keep()
        else:
            self.moment, self.transaction = Moment.WITHIN, transaction

    # -- pushing ----------------------------------------------------------------------------------

    def send(self) -> JobId[Any]:
        """Push it, unless a commit will. Returns its id."""
        if self.id:
            return self.id
        if self.connection.hooks.find_open is not None:
            self.join_open()
        if self.moment is Moment.IN_OPEN and self.send_in_open():
            return self.id
        if self.moment in _COMMITTED:
            self.disarmed = False
            return job_id(self.envelope.uuid, self.job)
        if self.moment is Moment.WITHIN:
            raise InvalidJob(
                "a dispatch within an asynchronous transaction is pushed by awaiting it: "
                "await dispatch(...).within(...)"
            )
        handed = None if self.handed is None else self._under_way()
        return self._push(self.connection) if handed is None else handed.result()

    async def send_on_loop(self) -> JobId[Any]:
        """Push it without blocking the loop, together with other awaited calls."""
        if self.moment is Moment.WITHIN and not self.id:
            return await run_in(self.transaction, self.send_within)
        if self.id or self.moment in _COMMITTED or self.is_faked or self.pid != process.own.pid:
            return self.send()
        handed = self._under_way()
        if handed is None:
            handed = self.handed = self._hand_over()
        return await handed.outcome()

    def send_within(self, transaction: object) -> JobId[Any]:
        return self._push(joined(self.connection, transaction, self.job))

    def send_in_open(self) -> bool:
        """Push it in the open transaction, if that is possible here. Returns whether it was."""
        inside = self.opened.within()
        if inside is None or self.thread != threading.get_ident() or guard.busy():
            return False
        self.moment = Moment.OPEN
        self.send_within(inside)
        return True

    def _under_way(self) -> Handed[JobId[Any]] | None:
        """Return the push of another await, unless its error was already raised."""
        handed = self.handed
        return None if handed is None or handed.was_raised else handed

    def _hand_over(self) -> Handed[JobId[Any]]:
        report = partial(_report, self)
        if self.connection.context.at_once:
            handed = Handed[JobId[Any]](None, report, self.context)
            return send_from_thread(
                handed, lambda: self._push(self.connection), self.connection.hooks
            )
        return send(Handed(self._pushing(), report, self.context))

    def _pushing(self) -> Call[JobId[Any]]:
        connection, plan = self.connection, Plan()
        with sending(connection):
            pushing = connection.pushing(
                self.job, self.envelope, self.queue, seconds_until(self.delay)
            )
            plan.is_alone = True
            connection.context.plan_push(pushing, plan)
            (result,) = yield Apply(connection.backend, (plan,))
            holder = connection.context.pushed(pushing, plan, result)
        connection.fire_dispatched(self.job, pushing, holder)
        self.id = job_id(holder or self.envelope.uuid, self.job)
        return self.id

    def _push(self, connection: Connection) -> JobId[Any]:
        if self.pid != process.own.pid:
            raise InvalidJob("the dispatch belongs to the process that made it, not to a fork")
        delay = seconds_until(self.delay) if self.delay else 0.0
        try:
            self.id = connection.push_envelope(self.job, self.envelope, self.queue, delay)
        except ImportError:
            if sys.is_finalizing():
                raise BackendUnusable(manager.TOO_LATE) from None
            raise
        return self.id


_COMMITTED = (Moment.IN_OPEN, Moment.AT_COMMIT)
"""When a commit pushes it."""


def _refusal() -> InvalidJob:
    return InvalidJob(
        "a job is dispatched within a transaction, which commits it with its rows, or "
        "after_commit, which pushes it then: one of them, once"
    )


# -- at a commit ----------------------------------------------------------------------------------


def send_committed(draft: Draft) -> None:
    """Push a draft that waited for a commit, unless a call on it has raised."""
    draft.moment = Moment.THEN
    if not draft.disarmed:
        unsent[draft] = True
        drop(draft)


def _send_in_open(draft: Draft, opened: OpenTransaction) -> None:
    """Push a draft after the commit of its transaction; reports an error.

    It is pushed before the commit returns, unless the backend does not answer: then it is retried
    like a dropped dispatch.
    """
    if draft.moment is not Moment.IN_OPEN or draft.opened is not opened:
        return
    if draft.pid != process.own.pid:
        return
    draft.moment = Moment.THEN
    draft.keep()
    if draft.disarmed:
        return
    try:
        draft.context.run(draft.send)
    except BackendUnavailable:
        unsent[draft] = True
        drop(draft)
    except Exception as error:  # noqa: BLE001 (after the commit nobody can handle it)
        _report(draft, error)


# -- dropped --------------------------------------------------------------------------------------


def send_unsent(draft: Draft) -> None:
    """Push a draft now that would be pushed when it goes out of scope."""
    if unsent.pop(draft, False):
        _push(draft)


def flush() -> None:
    """Wait until every dispatch made on an event loop or dropped is pushed or reported."""
    pusher.wait(everything=True)


@atexit.register
def send_dropped() -> None:
    """Push all unsent drafts, and run deferred jobs: the process ends."""
    ended = True
    while own := [draft for draft in list(unsent) if draft.pid == process.own.pid]:
        for draft in own:
            drop(draft)
        ended = pusher.wait()
        if not ended:
            for draft in own:
                if unsent.pop(draft, False):
                    _report(draft, BackendUnavailable("the push of another one does not end"))
    if ended:
        pusher.wait(everything=True)  # also for pushes that had begun
    run_at_end()
    report_unraised()


def drop(draft: Draft) -> None:
    """Push a dispatch that went out of scope, wherever the garbage collector runs.

    The pusher does it. Only what needs no backend is done at once: a job for a fake, and a job of a
    sync connection, which runs in the thread that dispatched it.
    """
    if draft.moment is Moment.IN_OPEN:
        _drop_in_open(draft)
    elif draft.pid != process.own.pid:
        draft.keep()
    elif _done_here(draft):
        draft.keep()
        error = _push(draft)
        if isinstance(error, Interruption):  # meant for the job that dispatched this one
            guard.defer(error)
    else:
        pusher.put(partial(draft.context.run, send_unsent, draft))


def _drop_in_open(draft: Draft) -> None:
    """Push it in its transaction; if that is not possible here, the commit does."""
    draft.keep()
    try:
        if draft.pid == process.own.pid:
            draft.send_in_open()
    except Exception as error:  # noqa: BLE001 (nothing can raise here)
        _report(draft, error)


def _done_here(draft: Draft) -> bool:
    if draft.is_faked:  # no event loop has to wait for a fake
        return True
    if isinstance(draft.connection, BackgroundConnection):  # a process takes time to start
        return False
    may_run = not guard.busy() and not execution.on_a_running_loop()
    return isinstance(draft.connection, SyncConnection) and may_run


def _push(draft: Draft) -> BaseException | None:
    """Push with the connection's retries. Reports an error and returns it."""
    try:
        _push_patiently(draft)
    except BaseException as error:  # noqa: BLE001 (nothing can raise here)
        _report(draft, error)
        return error
    return None


def _push_patiently(draft: Draft) -> None:
    for attempt in range(draft.connection.settings.push_retries + 1):
        try:
            draft.send()
        except BackendUnusable:
            raise
        except BackendUnavailable:
            if attempt == draft.connection.settings.push_retries:
                raise
            pusher.beat()
            time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**attempt))
        else:
            return


def _report(draft: Draft, error: BaseException) -> None:
    queue = draft.connection.queue_for(draft.job, draft.queue)
    payload, delay = draft.envelope.payload, _seconds(draft.delay)
    what = f"{payload['displayName']} {draft.envelope.uuid} was dispatched and dropped, and"
    lost.report(what, [Unpushed(draft.connection, queue, draft.job, payload, delay)], error)


def _seconds(delay: When) -> float:
    try:
        return seconds_until(delay)
    except (TypeError, ValueError):
        return 0.0
