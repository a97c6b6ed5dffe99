"""dispatch: the fluent call that queues a job."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, overload
from uuid import UUID

from qframe import manager
from qframe.contracts.identity import JobId, R_co
from qframe.contracts.transaction import is_async
from qframe.dispatch import pusher
from qframe.dispatch.after_commit import when_committed
from qframe.dispatch.draft import Draft, Moment, drop, send_committed, unsent
from qframe.dispatch.sync import SyncConnection
from qframe.exceptions import InvalidJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.groups import checked
from qframe.jobs.options import check_given, seconds
from qframe.jobs.registry import importing, refuse_while_importing
from qframe.jobs.typed import Handles
from qframe.jobs.uniqueness import once
from qframe.payload.text import one_line, queue_name
from qframe.payload.timing import When, kept_for

R = TypeVar("R")


@overload
def dispatch(job: Handles[R]) -> PendingDispatch[R]: ...


@overload
def dispatch(job: Foreign) -> PendingDispatch[Any]: ...


def dispatch(job: Any) -> PendingDispatch[Any]:
    """Queue a job: `dispatch(SendWelcome(user_id=7)).on_queue("high").delay(10)`.

    The job is checked and its payload built at once, so a bad job raises `InvalidJob` here. It is
    pushed by `.send()`, `.id` or `await`, or when the returned object goes out of scope, as in
    Laravel.
    """
    return PendingDispatch(job)


@overload
def dispatch_sync(job: Handles[R]) -> R: ...


@overload
def dispatch_sync(job: Foreign) -> Any: ...  # noqa: ANN401 (a job of another program)


def dispatch_sync(job: Any) -> Any:
    """Run a job here and now, once. Returns the result of `handle`, or raises its exception."""
    check_job(job)
    queue = manager.default().connection("sync")
    if isinstance(queue, SyncConnection):
        return queue.run(job)
    queue.push(job)
    return None


@overload
def dispatch_if(condition: object, job: Handles[R]) -> PendingDispatch[R] | None: ...


@overload
def dispatch_if(condition: object, job: Foreign) -> PendingDispatch[Any] | None: ...


def dispatch_if(condition: object, job: Any) -> PendingDispatch[Any] | None:
    """Dispatch if `condition` is true. Returns None otherwise."""
    return dispatch(job) if condition else None


@overload
def dispatch_unless(condition: object, job: Handles[R]) -> PendingDispatch[R] | None: ...


@overload
def dispatch_unless(condition: object, job: Foreign) -> PendingDispatch[Any] | None: ...


def dispatch_unless(condition: object, job: Any) -> PendingDispatch[Any] | None:
    """Dispatch unless `condition` is true. Returns None otherwise."""
    return None if condition else dispatch(job)


class PendingDispatch(Generic[R_co]):
    """A job before its push (Laravel's PendingDispatch).

    `send()` pushes it, raises any error and returns the id. If it is dropped unsent, it is pushed
    when it goes out of scope, at interpreter exit at the latest. Python cannot raise there, so a
    failing push is retried and then reported by the event `JobDispatchFailed`, a log record at
    CRITICAL, and `sys.unraisablehook`. `os._exit` and `kill -9` lose unsent jobs. After a call that
    raised, nothing is pushed behind the caller's back.
    """

    __slots__ = ("_draft",)

    # The garbage collector may run inside any call, and in it a finalizer that leaves an error with
    # its traceback behind. That keeps all frames below it until the next collection. So no call
    # leaves `self` in its frame: the dispatch would be pushed behind some eighty later ones.

    def __init__(self, job: Dispatchable) -> None:
        if not isinstance(job, _JOBS):
            raise no_job(job)
        if importing.here:
            refuse_while_importing()
        if pusher.own.tasks_open:
            pusher.make_room()
        self._draft = draft = Draft(job)
        if draft.connection.hooks.find_open is not None:
            draft.join_open()
        del self

    def __del__(self) -> None:
        """Push it, if nobody has."""
        draft = getattr(self, "_draft", None)  # a bad job has none
        if draft is not None and draft in unsent:
            drop(draft)

    def on_connection(self, name: str) -> Self:
        """Use this connection in place of the job's own. Raises `ConfigurationError`."""
        with _Disarming(self._draft):
            self._draft.named = name
            self._draft.place()
        try:
            return self
        finally:
            del self

    def on_queue(self, name: str) -> Self:
        """Use this queue in place of the job's own. Raises `InvalidQueueName`."""
        with _Disarming(self._draft):
            self._draft.queue = queue_name(name)
            if self._draft.connection.places is not None:
                self._draft.place()
        try:
            return self
        finally:
            del self

    def delay(self, delay: When) -> Self:
        """Make the job ready after `delay`: seconds, timedelta or aware datetime."""
        with _Disarming(self._draft):
            seconds(delay)
            self._draft.delay = delay
        try:
            return self
        finally:
            del self

    def track(self, ttl: float | timedelta | None = None) -> Self:
        """Keep the job's status, for `job_status`, `wait_for` and `qframe status`.

        The status is kept for `ttl` seconds (default: the class's `track`, or a day) after each
        update. Raises `InvalidJob` for a job that Laravel runs.
        """
        with _Disarming(self._draft):
            given = ttl if ttl is not None else self._draft.job.track or True
            self._draft.keep_status(seconds(given, kept_for))
        try:
            return self
        finally:
            del self

    def once(self, key: str | int | UUID, *, within: float | timedelta) -> Self:
        """Push nothing if a job of the same name was dispatched with this key shortly before.

        `within` is how long before, in seconds or as a timedelta, by the backend's clock. Whatever
        became of that job, `send()` returns its id, `is_duplicate` is true, and the event is
        `JobDuplicate`. Replaces the class's `once`. Raises `InvalidJob` for what is no key.
        """
        with _Disarming(self._draft):
            name = str(self._draft.envelope.payload["job"])
            self._draft.go_once(once(name, key, within))
        try:
            return self
        finally:
            del self

    def in_group(self, name: str) -> Self:
        """Put the job into a group of its queue, in place of the class's.

        Groups take turns, and `[groups.QUEUE]` says how many jobs of one run at once, in which
        order, and at what rate. Raises `InvalidJob` for what is no name.
        """
        with _Disarming(self._draft):
            self._draft.join(checked(name))
        try:
            return self
        finally:
            del self

    def priority(self, priority: int) -> Self:
        """Set a priority in place of the class's: 0 is first, 4294967295 is last.

        1024 is what jobs without a priority have. Beanstalkd has a level for each number; the
        others have ten levels, which age (docs/features/priorities.md).
        """
        with _Disarming(self._draft):
            check_given("dispatch", "priority", priority)
            self._draft.prioritize(priority)
        try:
            return self
        finally:
            del self

    def after_commit(self, transaction: object) -> Self:
        """Push the job after the commit of the current transaction, never after a rollback.

        `transaction` is a SQLAlchemy `Session` (also an `AsyncSession` or a `scoped_session`), or a
        function that takes a function to call then, as Django's `transaction.on_commit`. If a
        session has joined a transaction of its connection, that one counts. Without an open
        transaction the job is pushed at once. `send()` and `.id` return the id and push nothing.

        After a commit nothing can be raised: a failing push is retried and then reported, like that
        of a dropped dispatch. If the process dies between the commit and the push, the job is lost.
        """
        with _Disarming(self._draft):
            draft = self._draft
            draft.wait_for_commit()
            try:
                when_committed(transaction, lambda: send_committed(draft), lambda: draft.is_faked)
            except BaseException:
                draft.moment = Moment.THEN  # the registration has no effect: a later `send` pushes
                raise
        return self

    def before_commit(self) -> Self:
        """Push the job at once, whatever transaction is open (Laravel's `beforeCommit`).

        That is the default, except where a framework makes dispatches wait: in Django.
        """
        with _Disarming(self._draft):
            self._draft.leave_open()
        try:
            return self
        finally:
            del self

    def within(self, transaction: object) -> Self:
        """Push the job in a transaction of the program: committed with it, or not at all.

        `transaction` is SQLAlchemy's `Session` or `Connection`, a DBAPI connection or cursor
        (psycopg, sqlite3, PyMySQL, mysqlclient) or Django's `connection`, on the database of the
        jobs. Call it last. For an `AsyncSession` or `AsyncConnection`, write `await
        dispatch(job).within(session)`; without the await nothing is pushed, and it is reported as a
        failed dropped dispatch. A job of the sync connection runs at once.

        If the jobs are elsewhere, the transaction stores them in the configured outbox, and a relay
        sends them.

        Raises `InvalidTransaction` for anything else, in autocommit mode or on another database;
        `Unsupported` if the jobs are in no database and no outbox is configured; and
        `BackendUnavailable`.
        """
        with _Disarming(self._draft):
            if is_async(transaction):
                self._draft.go_within(transaction)
            else:
                self._draft.go_within(None)
                self._draft.send_within(transaction)
        return self

    def send(self) -> JobId[R_co]:
        """Push the job. Returns its id, a text; a second call returns the same id.

        For a duplicate, of a unique job or by `once`, that is the id of the other job.

        Raises `BackendUnavailable`, `PayloadTooLarge`, or on the sync connection the job's
        exception.
        """
        draft = self._draft
        unsent.pop(draft, None)
        if pusher.own.tasks_open:
            pusher.wait_for_tasks()
        return draft.send()

    @property
    def id(self) -> JobId[R_co]:
        """The job's id; pushes the job as `send` does."""
        return self.send()

    @property
    def is_duplicate(self) -> bool:
        """Whether another job is in its place (unique, `once`); pushes this one if not."""
        return self.send() != self._draft.envelope.uuid

    def __await__(self) -> Generator[Any, None, JobId[R_co]]:
        """Push the job without blocking the event loop. Returns its id."""
        self._draft.keep()
        return self._draft.send_on_loop().__await__()

    def __repr__(self) -> str:
        state = "sent" if self._draft.id else "pending"
        return f"<{type(self).__name__} {self._draft.envelope.payload['displayName']} {state}>"


class _Disarming:
    """Disarms a pending dispatch if the body raises."""

    __slots__ = ("_draft",)

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._draft.disarm()


_JOBS = (JobDefinition, Foreign)


def check_job(job: object) -> None:
    """Raise `InvalidJob` unless `job` is a job."""
    if not isinstance(job, _JOBS):
        raise no_job(job)


def no_job(given: object) -> InvalidJob:
    """Return the error for an object that is not a job."""
    shown = one_line((given if isinstance(given, type) else type(given)).__name__, 60)
    if isinstance(given, type):
        hint = f"give {shown}(...)"
    elif isinstance(own := inspect.getattr_static(given, "job_class", None), type):
        hint = f"give {own.__qualname__}.job(...)"
    elif inspect.isfunction(given):
        hint = f"put @queueable above {given.__name__}, and give {given.__name__}.job(...)"
    else:
        hint = "give a Queueable; of a @queueable function f that is f.job(...), as f(...) runs it"
    return InvalidJob(f"dispatch takes a job, not {shown}: {hint}")
