"""dispatch: the fluent call that queues a job, and what becomes of one that is dropped."""

from __future__ import annotations

import atexit
import contextvars
import threading
import time
import weakref
from collections.abc import Coroutine, Generator
from datetime import timedelta
from functools import partial
from typing import Any, Self

from qframe import manager
from qframe.connection import Connection, substitute
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import after_commit, lost, pusher
from qframe.dispatch.after_commit import OpenTransaction, open_for, when_committed
from qframe.dispatch.calls import Apply, Call
from qframe.dispatch.handed import Handed, tell_unheard
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.sender import done, send, send_from_thread
from qframe.dispatch.sync import SyncConnection
from qframe.dispatch.within import joined
from qframe.drivers import guard, process
from qframe.exceptions import (
    BackendUnavailable,
    Interruption,
    InvalidJob,
    JobDefinitionError,
)
from qframe.features.base import Plan
from qframe.jobs import execution
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.options import check_option, seconds
from qframe.jobs.registry import importing, refuse_while_importing
from qframe.jobs.tracing import sending
from qframe.payload.text import queue_name
from qframe.payload.timing import When, kept_for, seconds_until


def dispatch(job: Dispatchable) -> PendingDispatch:
    """Queue a job: `dispatch(SendWelcome(user_id=7)).on_queue("high").delay(10)`.

    The job is checked and its payload built at once, so a bad job raises `InvalidJob` here. It is
    pushed by `.send()`, `.id` or `await`, or when what this returns goes out of scope, as in
    Laravel.
    """
    return PendingDispatch(job)


def dispatch_sync(job: Dispatchable) -> Any:  # noqa: ANN401 (what the job returns)
    """Run a job here and now, once, and give what `handle` returned; raises what it raised."""
    queue = manager.default().connection("sync")
    if isinstance(queue, SyncConnection):
        return queue.run(job)
    queue.push(job)
    return None


def dispatch_if(condition: object, job: Dispatchable) -> PendingDispatch | None:
    """Dispatch if `condition` is true."""
    return dispatch(job) if condition else None


def dispatch_unless(condition: object, job: Dispatchable) -> PendingDispatch | None:
    """Dispatch unless `condition` is true."""
    return None if condition else dispatch(job)


