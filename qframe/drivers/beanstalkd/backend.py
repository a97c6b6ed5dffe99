"""BeanstalkdBackend: tubes as queues; one message at a time, and a wait that takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.browsing import Found, Page, Place
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    Delete,
    OfReservation,
    Push,
    Reservation,
    Result,
    Step,
)
from qframe.drivers.attempt_log import AttemptLog
from qframe.drivers.beanstalkd import checks, tubes
from qframe.drivers.beanstalkd.connection import (
    BeanstalkdConnection,
    BeanstalkdConnections,
    Reply,
    where,
)
from qframe.drivers.beanstalkd.errors import Cut
from qframe.drivers.beanstalkd.job import BeanstalkdJob, LeftJob
from qframe.drivers.beanstalkd.protocol import RESERVE, queue_of, tube_of
from qframe.drivers.beanstalkd.push import push
from qframe.drivers.beanstalkd.settings import BeanstalkdSettings
from qframe.drivers.beanstalkd.wait import Waits
from qframe.drivers.guard import guarded
from qframe.drivers.sockets import prepare_names
from qframe.exceptions import BackendUnavailable
from qframe.payload.text import is_queue_name


class BeanstalkdBackend(Backend):
    """Messages in the tubes of a beanstalkd (Laravel's BeanstalkdQueue).

    A queue delivers messages by priority, then in the order of the pushes, also released ones. The
    server counts every reservation; which of them were attempts, and the notes, are facts in
    another backend (not needed for messages that succeed at first). A reservation takes the full
    lease at once: the time to run with which the message was pushed, in whole seconds. A repeated
    push is another message.
    """

    settings_model = BeanstalkdSettings
    capabilities = ~(
        Capability.AHEAD
        | Capability.COUNTS
        | Capability.ORDER
        | Capability.SEARCH
        | Capability.FACTS
        | Capability.JOINT
        | Capability.WITHIN
        | Capability.OUTBOX
    )
    needs_facts = True

    def __init__(
        self,
        name: str,
        settings: BeanstalkdSettings,
        facts: Callable[[], Backend],
        timing: Timing | None = None,
    ) -> None:
        prepare_names()
        self.settings = settings
        self.timing = timing or Timing()
        self._lease = math.ceil(settings.retry_after)
        self._connections = BeanstalkdConnections(settings, self.clock)
        self._log = AttemptLog(f"beanstalkd:{name[:120]}", facts)
        self._waits = Waits(self._connections, settings, self._jobs)

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        for step in steps:
            _check(step)
        results: list[Result] = []
        pushes: list[Push] = []
        with guarded:
            for step in steps:
                if step.reservation is None:
                    pushes += step.operations  # type: ignore[arg-type] # looked at by _check
                    results.append(APPLIED)
                else:
                    self._push(pushes)
                    pushes = []
                    results.append(step.reservation.operate(step.operations[0]))  # type: ignore[attr-defined] # as well
            self._push(pushes)
        return results

    def _push(self, pushes: Sequence[Push]) -> None:
        if pushes:
            push(self._talk(), pushes, self._lease, self.settings.priority)

    # -- reserving --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        del limit  # each reservation counts, so none is made ahead
        with guarded:
            connection = self._connections.work()
            done = _deletable(first, connection) if queues else []
            results = [] if done else self.apply(*first)
            with connection.lock:
                jobs = self._waits.outcome(connection, queues)
                if jobs is None:
                    try:
                        jobs = self._look(connection, queues, done, results)
                    except BackendUnavailable as error:
                        for each in done:
                            each.may_be_deleted()
                        error.in_doubt = False  # the next call asks the server about `done`
                        if done or not isinstance(error, Cut):
                            raise
                        # the server was restarted
                        jobs = self._look(connection, queues, (), results)
                return [*jobs], results

    def _look(
        self,
        connection: BeanstalkdConnection,
        queues: Sequence[str],
        done: Sequence[BeanstalkdJob],
        results: list[Result],
    ) -> list[BeanstalkdJob]:
        """Look for a message in one tube after another; first delete the finished jobs.

        It requests the message's stats in the same exchange, by the number that it will have if
        messages come in the order they were pushed: that saves half of the time.
        """
        connection.open()
        for queue in queues:
            commands = [job.deletion for job in done]
            commands += connection.watch(tube_of(queue))
            commands.append(RESERVE)
            guess = connection.next_number
            if guess:
                commands.append(b"stats-job %d\r\n" % guess)
            asked_at = self.clock()
            replies = connection.exchange(commands)
            stats_reply = replies.pop() if guess else None
            reply = replies.pop()
            for job, answer in zip(done, replies, strict=False):
                results.append(job.is_deleted(answer))
            done = ()
            if reply[0] == b"RESERVED":
                return self._jobs(connection, reply, asked_at, stats_reply)
        return []

    def _jobs(
        self,
        connection: BeanstalkdConnection,
        reply: Reply,
        asked_at: float | None = None,
        stats_reply: Reply | None = None,
    ) -> list[BeanstalkdJob]:
        """Make a job of a reservation, unless its lease has already ended."""
        number = int(reply[1][1])
        now = self.clock() if asked_at is None else asked_at
        guessed = connection.came(number)
        stats = connection.stats_of(number, stats_reply if guessed else None)
        if stats is None:
            return []
        if asked_at is None:
            asked_at = now + stats.left - stats.ttr
        job = BeanstalkdJob(reply, stats, asked_at, connection, self._connections, self._log)
        # A message older than the server's start may have been reserved before, and the server
        # forgot.
        if stats.reserves > 1 or now - stats.age < connection.server.up_since:
            job.recall()
        return [job]

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        """Wait in a reserve, which takes the message; the next `reserve` returns it."""
        self._waits.wait(queues, timeout, wake)

    def adopt(self, fence: bytes) -> Reservation | None:
        """Return a reservation in which the end of an attempt can still be recorded.

        The server delivers the message to other workers at once. If one of them has it already, a
        `Renew` of its held reservation learns what was recorded meanwhile.
        """
        number = int(fence.split(maxsplit=1)[0])
        with guarded:
            talk = self._connections.talk
            (word, _, raw), stats_reply = talk.exchange(
                [b"peek %d\r\n" % number, b"stats-job %d\r\n" % number]
            )
            stats = talk.stats_of(number, stats_reply)
            if word != b"FOUND" or stats is None:
                return None
            job = LeftJob(fence, raw, stats, self._log)
        return job if job.stands else None

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        with guarded:
            return tubes.sizes(self._talk(), tube_of(queue))[0]

    def queues(self) -> list[str]:
        with guarded:
            found = map(queue_of, tubes.filled(self._talk()))
        return sorted(filter(is_queue_name, found))

    def purge(self, queue: str) -> int:
        with guarded:
            return tubes.purge(self._talk(), tube_of(queue))

    def kick(self, queue: str) -> int:
        with guarded:
            return tubes.kick(self._talk(), tube_of(queue))

    def wake(self, queue: str, handle: str) -> bool:
        """Kick the message, unless it is buried or another one that a restart gave its number."""
        number = int(handle)
        with guarded:
            talk = self._talk()
            stats = talk.stats_of(number)
            if stats is None or stats.state != b"delayed" or stats.tube != tube_of(queue):
                return False
            ((word, _, _),) = talk.exchange([b"kick-job %d\r\n" % number])
            return word == b"KICKED"

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        """List at most one message: the server shows only the first one of a place."""
        with guarded:
            first = None if after else tubes.first(self._talk(), tube_of(queue), place)
        if first is None or limit < 1:
            return Page([], "")
        number, raw = first
        return Page([Found(queue, raw, place, number)], "")

    def _talk(self) -> BeanstalkdConnection:
        talk = self._connections.talk
        talk.open()
        return talk

    # -- other calls ------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:
        tube_of(name)

    def longest_message(self) -> int | None:
        with guarded:
            return self._talk().server.max_job

    def described(self) -> str:
        return where(self.settings)

    def check(self) -> Health:
        with guarded:
            talk = self._talk()
            warnings = tuple(checks.warnings(talk, self.settings))
            return Health(f"beanstalkd {talk.server.version}", warnings)

    def close(self) -> None:
        with guarded:
            # the server then returns what the connection has reserved
            with suppress(BackendUnavailable):
                self._waits.end(self._connections.work())
            self._connections.close()


_OURS = BeanstalkdJob | LeftJob


def _check(step: Step) -> None:
    """Raise `TypeError` for a step that this backend cannot apply alone."""
    if step.reservation is None:
        if not all(type(each) is Push for each in step.operations):
            raise TypeError(f"{step!r} is not of messages alone")
    elif not isinstance(step.reservation, _OURS):
        raise TypeError(f"{step.reservation!r} is not of this backend")
    elif len(step.operations) != 1 or not isinstance(step.operations[0], OfReservation):
        raise TypeError(f"{step!r} is not one operation on the reservation")


def _deletable(steps: Sequence[Step], connection: BeanstalkdConnection) -> list[BeanstalkdJob]:
    """Return the jobs to delete, if the steps are only deletions of this connection's jobs."""
    jobs: list[BeanstalkdJob] = []
    for step in steps:
        job = step.reservation
        if not isinstance(job, BeanstalkdJob) or job not in connection.held:
            return []
        deletes = len(step.operations) == 1 and type(step.operations[0]) is Delete
        if not deletes or connection.clock() >= job.sure_until:
            return []
        jobs.append(job)
    return jobs
