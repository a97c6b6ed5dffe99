"""One job reserved from beanstalkd."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import greenstalk

from qframe import host, timing
from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.beanstalkd.link import Link
from qframe.drivers.beanstalkd.memos import LeftJob, Memo
from qframe.drivers.beanstalkd.trouble import Cut
from qframe.drivers.beanstalkd.wire import MOST, JobFacts, whole_seconds
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded

if TYPE_CHECKING:
    from qframe.drivers.beanstalkd.queue import BeanstalkdQueue

_NOTHING = History()
_MOMENT = 3.0
_GLANCE = 0.02


class BeanstalkdJob(BaseJob):
    """A job on the connection that reserved it (Laravel's BeanstalkdJob).

    It can be settled and touched there only, and is lost with it. The server lets anybody delete a
    job that nobody has reserved: so before it is deleted, or anything is noted of it, its lease
    must be certain to be ours. It is for half of its time after a touch; then it is touched anew.
    """

    connection: BeanstalkdQueue

    def __init__(
        self,
        connection: BeanstalkdQueue,
        queue: str,
        link: Link,
        number: int,
        raw: bytes,
        facts: JobFacts,
        asked_at: float,
    ) -> None:
        super().__init__(connection, queue, str(number), raw, facts.reserves - 1)
        self.link = link
        self.number = number
        self.facts = facts
        self.priority = facts.priority
        self.in_doubt = ""
        """How it was settled when the connection broke before the answer came."""
        self.memo: Memo | None = None
        self.may_have_memo = False
        """Whether something may be noted of it: it is no job that starts for the first time."""
        self._began = 0.0
        self._history: History | None = None
        self._touched(asked_at)

    @property
    def client(self) -> greenstalk.Client[bytes]:
        """Give greenstalk's client of the connection that holds the job."""
        return self.link.client

    @property
    def raw_job(self) -> greenstalk.Job[bytes]:
        """Give the job as greenstalk has it."""
        return greenstalk.Job(self.number, self.raw_body)

    @property
    def history(self) -> History:
        if self._history is None:
            known = _NOTHING if self.memo is None else self.memo.history
            if not self.started:
                return known
            self._history = known.started(self._attempts, host.NAME, host.pid(), self._began)
        return self._history

    # -- its lease ------------------------------------------------------------------------------

    def _touched(self, at: float) -> None:
        self.sure_until = at + self.facts.ttr / 2
        self.renew_at = at + self.facts.ttr / 3

    def is_sure(self) -> bool:
        """Whether the lease is ours beyond doubt."""
        return self.link.held.get(self.number) is self and self.connection.clock() < self.sure_until

    def is_held(self) -> bool:
        """Whether the lease is ours; asks the server where that is not certain."""
        if self.link.held.get(self.number) is not self:
            return False
        return self.connection.clock() < self.sure_until or self._touch()

    def _touch(self) -> bool:
        asked_at = self.connection.clock()
        ((word, _, _),) = self.link.exchange(b"touch %d\r\n" % self.number, 1)
        if word == b"TOUCHED":
            self._touched(asked_at)
            return True
        self.link.held.pop(self.number, None)
        return False

    def _renew(self) -> bool:
        with guarded(), self.link.lock:
            try:
                return self.link.held.get(self.number) is self and self._touch()
            except BackendUnavailable:
                return False  # the lease went with the connection

    def confirm(self) -> None:
        """Look after the lease while the job runs: has the connection ended, is a touch due?

        The start of a job that runs for a while is noted, should it be the end of its worker.
        """
        with self._moving:
            if self._state:
                return
            if not self._is_well():
                self.mark("lost")
                raise self._unsettleable()
            if self.started and not self.may_have_memo:
                self.may_have_memo = True
                self._note(self._attempts, self.history)

    def _is_well(self) -> bool:
        if not self.link.lock.acquire(blocking=False):
            return True  # somebody talks to the server just now
        try:
            if self.link.held.get(self.number) is not self:
                return False
            if self.link.is_broken():
                self.link.drop()
                return False
        finally:
            self.link.lock.release()
        return self.connection.clock() < self.renew_at or self._renew()

    # -- how it begins --------------------------------------------------------------------------

    def recall(self) -> None:
        """Look up what is noted of a job that may have been started before."""
        self.may_have_memo = True
        self.memo = self.connection.memos.read(self.number, self.uuid)
        if self.memo is not None:
            self._attempts = self.memo.attempts_before(self.facts.reserves)

    def starts(self) -> None:
        """Count the start; noted only where it is not the first, or the server may forget it."""
        self.started = True
        self._attempts += 1
        self._began = time.time()
        if self.may_have_memo:
            self._note(self._attempts, self.history)
            failed = self.memo is not None and self.memo.failed
            if failed:
                self.connection.is_dug_up(failed if isinstance(failed, str) else self.uuid)

    def ticket(self) -> bytes | None:
        known = "" if self.memo is None else self.memo.history.to_json()
        return LeftJob(
            self.number, self.uuid, self.facts.reserves, self._attempts,
            host.pid(), self._began, known,
        ).ticket()  # fmt: skip

    def recollect(self) -> None:
        """Wait a moment for what a pool may note of a worker whose job came back at once."""
        until = time.monotonic() + min(_MOMENT, self.facts.ttr / 3)
        while self.memo is None or not self.memo.is_ended(self.facts.reserves - 1):
            if time.monotonic() > until:
                return
            time.sleep(_GLANCE)
            self.recall()

    # -- how it ends ----------------------------------------------------------------------------

    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        delay = timing.seconds_until(delay)
        whole_seconds(delay)
        if priority is not None:
            self.priority = min(max(0, priority), MOST)
        super().release(delay)

    def deletion(self) -> bytes:
        """Give the command that deletes it."""
        return b"delete %d\r\n" % self.number

    def removed(self) -> bool:
        """Delete it apart from anything else; says whether it was ours."""
        return self._delete()

    def uncount(self, reservations: int) -> None:
        """Leave out reservations that are known to have been no attempts."""
        self._attempts -= reservations

    def is_gone(self) -> None:
        """Forget what was noted of it."""
        if self.may_have_memo:
            self.connection.memos.forget(self.number, self.uuid)

    def _delete(self) -> bool:
        deleted = self._settle_by("delete", self.deletion(), b"DELETED")
        if deleted:
            self.is_gone()
        return deleted

    def _release(self, delay: float, history: History) -> bool:
        return self._back(delay, Memo(self._attempts, self.facts.reserves, history))

    def _give_back(self, delay: float, history: History) -> bool:
        attempts = self._attempts - self.started
        return self._back(delay, Memo(attempts, self.facts.reserves, history))

    def _back(self, delay: float, memo: Memo) -> bool:
        words = self.number, self.priority, whole_seconds(delay)
        return self._settle_by("release", b"release %d %d %d\r\n" % words, b"RELEASED", memo, delay)

    def _bury(self) -> bool:
        return self._bury_with(Memo(self._attempts, self.facts.reserves, self.history))

    def _bury_with(self, memo: Memo) -> bool:
        words = self.number, self.priority
        return self._settle_by("bury", b"bury %d %d\r\n" % words, b"BURIED", memo)

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        with guarded(), self.link.lock:
            if not self.in_doubt and not self.is_held():
                return False  # and nothing is recorded of what another worker has now
        if self.connection.settings.on_failure == "delete":
            return super()._fail(record, store)
        store.add(record)
        self.connection.memos.has_buried(self.number, record.uuid)
        return self._bury_with(Memo(0, self.facts.reserves, failed=record.uuid))

    def _settle_by(
        self, verb: str, command: bytes, done: bytes, memo: Memo | None = None, delay: float = 0
    ) -> bool:
        """Say one command, when the lease is ours; False where it is not."""
        with guarded(), self.link.lock:
            if not self.is_held():
                return self.in_doubt == verb and self._was_done(verb)
            if memo is not None:
                self._note(memo.attempts, memo.history, delay, failed=memo.failed)
            try:
                ((word, _, _),) = self.link.exchange(command, 1)
            except Cut as cut:
                self.in_doubt = verb if cut.sent else ""
                raise
            self.link.held.pop(self.number, None)
            return word == done

    def _was_done(self, verb: str) -> bool:
        """Ask on another connection what became of a job when the answer to `verb` was lost."""
        facts = self.connection.job_facts(self.number)
        if facts is None:
            return verb == "delete"
        if verb == "bury":
            return facts.state == b"buried"
        return verb == "release" and facts.releases > self.facts.releases

    def _note(
        self, attempts: int, history: History, delay: float = 0, *, failed: str | bool = False
    ) -> None:
        memo = Memo(attempts, self.facts.reserves, history, failed)
        self.connection.memos.write(self.number, self.uuid, memo, delay)