class PendingDispatch:
    """A job about to be queued (Laravel's PendingDispatch).

    `send()` pushes it, raises what goes wrong and gives the id. One that is dropped unsent is
    pushed when it goes out of scope, at interpreter exit at the latest; nothing can be raised
    there, so a push that fails is tried again and then reported by the event `JobDispatchFailed`,
    a log record at CRITICAL, and `sys.unraisablehook`. `os._exit` and `kill -9` lose the unsent.
    After a call that raised, nothing is pushed behind the caller's back.
    """

    __slots__ = ("_draft",)

    def __init__(self, job: Dispatchable) -> None:
        if not isinstance(job, _JOBS):
            raise no_job(job)
        if importing.here:
            refuse_while_importing()
        if pusher.own.tasks_open:
            pusher.make_room()
        self._draft = draft = _Draft(job)
        _unsent[draft] = True
        if after_commit.find_open is not None:
            draft.heed_open()

    def __del__(self) -> None:
        """Have it pushed, if nobody has."""
        draft = getattr(self, "_draft", None)  # a bad job has none
        if draft is not None and draft in _unsent:
            _drop(draft)

    def on_connection(self, name: str) -> Self:
        """Use another connection than the job's own; raises `ConfigurationError`."""
        with _Disarming(self._draft):
            self._draft.use(manager.default().connection(name))
        return self

    def on_queue(self, name: str) -> Self:
        """Use another queue than the job's own; raises `InvalidQueueName`."""
        with _Disarming(self._draft):
            self._draft.queue = queue_name(name)
        return self

    def delay(self, delay: When) -> Self:
        """Make the job ready after `delay`: seconds, timedelta or aware datetime."""
        with _Disarming(self._draft):
            seconds(delay)
            self._draft.delay = delay
        return self

    def track(self, ttl: float | timedelta | None = None) -> Self:
        """Keep the job's status, for `job_status`, `wait_for` and `qframe status`.

        It is kept for `ttl` seconds (default: a day, or what the class says) after it was last
        written. Raises `InvalidJob` for a job that Laravel runs.
        """
        with _Disarming(self._draft):
            given = ttl if ttl is not None else self._draft.job.track or True
            self._draft.keep_status(seconds(given, kept_for))
        return self

    def priority(self, priority: int) -> Self:
        """Give the job another priority than its class's: 0 is first, the last is 4294967295.

        Only beanstalkd has priorities; elsewhere it is ignored.
        """
        with _Disarming(self._draft):
            try:
                check_option("dispatch", "priority", priority)
            except JobDefinitionError as error:
                raise InvalidJob(str(error)) from None
            self._draft.prioritize(priority)
        return self

    def after_commit(self, transaction: object) -> Self:
        """Push the job when the transaction that is open now has been committed, else never.

        `transaction` is a SQLAlchemy `Session` (also an `AsyncSession` or a `scoped_session`), or a
        function that takes a function to call then, as Django's `transaction.on_commit`. Where a
        session has joined a transaction of its connection, that one counts. Without an open
        transaction it is pushed at once. Nothing can be raised after a commit: a push that
        fails is tried again and then reported, as that of a dropped dispatch; what dies between the
        commit and the push loses it. `send()` and `.id` give the id and push nothing.
        """
        with _Disarming(self._draft):
            draft = self._draft
            draft.heed_none()
            draft.refuse_both(waits=True)
            draft.waits = True
            _unsent.pop(draft, None)
            try:
                when_committed(transaction, lambda: _send_committed(draft), draft.is_faked)
            except BaseException:
                draft.waits = False  # for nothing: a later `send` pushes
                raise
        return self

    def before_commit(self) -> Self:
        """Push the job at once, whatever transaction is open (Laravel's `beforeCommit`).

        That is what happens anyway, but where a framework has dispatches wait: in Django.
        """
        with _Disarming(self._draft):
            self._draft.heed_none()
            self._draft.heeds = False
        return self

    def within(self, transaction: object) -> Self:
        """Push the job in a transaction of the program's own: committed with it, or not at all.

        `transaction` is SQLAlchemy's `Session` or `Connection`, a DBAPI connection or cursor
        (psycopg, sqlite3, PyMySQL, mysqlclient) or Django's `connection`, on the database the jobs
        are in. It is the last call. An `AsyncSession` or `AsyncConnection` is awaited:
        `await dispatch(job).within(session)`; without that nothing is pushed, and it is reported as
        a dropped dispatch that failed. A job of the sync connection runs at once.

        Where the jobs are elsewhere, the transaction keeps them in the outbox that is configured,
        and a relay hands them on.

        Raises `InvalidTransaction` for what is none, is in autocommit mode or on another database,
        `Unsupported` where the jobs are in no database and there is no outbox, and
        `BackendUnavailable`.
        """
        with _Disarming(self._draft):
            draft = self._draft
            draft.heed_none()
            draft.refuse_both(waits=False)
            if is_async(transaction):
                draft.transaction = transaction
            else:
                _unsent.pop(draft, None)
                draft.send_within(transaction)
        return self

    def send(self) -> str:
        """Push the job and give its id; a second call gives the same id.

        The id of a duplicate of a unique job is that of the one that is there.

        Raises `BackendUnavailable`, `PayloadTooLarge`, or on the sync connection what the job
        raised.
        """
        draft = self._draft
        _unsent.pop(draft, None)
        if pusher.own.tasks_open or pusher.own.elsewhere:
            pusher.wait()
        return draft.send()

    @property
    def id(self) -> str:
        """The job's id; pushes the job as `send` does."""
        return self.send()

    @property
    def is_duplicate(self) -> bool:
        """Whether a unique job of its kind was there; pushes the job, if there was none."""
        return self.send() != self._draft.envelope.uuid

    def __await__(self) -> Generator[Any, None, str]:
        """Push the job without blocking the event loop and give its id."""
        draft = self._draft
        _unsent.pop(draft, None)
        if draft.transaction is not None and not draft.id:
            return run_in(draft.transaction, draft.send_within).__await__()
        return draft.sending().__await__()

    def __repr__(self) -> str:
        state = "sent" if self._draft.id else "pending"
        return f"<{type(self).__name__} {self._draft.envelope.payload['displayName']} {state}>"


