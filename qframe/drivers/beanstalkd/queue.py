"""The beanstalkd connection: tubes as queues, one job at a time, and a wait that takes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from qframe.config import BeanstalkdSettings
from qframe.contracts import Capability, FailedJob, FailedStore, Job, Sizes
from qframe.drivers.base import BaseQueue
from qframe.drivers.beanstalkd import checks, operations, putting
from qframe.drivers.beanstalkd.clock import clock
from qframe.drivers.beanstalkd.job import BeanstalkdJob
from qframe.drivers.beanstalkd.link import Link, Reply
from qframe.drivers.beanstalkd.links import Links
from qframe.drivers.beanstalkd.memos import LeftJob, Memos
from qframe.drivers.beanstalkd.trouble import Cut
from qframe.drivers.beanstalkd.waiting import RESERVE, Waits
from qframe.drivers.beanstalkd.wire import JobFacts, queue_in, tube_of, whole_seconds
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded
from qframe.names import is_queue_name, queue_name


class BeanstalkdQueue(BaseQueue):
    """Jobs in the tubes of a beanstalkd (Laravel's BeanstalkdQueue).

    Within a queue jobs come by priority, then in the order they were pushed, also those that were
    released. Every reservation counts in the server; which of them were attempts, and how they
    ended, is noted in the store of the connection, except of jobs that are done at first.
    """

    capabilities = (
        Capability.RESERVE
        | Capability.DELAY
        | Capability.RENEW
        | Capability.FENCE
        | Capability.UNCOUNTED
        | Capability.BURY
        | Capability.WAIT
        | Capability.LIST
        | Capability.SIZE
        | Capability.CLEAR
        | Capability.HISTORY
        | Capability.DURABLE
    )
    settings_model = BeanstalkdSettings
    settings: BeanstalkdSettings
    confirm_within = 0.25
    clock = staticmethod(clock)

    def __init__(self, name: str, settings: BeanstalkdSettings) -> None:
        super().__init__(name, settings)
        self.retry_after = float(math.ceil(settings.retry_after))
        self.ends_lost_jobs = settings.on_lost_connection == "interrupt"
        self.links = Links(settings, self.clock)
        self.waits = Waits(self.links, settings, self._job)
        self.memos = Memos(name, lambda: self.shared_store and self.shared_store())

    # -- pushing --------------------------------------------------------------------------------

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        with guarded():
            link = self._talk()
            for raw, _ in messages:
                self._check_size(raw)
            put = putting.Put(tube_of(queue), whole_seconds(delay), int(self.retry_after))
            if len(messages) == 1:
                return str(put.one(link, messages[0][0], self.settings.priority))
            put.many(link, [raw for raw, _ in messages], self.settings.priority)
            return ""

    def check_queue(self, name: str) -> None:
        tube_of(name)

    def learn_limits(self) -> None:
        with guarded():
            self._talk()

    def _talk(self) -> Link:
        """Give the link jobs are put on, open, its server's limit known."""
        link = self.links.talk()
        link.open()
        self.max_payload = min(self.settings.max_payload, link.facts.max_job)
        return link

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        del limit  # each reservation counts: none is made ahead
        with guarded():
            link = self.links.work()
            with link.lock:
                done = finished if isinstance(finished, BeanstalkdJob) else None
                if done is not None and not (queues and done.link is link and done.is_sure()):
                    self.finish(done, deleted=done.removed())
                    done = None
                job = self._next(link, queues, done)
        return [] if job is None else [job]

    def _next(
        self, link: Link, queues: Sequence[str], done: BeanstalkdJob | None
    ) -> BeanstalkdJob | None:
        if link.waits_for or link.taken is not None:
            nothing_else, job = self.waits.outcome(link, queues)
            if nothing_else or job is not None:
                return job
        try:
            return self._probe(link, queues, done)
        except Cut:
            if done is not None:
                done.in_doubt = "delete"
                raise
        return self._probe(link, queues, None)  # a server that was restarted closed the connection

    def _probe(
        self, link: Link, queues: Sequence[str], done: BeanstalkdJob | None
    ) -> BeanstalkdJob | None:
        """Look for a job in one tube after the other, the first time deleting the one done.

        What the server knows of the job is asked for at once, by the number it will have if jobs
        come in the order they were pushed: that saves half of the time.
        """
        link.open()
        for queue in queues:
            said, count = link.watch((tube_of(queue),))
            said += RESERVE
            if done is not None:
                said = done.deletion() + said
                count += 1
            guess = link.guess()
            if guess:
                said += b"stats-job %d\r\n" % guess
            asked_at = self.clock()
            replies = link.exchange(said, count + (2 if guess else 1))
            if done is not None:
                self._was_deleted(link, done, replies[0])
                done = None
            reply = replies[count]
            if reply[0] == b"RESERVED":
                told = replies[-1] if guess == int(reply[1][1]) else None
                return self._job(link, reply, asked_at, told)
        return None

    def _was_deleted(self, link: Link, done: BeanstalkdJob, reply: Reply) -> None:
        link.held.pop(done.number, None)
        self.finish(done, deleted=reply[0] == b"DELETED")
        if done.is_deleted:
            done.is_gone()

    def _job(
        self, link: Link, reply: Reply, asked_at: float | None, told: Reply | None = None
    ) -> BeanstalkdJob | None:
        """Make a job of a reservation; None when its lease ended before it was looked at."""
        _, words, body = reply
        number = int(words[1])
        link.came(number)
        looked_at = self.clock()
        if told is None:
            (told,) = link.exchange(b"stats-job %s\r\n" % words[1], 1)
        word, _, yaml = told
        if word != b"OK":
            return None
        facts = JobFacts.read(yaml)
        if asked_at is None:
            asked_at = looked_at + facts.left - facts.ttr
        job = BeanstalkdJob(self, queue_in(facts.tube), link, number, body, facts, asked_at)
        link.held[number] = job
        # What there was before the server was started may have been reserved before, forgotten.
        if facts.reserves > 1 or looked_at - facts.age < link.facts.up_since:
            job.recall()
        return job

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        if not isinstance(job, BeanstalkdJob):
            raise TypeError(f"{job!r} is not a job of {self.name!r}")
        with guarded():
            if isinstance(finished, BeanstalkdJob):
                self.finish(finished, deleted=finished.removed())
            with job.link.lock:
                if not job.is_held():
                    job.mark("lost")
                    return False
            job.starts()
        return True

    def explain(self, ticket: bytes, how: str, error: str) -> bool:
        return self.memos.explain(LeftJob.read(ticket), how, error)

    # -- waiting --------------------------------------------------------------------------------

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        """Wait in a reserve, which takes the job: `reserve` gives it, `let_go` gives it back."""
        self.waits.wait(queues, timeout, wake)

    def let_go(self) -> None:
        self.waits.let_go()

    # -- operating ------------------------------------------------------------------------------

    def sizes(self, queue: str | None = None) -> Sizes:
        with guarded():
            return operations.sizes(self.links.talk(), self._tube(queue))

    def queues(self) -> list[str]:
        with guarded():
            names = map(queue_in, operations.tubes(self.links.talk()))
            return sorted(filter(is_queue_name, names))

    def clear(self, queue: str | None = None) -> int:
        with guarded():
            gone: list[bytes] = []
            count = operations.clear(self.links.talk(), self._tube(queue), gone)
        for raw in gone:
            self.free_lock_of(raw)
        return count

    def kick(self, queue: str | None = None) -> int:
        with guarded():
            return operations.kick(self.links.talk(), self._tube(queue))

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        number = self.memos.buried(record.uuid)
        self.push_again(record, payload)
        if number:
            with guarded():
                tube = tube_of(record.queue)
                operations.delete_buried(self.links.talk(), number, tube, record.payload)
            self.memos.has_dug_up(record.uuid)
        return store.forget(record.uuid)

    def is_dug_up(self, uuid: str) -> None:
        """Take a job that was buried as failed, and kicked, off the list of failed jobs."""
        self.memos.has_dug_up(uuid)
        if self.failed_store is not None:
            self.failed_store.forget(uuid)

    def job_facts(self, number: int) -> JobFacts | None:
        """Ask what the server knows of a job; None when there is no such job."""
        with guarded():
            ((word, _, yaml),) = self.links.talk().exchange(b"stats-job %d\r\n" % number, 1)
        return JobFacts.read(yaml) if word == b"OK" else None

    def described(self) -> str:
        return self.links.shown()

    def ping(self) -> str:
        with guarded():
            link = self.links.talk()
            link.exchange(b"list-tube-used\r\n", 1)
            return f"beanstalkd {link.facts.version}"

    def warnings(self) -> list[str]:
        with guarded():
            return checks.warnings(self.links.talk(), self.settings)

    def close(self) -> None:
        with suppress(BackendUnavailable):  # what it took has gone back with the connection then
            self.let_go()
        with guarded():
            self.links.close()

    def _tube(self, queue: str | None) -> bytes:
        return tube_of(queue_name(queue or self.default_queue))
