"""A reserved job: what it is, and how its reservation is settled, once."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qframe import membership, payload, sealing, tail, timing, tracebacks, tracking, unique
from qframe.contracts import (
    Capability,
    FailedJob,
    FailedStore,
    History,
    Job,
    Note,
    State,
)
from qframe.drivers import following
from qframe.exceptions import (
    InvalidPayload,
    JobAlreadySettled,
    JobFailedByHand,
    LeaseLost,
    QframeError,
)
from qframe.membership import Member
from qframe.tail import Step
from qframe.tracking import Tracking
from qframe.unique import Lock

if TYPE_CHECKING:
    from qframe.drivers.base import BaseQueue
    from qframe.queueable import Queueable

log = logging.getLogger("qframe")

_ENDS = {"deleted", "failed"}


class BaseJob(Job):
    """A reservation: settled once, fenced by the driver's steps, each saying whether it applied."""

    noted: Note | None = None
    """What the step that settles now is to note, where the queue is `noting`."""
    _tracking: Tracking | None = None
    _asked = False
    _late: Note | None = None
    """The start of a tracked job that has not been noted so far."""
    _lock: Lock | None = None
    _chain: str | None = None
    _place: Member | None = None
    _looked = False
    uncounted = False
    """Whether its batch is not to count its removal: its chain goes on, or has gone on before."""
    ends_in_failure = False
    """Whether its deletion is no success: it was cancelled."""
    _prolonged_at = 0.0

    def __init__(
        self, connection: BaseQueue, queue: str, identity: str | None, raw: bytes, attempts: int
    ) -> None:
        self.connection = connection
        self.connection_name = connection.name
        self.queue = queue
        if identity is not None:  # else the driver makes it when asked for
            self.id = identity
        self.raw_body = raw
        self.started = False
        self.failed_with = None
        self._attempts = attempts
        self._state = ""
        # A renewal comes from another thread and must not overtake a settle.
        self._moving = threading.Lock()
        self._payload: dict[str, Any] | None = None

    # -- the driver's steps: each gives False, and changes nothing, when the lease was lost -------

    @abstractmethod
    def _delete(self) -> bool: ...

    @abstractmethod
    def _release(self, delay: float, history: History) -> bool: ...

    @abstractmethod
    def _give_back(self, delay: float, history: History) -> bool: ...

    @abstractmethod
    def _renew(self) -> bool: ...

    def _recover(self, history: History) -> bool:
        """Make it ready in its old place, or before the others."""
        return self._release(0, history)

    def hand_over(self, step: Step) -> bool | None:
        """Delete the job and make the step to the next link of its chain, all or nothing.

        None, and nothing is done, where the chain has changed.
        """
        return following.hand_over_apart(self, step)

    def _bury(self) -> bool:
        raise self.connection.cannot(Capability.BURY)

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        store.add(record)
        return self._delete()

    # -- what it is -----------------------------------------------------------------------------

    @property
    def payload(self) -> dict[str, Any]:
        if self._payload is None:
            self._payload = payload.parse(self.raw_body)
        return self._payload

    def data_for(self, job_class: type[Queueable]) -> Any:  # noqa: ANN401 (any JSON value)
        data = self.payload.get("data")
        if type(data) is dict and sealing.KEY in data and job_class.opens(data):
            return self.connection.keyring.opened(str(self.payload.get("job")), data)
        return data

    @property
    def uuid(self) -> str:  # type: ignore[override] # read from the payload when asked for
        return self._own_uuid or made_up_uuid(self.connection_name, self.queue, self.id)

    @property
    def _own_uuid(self) -> str:
        """The uuid in the payload, "" where there is none."""
        try:
            uuid = self.payload.get("uuid")
        except InvalidPayload:
            return ""
        return uuid if isinstance(uuid, str) else ""

    @property
    def _id_may_recur(self) -> bool:
        """Whether another message may come to have the same id."""
        return True

    @cached_property
    def record_uuid(self) -> str:
        """What its failure is recorded as: a name made up may be that of another job's record."""
        if self._own_uuid or not self._id_may_recur:
            return self.uuid
        return f"{self.uuid}@{secrets.token_hex(4)}"

    @property
    def name(self) -> str:  # type: ignore[override] # read from the payload when asked for
        try:
            return payload.display_name(self.payload)
        except InvalidPayload:
            return "(not a payload)"

    @property
    def history(self) -> History:
        return History()

    def attempts(self) -> int:
        return self._attempts

    # -- settling -------------------------------------------------------------------------------

    def delete(self) -> None:
        tracked = self.tracking
        note = None if tracked is None else tracked.ended(self._attempts, tracked.end)
        chain = self.chain
        if chain is None or self.ends_in_failure:
            self._settle("deleted", lambda: following.remove(self), note)
        elif tail.waits_for_batch(self.payload) and following.has_begun(self):
            self.uncounted = True
            self._settle("deleted", self._delete, note)
        else:
            self._settle("deleted", lambda: following.pass_on(self, chain), note)

    @property
    def defers(self) -> bool:
        return self.chain is None and (self._place is None or self.connection.noting)

    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        del priority  # most backends have none
        delay = timing.seconds_until(delay)
        tracked = self.tracking
        note = (
            None if tracked is None else tracked.ended(self._attempts, State.RELEASED, wait=delay)
        )
        self._settle("released", lambda: self._release(delay, self.history.ended("released")), note)

    def retry(self, delay: float, how: str, error: str) -> None:
        self._again(lambda history: self._release(delay, history), delay, how, error)

    def recover(self, how: str, error: str) -> None:
        self._again(self._recover, 0, how, error)

    def _again(self, step: Callable[[History], bool], delay: float, how: str, error: str) -> None:
        history = self.history.ended(how, error)
        note = None
        tracked = self.tracking
        if tracked is not None:
            tracked.error(error)
            note = tracked.ended(self._attempts, State.RELEASED, wait=delay)
        self._settle("released", lambda: step(history), note)

    def give_back(self, delay: float = 0, *, refused: bool = False) -> None:
        if self.started and Capability.UNCOUNTED not in self.connection.capabilities:
            raise self.connection.cannot(Capability.UNCOUNTED)
        history = self.history.without_last() if self.started else self.history
        if refused:
            history = history.refused()
        note = None
        tracked = self.tracking if self.started else None
        if tracked is not None:
            tracked.remark("no worker knew the job" if refused else "given back")
            note = tracked.ended(self._attempts, State.WAITING, uncounted=True, wait=delay)
        self._settle("given back", lambda: self._give_back(delay, history), note)

    def bury(self) -> None:
        tracked = self.tracking
        note = None if tracked is None else tracked.ended(self._attempts, State.BURIED)
        self._settle("buried", self._bury, note)

    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        store = self.connection.failed_store
        if store is None:
            raise QframeError(f"the connection {self.connection_name!r} has no failed store")
        error = error or JobFailedByHand(f"{self.name} failed itself")
        record = self.failure(error, counted=ran or not self.started)
        note = None
        tracked = self.tracking
        if tracked is not None:
            tracked.error(error)
            uncounted = self.started and not ran
            note = tracked.ended(self._attempts, State.FAILED, uncounted=uncounted)
        self._settle("failed", lambda: following.fail(self, record, store, error), note)
        self.failed_with = error

    def failure(self, error: BaseException, *, counted: bool) -> FailedJob:
        """Build what the failed store keeps."""
        history = self.history
        if not counted:
            history = history.without_last()
        elif self.started:
            history = history.ended("error", tracebacks.brief(error, 500))
        return FailedJob(
            uuid=self.record_uuid,
            connection=self.connection_name,
            queue=self.queue,
            payload=self.raw_body,
            exception=tracebacks.full(error),
            name=self.name,
            attempts=self._attempts if counted else self._attempts - 1,
            history=history,
            failed_at=time.time(),
        )

    def renew(self) -> None:
        with self._moving:
            if not self._state and not self._renew():
                self.mark("lost")
            if self._state:
                raise self._unsettleable()

    def confirm(self) -> None:
        return

    def mark(self, state: str) -> None:
        """Note how the reservation ended, for a driver that settled it in an exchange."""
        self._state = state

    def _settle(self, state: str, step: Callable[[], bool], note: Note | None = None) -> None:
        with self._moving:
            if self._state:
                raise self._unsettleable()
            self.noted = note if self.connection.noting else None
            applied = step()
            self.mark(state if applied else "lost")
            if not applied:
                raise self._unsettleable()
        if note is not None and self.noted is None:
            self._write_note(note)
        if not self.connection.noting and state in _ENDS and self.lock is not None:
            self.connection.free(self.lock)

    def _unsettleable(self) -> JobAlreadySettled | LeaseLost:
        if self._state == "lost":
            return LeaseLost(f"{self.name} {self.uuid}: its lease had passed to another worker")
        return JobAlreadySettled(f"{self.name} {self.uuid} was already {self._state}")

    # -- the lock of a unique job ---------------------------------------------------------------

    @property
    def lock(self) -> Lock | None:
        """The lock of a unique job, or the token of a debounced one; None of any other."""
        if not self._looked:
            self._look()
        return self._lock

    def _look(self) -> None:
        """Read once what the payload says of other jobs."""
        self._looked = True
        try:
            message = self.payload
        except InvalidPayload:
            return
        if unique.KEY in message:
            self._lock = unique.of_payload(message)
        if tail.KEY in message and Capability.RESERVE in self.connection.capabilities:
            self._chain = tail.chain_of(message)
        if membership.KEY in message:
            self._place = membership.member_of(message)

    @property
    def lock_at_end(self) -> Lock | None:
        """The lock that the step which removes the job is to free."""
        lock = self.lock
        return None if lock is None or lock.is_token or not self.connection.noting else lock

    @property
    def lock_at_start(self) -> Lock | None:
        """The lock that the step which starts the job is to free."""
        lock = self.lock
        if lock is None or lock.until != unique.STARTED or not self.connection.noting:
            return None
        return lock

    # -- its chain and its batch ----------------------------------------------------------------

    @property
    def chain(self) -> str | None:
        """The chain the job is a link of."""
        if not self._looked:
            self._look()
        return self._chain

    @property
    def member(self) -> Member | None:
        """The member of a batch the job is."""
        if not self._looked:
            self._look()
        return self._place

    @property
    def member_at_end(self) -> Member | None:
        """The member that the step which removes the job is to count."""
        return None if self.uncounted or not self.connection.noting else self.member

    def is_over(self) -> bool:
        chain = self.chain
        if chain is None or (self.connection.noting and not self._attempts):
            return False
        return following.is_over(self, chain)

    def is_replaced(self) -> bool:
        lock = self.lock
        if lock is None or not lock.is_token:
            return False
        try:
            store = self.connection.lock_store()
            last = None if store is None else store.get(lock.key)[0]
        except QframeError as error:
            log.warning("%s is run: nobody knows of a later dispatch: %s", self.name, error)
            return False
        return last is not None and last != lock.uuid

    def _prolong(self, lock: Lock) -> None:
        """Let the lock of a job that runs on not end before the job."""
        if lock.until != unique.HANDLED or time.monotonic() < self._prolonged_at:
            return
        self._prolonged_at = time.monotonic() + lock.seconds / 3
        try:
            store = self.connection.lock_store()
            if store is not None and not lock.prolong(store):
                log.debug("%s %s is no longer alone: its lock had ended", self.name, self.uuid)
        except QframeError as error:
            self._prolonged_at = 0.0
            log.warning("%s: the lock cannot be prolonged: %s", self.name, error)

    # -- the status of a tracked job ------------------------------------------------------------

    @property
    def tracking(self) -> Tracking | None:
        """What is noted of this job; None where it is not tracked."""
        if not self._asked:
            self._asked = True
            try:
                asks = tracking.KEY in self.payload
            except InvalidPayload:
                asks = False
            if asks and Capability.RESERVE in self.connection.capabilities:
                self._tracking = tracking.of_payload(self.payload, self.connection_name, self.queue)
        return self._tracking

    def deletion_note(self) -> Note | None:
        """Give what the step that deletes the job is to note, where the queue is `noting`."""
        tracked = self.tracking
        if tracked is None or not self.connection.noting:
            return None
        return self.noted or tracked.ended(self._attempts, tracked.end)

    def progress(self, done: float, text: str = "") -> None:
        tracking.checked_progress(done, text)
        if self.tracking is not None and self.started and not self._state:
            self._note_progress(self.tracking.progress(done, text))

    def keep_result(self, result: Any) -> None:  # noqa: ANN401 (whatever the job gave)
        if self.tracking is not None and result is not None:
            self.tracking.result(*tracking.as_json(result))

    def ends_as(self, state: State, remark: str) -> None:
        self.ends_in_failure = state is State.CANCELLED
        if self.tracking is not None:
            self.tracking.ends_as(state, remark)

    def note_start(self) -> None:
        if self.tracking is not None and not self.connection.notes_starts:
            self._late = self.tracking.running(self._attempts)
        lock = self.lock
        if lock is not None and lock.until == unique.STARTED and not self.connection.noting:
            self.connection.free(lock)

    def note_end(self) -> None:
        if self.tracking is not None and not self.connection.noting and self.is_deleted:
            self._write_note(self.tracking.ended(self._attempts, self.tracking.end))
        if self.lock is not None and not self.connection.noting and self.is_deleted:
            self.connection.free(self.lock)

    def catch_up(self) -> None:
        if self.tracking is not None and not self._state:
            self._note_late()
            self._note_progress(self.tracking.held_back())
        if self.lock is not None and not self._state:
            self._prolong(self.lock)

    def _write_note(self, note: Note) -> None:
        """Write a note beside the job's move; where that fails, only the status is out of date."""
        try:
            store = self.connection.status_store()
            if store is not None:
                store.write(note)
        except QframeError as error:
            log.warning("the status of %s %s cannot be written: %s", self.name, self.uuid, error)

    def _note_late(self) -> None:
        """Note the start of a job that runs on, unless it is settled meanwhile."""
        with self._moving:
            note, self._late = self._late, None
            if note is not None and not self._state:
                self._write_note(note)

    def _note_progress(self, note: Note | None) -> None:
        if note is None or self.tracking is None:
            return
        self._note_late()
        try:
            store = self.connection.status_store()
            if store is not None:
                store.progress(note)
                self.tracking.wrote(note)
        except QframeError as error:
            log.debug("the progress of %s %s cannot be written: %s", self.name, self.uuid, error)

    @property
    def is_deleted(self) -> bool:
        return self._state in {"deleted", "failed"}

    @property
    def is_released(self) -> bool:
        return self._state in {"released", "given back"}

    @property
    def has_failed(self) -> bool:
        return self._state == "failed"

    @property
    def is_lost(self) -> bool:
        return self._state == "lost"

    @property
    def is_settled(self) -> bool:
        return bool(self._state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.uuid} {self._state or 'reserved'}>"


def uuid_of(raw: bytes) -> str:
    """Give the uuid in a payload, "" where there is none."""
    try:
        uuid = payload.parse(raw).get("uuid")
    except InvalidPayload:
        return ""
    return uuid if isinstance(uuid, str) else ""


def made_up_uuid(connection: str, queue: str, identity: str) -> str:
    """Name a job whose payload has no uuid."""
    return f"{connection}:{queue}:{identity}"