class _Draft:
    """What is to be pushed; apart from `PendingDispatch`, which must be free to go out of scope."""

    __slots__ = (
        "connection", "context", "delay", "disarmed", "envelope", "handed", "heeds", "id", "job",
        "opened", "pid", "queue", "rank", "thread", "track", "transaction", "waits",
    )  # fmt: skip

    def __init__(self, job: Dispatchable) -> None:
        self.job = job
        self.pid = process.own.pid
        self.context = contextvars.copy_context()
        """What listeners see when it is pushed from another thread, or at a commit."""
        self.queue: str | None = None
        self.delay: When = job.delay
        self.id = ""
        self.track = 0.0
        self.waits = False
        """Whether it is pushed when a transaction is committed, and not before."""
        self.disarmed = False
        """Whether a call raised, so that it is not pushed at the commit, unless sent after that."""
        self.heeds = True
        """Whether it belongs to the transaction that the program has open, if there is one."""
        self.opened: OpenTransaction | None = None
        """That transaction."""
        self.thread = 0
        """Where it is open."""
        self.rank: int | None = None
        self.transaction: AsyncTransaction | None = None
        """In which it is pushed when it is awaited."""
        self.handed: weakref.ref[Handed[str]] | None = None
        """The push that was awaited; weak, so that an error nobody hears is told at once."""
        self.connection = manager.connection(job.connection)
        self.envelope = self.connection.envelope(job)

    def use(self, connection: Connection) -> None:
        self.connection = connection
        self.envelope = connection.envelope(self.job)
        if self.track:
            connection.track(self.envelope, self.track)
        if self.rank is not None:
            self.prioritize(self.rank)

    def prioritize(self, priority: int | None) -> None:
        self.rank = priority
        self.envelope.payload["priority"] = priority
        self.envelope.encode()

    def keep_status(self, seconds: float) -> None:
        if isinstance(self.job, Foreign):
            raise InvalidJob(
                f"{self.job.name} runs in another program, which keeps no status of it"
            )
        self.track = seconds
        self.connection.track(self.envelope, seconds)

    def heed_open(self) -> None:
        """Belong to the transaction that is open here, where a framework says that there is one."""
        if not self.heeds or self.opened is not None or self.waits or self.transaction is not None:
            return
        opened = open_for(self.connection)
        if opened is None or substitute(self.connection, self.job) is not None:
            return
        self.opened, self.thread, self.waits = opened, threading.get_ident(), True
        if opened.within() is None:
            _unsent.pop(self, None)  # the commit sends it
        opened.on_commit(lambda: _send_heeded(self, opened))

    def heed_none(self) -> None:
        """Belong to no transaction that nobody has named."""
        self.heeds = False
        if self.opened is not None:
            self.opened, self.waits = None, False
            _unsent[self] = True

    def send_in_open(self) -> bool:
        """Push in the transaction that it belongs to, where that is wanted and possible."""
        inside = None if self.opened is None else self.opened.within()
        if inside is None or self.thread != threading.get_ident() or guard.busy():
            return False
        self.opened, self.waits = None, False
        self.send_within(inside)
        return True

    def send(self) -> str:
        if not self.id and after_commit.find_open is not None:
            self.heed_open()
        if self.opened is not None and self.send_in_open():
            return self.id
        if self.waits:
            self.disarmed = False
            return self.envelope.uuid
        if not self.id:
            if self.transaction is not None:
                raise InvalidJob(
                    "a dispatch within an asynchronous transaction is pushed by awaiting it: "
                    "await dispatch(...).within(...)"
                )
            handed = None if self.handed is None else self._under_way()
            return self._push(self.connection) if handed is None else handed.result()
        return self.id

    def is_faked(self) -> bool:
        """Whether a fake takes it."""
        return substitute(self.connection, self.job) is not None

    def sending(self) -> Coroutine[Any, Any, str]:
        """Push without blocking the loop, with what others await just now."""
        is_faked = substitute(self.connection, self.job) is not None
        if is_faked or self.waits or self.id or self.pid != process.own.pid:
            return done(self.send()).outcome()
        handed = self._under_way()
        if handed is None:
            handed = self._hand_over()
            self.handed = weakref.ref(handed)
        return handed.outcome()

    def _under_way(self) -> Handed[str] | None:
        """Give the push that another await has begun, if nobody has heard that it failed."""
        handed = None if self.handed is None else self.handed()
        return None if handed is None or handed.has_failed else handed

    def _hand_over(self) -> Handed[str]:
        if self.connection.context.at_once:
            return send_from_thread(self._handed(None), lambda: self._push(self.connection))
        return send(self._handed(self._pushing()))

    def _handed(self, call: Call[str] | None) -> Handed[str]:
        return Handed(call, partial(_report, self), context=self.context)

    def _pushing(self) -> Call[str]:
        """Push beside others; gives the id."""
        connection, plan = self.connection, Plan()
        delay = seconds_until(self.delay)
        with sending(connection):
            pushing = connection.pushing(self.job, self.envelope, self.queue, delay)
            connection.context.plan_push(pushing, plan)
            (result,) = yield Apply(connection.backend, (plan,))
            holder = connection.context.pushed(pushing, plan, result)
        connection.tell(self.job, pushing, holder)
        self.id = holder or self.envelope.uuid
        return self.id

    def send_within(self, transaction: object) -> str:
        """Push in a transaction, which is not waited for."""
        return self._push(joined(self.connection, transaction, self.job))

    def _push(self, connection: Connection) -> str:
        if self.pid != process.own.pid:
            raise InvalidJob("the dispatch belongs to the process that made it, not to a fork")
        delay = seconds_until(self.delay) if self.delay else 0.0
        self.id = connection.push_envelope(self.job, self.envelope, self.queue, delay)
        return self.id

    def refuse_both(self, *, waits: bool) -> None:
        """Raise `InvalidJob` where it is pushed otherwise already."""
        if (self.waits and not waits) or (self.transaction is not None):
            raise InvalidJob(
                "a job is dispatched within a transaction, which commits it with its rows, or "
                "after_commit, which pushes it then: one of them, once"
            )
        if self.id and not waits:
            raise InvalidJob("the dispatch has been pushed already: within is in place of send")


class _Disarming:
    """Disarms a pending dispatch when what it surrounds raises."""

    __slots__ = ("_draft",)

    def __init__(self, draft: _Draft) -> None:
        self._draft = draft

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._draft.disarmed = True
            _unsent.pop(self._draft, None)


_JOBS = (JobDefinition, Foreign)


def check_job(job: object) -> None:
    """Raise `InvalidJob` for what is no job."""
    if not isinstance(job, _JOBS):
        raise no_job(job)


def no_job(given: object) -> InvalidJob:
    """Give the error for what is no job."""
    shown = given.__name__ if isinstance(given, type) else type(given).__name__
    hint = f"{shown}(...)" if isinstance(given, type) else "a Queueable"
    return InvalidJob(f"dispatch takes a job, not {shown}: give {hint}")


# -- dropped dispatches ---------------------------------------------------------------------------


_LONGEST_PAUSE = 10.0
_unsent: dict[_Draft, bool] = {}
"""What is pushed when it goes out of scope."""


def unsent() -> list[_Draft]:
    """Give the dispatches that are pushed when they go out of scope."""
    return list(_unsent)


def send_unsent(draft: _Draft) -> None:
    """Push a dispatch at once that would be pushed when it goes out of scope."""
    if _unsent.pop(draft, False):
        _push(draft)


def flush() -> None:
    """Wait until all that was dispatched on event loops, or dropped, is pushed or reported."""
    pusher.wait(everything=True)


@atexit.register
def send_dropped() -> None:
    """Push now whatever is unsent: the process ends."""
    ended = True
    while own := [draft for draft in unsent() if draft.pid == process.own.pid]:
        for draft in own:
            _drop(draft)
        ended = pusher.wait()
        if not ended:
            for draft in own:
                if _unsent.pop(draft, False):
                    _report(draft, BackendUnavailable("the push of another one does not end"))
    if ended:
        pusher.wait(everything=True)  # also for those whose push had begun
    tell_unheard()


def _send_heeded(draft: _Draft, opened: OpenTransaction) -> None:
    """Push, after its commit, what belongs to a transaction; what goes wrong is reported.

    It is in place when the commit returns, unless the backend does not answer: then it is tried
    again as a dropped dispatch is.
    """
    if draft.opened is not opened or draft.pid != process.own.pid:
        return
    draft.opened, draft.waits, draft.heeds = None, False, False
    _unsent.pop(draft, None)
    if draft.disarmed:
        return
    try:
        draft.context.run(draft.send)
    except BackendUnavailable:
        _unsent[draft] = True
        _drop(draft)
    except Exception as error:  # noqa: BLE001 (the transaction is committed: nobody is to hear it)
        _report(draft, error)


def _send_committed(draft: _Draft) -> None:
    """Have a dispatch pushed that waited for a commit, if no call on it has raised."""
    draft.waits = False
    if not draft.disarmed:
        _unsent[draft] = True
        _drop(draft)


def _drop(draft: _Draft) -> None:
    """Have a dispatch pushed that went out of scope, wherever the garbage collector happens to run.

    The pusher does it; only what needs no backend is done at once: what a fake takes, and the job
    of a sync connection, which runs in the thread that dispatched it.
    """
    if draft.opened is not None:
        _drop_in_open(draft)
    elif draft.pid == process.own.pid and not _done_here(draft):
        pusher.put(partial(draft.context.run, send_unsent, draft))
    elif _unsent.pop(draft, False) and draft.pid == process.own.pid:
        error = _push(draft)
        if isinstance(error, Interruption):  # it is for the job that dispatched this one
            guard.defer(error)


def _drop_in_open(draft: _Draft) -> None:
    """Push in the transaction that it belongs to; where that cannot be here, its commit does."""
    _unsent.pop(draft, None)
    try:
        if draft.pid == process.own.pid:
            draft.send_in_open()
    except Exception as error:  # noqa: BLE001 (nothing can be raised from here)
        _report(draft, error)


def _done_here(draft: _Draft) -> bool:
    if substitute(draft.connection, draft.job) is not None:  # a fake, for which no loop has to wait
        return True
    may_run = not guard.busy() and not execution.on_a_running_loop()
    return draft.connection.settings.driver == "sync" and may_run


def _push(draft: _Draft) -> BaseException | None:
    """Push, as often as the connection says; what goes wrong is reported, and given."""
    try:
        _push_patiently(draft)
    except BaseException as error:  # noqa: BLE001 (nothing can be raised from here)
        _report(draft, error)
        return error
    return None


def _push_patiently(draft: _Draft) -> None:
    for attempt in range(draft.connection.settings.push_retries + 1):
        try:
            draft.send()
        except BackendUnavailable:
            if attempt == draft.connection.settings.push_retries:
                raise
            pusher.beat()
            time.sleep(min(_LONGEST_PAUSE, 0.1 * 2**attempt))
        else:
            return


def _report(draft: _Draft, error: BaseException) -> None:
    queue = draft.queue or draft.job.queue or draft.connection.default_queue
    payload, delay = draft.envelope.payload, _seconds(draft.delay)
    what = f"{payload['displayName']} {draft.envelope.uuid} was dispatched and dropped, and"
    lost.tell(what, [Unpushed(draft.connection, queue, draft.job, payload, delay)], error)


def _seconds(delay: When) -> float:
    try:
        return seconds_until(delay)
    except (TypeError, ValueError):
        return 0.0
