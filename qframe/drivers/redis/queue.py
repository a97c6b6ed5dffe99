"""The Redis connection: every move of a job is one script on Laravel's keys."""

from __future__ import annotations

import logging
import math
import time
import uuid as uuids
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from qframe import unique
from qframe.config import RedisSettings
from qframe.contracts import (
    BatchStore,
    Cancelling,
    Capability,
    FailedJob,
    FailedStore,
    Job,
    Note,
    Sizes,
    StatusStore,
    Store,
)
from qframe.drivers.base import HOLD, BaseQueue
from qframe.drivers.redis import checks, member
from qframe.drivers.redis.batches import RedisBatchStore, counting
from qframe.drivers.redis.clock import clock
from qframe.drivers.redis.failed import RedisFailedStore
from qframe.drivers.redis.idle import EMPTY, Idle, Taken
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.keys import QueueKeys
from qframe.drivers.redis.link import Link, Reply
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.locks import Step, locked, retaking, taking
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.search import cancelled, cleared
from qframe.drivers.redis.statuses import ARRIVED, Part, RedisStatusStore, noted
from qframe.drivers.redis.store import RedisStore
from qframe.drivers.redis.trouble import is_wrong_type, meaning
from qframe.exceptions import BackendUnavailable, SettleError
from qframe.guard import guarded
from qframe.names import is_queue_name, queue_name
from qframe.unique import Lock

log = logging.getLogger("qframe")

_STEP = 1 / 1048576
"""What keeps the scores of one batch apart; as in the script."""
_CHUNK = 5000
_CHUNK_BYTES = 4_000_000
_REMEMBER = 60.0
_DOUBTS = 1000
_LOOK_AROUND = 30.0
_NOTHING: Sequence[Part] = ()

Group = tuple[list[tuple[bytes, str]], str, float]


class RedisQueue(BaseQueue):
    """Jobs in a list and sorted sets of whole payloads (Laravel's RedisQueue).

    A reserved job is fenced by its bytes and its score, which is new at each reservation. Starts,
    each with the deletion of the job done before, are sent without waiting while leases are certain
    to be ours.
    """

    capabilities = (
        Capability.RESERVE
        | Capability.DELAY
        | Capability.AHEAD
        | Capability.RENEW
        | Capability.FENCE
        | Capability.UNCOUNTED
        | Capability.BURY
        | Capability.WAIT
        | Capability.LIST
        | Capability.SIZE
        | Capability.CLEAR
        | Capability.CANCEL
        | Capability.HISTORY
        | Capability.ATOMIC_FAIL
        | Capability.TAKE_UP
        | Capability.DURABLE
    )
    settings_model = RedisSettings
    settings: RedisSettings
    look_every = 3.5
    confirm_within = HOLD / 4
    clock = staticmethod(clock)

    def __init__(self, name: str, settings: RedisSettings) -> None:
        super().__init__(name, settings)
        self.links = Links(settings)
        self.keys = self.links.keys
        if settings.cluster:  # records and queues are in different slots
            self.capabilities = type(self).capabilities & ~Capability.ATOMIC_FAIL
        self._lease = repr(self.retry_after)
        # The lease begins when the reservation was asked for, or a little later: known to both.
        lease = self.retry_after - HOLD * 2 / 3
        self._from_hold = math.floor(lease / _STEP) * _STEP + _STEP / 2
        self._store = RedisStore(self.links)
        self._failed = RedisFailedStore(self.links)
        self._statuses = RedisStatusStore(self.links)
        self._batches = RedisBatchStore(self.links)
        self.noting = not settings.cluster
        self._idle = Idle(self.links, settings, self.clock)
        self._remembered: dict[str, float] = {}
        self._foreign: set[str] = set()
        self._looked_around = 0.0
        self._mistyped: set[str] = set()
        self._in_doubt: deque[str] = deque(maxlen=_DOUBTS)
        """The last pushes that raised: whoever repeats one may find it there already."""

    # -- pushing --------------------------------------------------------------------------------

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        if len(messages) != 1:
            self.put_groups([(list(messages), queue, delay)])
            return ""
        raw, uuid = messages[0]
        return self._put_one(raw, uuid, queue, delay, None)[0]

    @property
    def notes_starts(self) -> bool:  # type: ignore[override] # for a Cluster it does not
        return self.noting

    def check_queue(self, name: str) -> None:
        self.keys.of(name)

    def put_unique(self, raw: bytes, queue: str, delay: float, lock: Lock) -> str:
        if not self.noting:
            return super().put_unique(raw, queue, delay, lock)
        _, reply = self._put_one(raw, lock.uuid, queue, delay, taking(lock, delay))
        return reply.decode() if isinstance(reply, bytes) else ""

    def _put_one(
        self, raw: bytes, uuid: str, queue: str, delay: float, step: Step | None
    ) -> tuple[str, Reply]:
        """Store a message, with its lock; gives its name, and what the script said."""
        if uuid:
            stored, identity = member.sent(raw), uuid
        else:
            identity = uuids.uuid4().hex
            stored = member.identified(raw, identity)
        keys = self.keys.of(queue)
        around = self._around(queue)
        tracked = self.noting and b'"track"' in raw
        notes = self.queued_notes([(raw, uuid)], queue, delay) if tracked else []

        def again() -> list[Command]:
            command = self._again(keys, delay, [(stored, identity)], notes)
            return [command if step is None else self._locked(command, step), *around]

        if self._in_doubt and identity in self._in_doubt:
            commands = again()
        else:
            delayed = repr(delay) if delay else "0"
            if step is None:
                command = self._call("push", keys[:3], notes, delayed, stored)
            else:
                command = self._push_locked(keys, notes, delayed, stored, step)
            commands = [command, *around]
        try:
            with self.links.of(keys.ready) as link:
                replies = link.ask(*commands, again=again)
            self._check_replicas(replies)
        except BackendUnavailable:
            self._in_doubt.append(identity)
            raise
        return identity, replies[0]

    def _push_locked(
        self, keys: QueueKeys, notes: Sequence[Note], delayed: str, stored: bytes, step: Step
    ) -> Command:
        """Give a push that takes a lock, too; most do by a script of their own."""
        lock, verb, ms = step
        if notes or verb != "take":
            return self._locked(self._call("push", keys[:3], notes, delayed, stored), step)
        names = (keys.ready, keys.notify, keys.delayed, self.keys.store + lock.key)
        return call("push_unique", names, delayed, stored, lock.uuid, ms)

    def _locked(self, command: Command, *steps: Step) -> Command:
        """Give a command that takes or frees locks, too."""
        return locked(command, self.keys.store, steps)

    def put_groups(self, groups: Sequence[Group]) -> None:
        """Store several groups: all or none, but on a Cluster, where each is."""
        chunks = [chunk for group in groups for chunk in _chunks(group)]
        if self.settings.cluster:
            for chunk in chunks:
                self._push_chunks([chunk])
        elif chunks:
            self._push_chunks(chunks)

    def _push_chunks(self, chunks: Sequence[Group]) -> None:
        push, around = [], []
        said = []
        for messages, queue, delay in chunks:
            keys = self.keys.of(queue)
            stored = [self._stored(raw, uuid) for raw, uuid in messages]
            notes = self.queued_notes(messages, queue, delay) if self.noting else []
            raws = (raw for raw, _ in stored)
            push.append(self._call("push", keys[:3], notes, repr(delay), *raws))
            said.append((keys, delay, stored, notes))
            around += self._around(queue, replicated=False)
        around += self._replicated()

        def again() -> list[Command]:
            return [*_together([self._again(*each) for each in said]), *around]

        with self.links.of(self.keys.of(chunks[0][1]).ready) as link:
            replies = link.ask(*_together(push), *around, again=again)
        for reply in replies:
            if isinstance(reply, list):  # what came of each call of the transaction
                self._check_calls(reply)
        self._check_replicas(replies)

    def _check_calls(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, Exception):
                raise meaning(reply, self.described()) from reply

    def _stored(self, raw: bytes, uuid: str) -> tuple[bytes, str]:
        if uuid:
            return member.sent(raw), uuid
        identity = uuids.uuid4().hex
        return member.identified(raw, identity), identity

    def _call(
        self,
        name: str,
        keys: tuple[str, ...],
        notes: Sequence[Note],
        *arguments: str | bytes | float,
        part: int = 0,
    ) -> Command:
        """Give the command that runs a script, and notes what it does in the statuses."""
        if not notes:
            return call(name, keys, *arguments)
        parts = [(part, note) for note in notes]
        return noted(name, keys, arguments, self.keys.status, parts)

    def _again(
        self,
        keys: QueueKeys,
        delay: float,
        stored: Sequence[tuple[bytes, str]],
        notes: Sequence[Note],
    ) -> Command:
        """Give the push for when nobody knows whether the first one arrived."""
        failed = () if self.settings.cluster else (self.keys.failed,)
        first, last = stored[0][1], stored[-1][1]
        raws = (raw for raw, _ in stored)
        names = (*keys, *failed)
        return self._call("push_again", names, notes, repr(delay), first, last, *raws, part=ARRIVED)

    def _around(self, queue: str, *, replicated: bool = True) -> list[Command]:
        """Give what travels with a push: the queue's name, now and then; the wait for replicas."""
        return [*self.remembering([queue]), *(self._replicated() if replicated else ())]

    def remembering(self, queues: Sequence[str]) -> list[Command]:
        """Have the names of queues remembered, that they can be listed before they are scanned."""
        now = time.monotonic()
        known = self._remembered
        new = [queue for queue in queues if now > known.get(queue, 0.0)]
        if not new:
            return []
        known.update(dict.fromkeys(new, now + _REMEMBER))
        command = Command("SADD", self.keys.names, *new, optional=True)
        if self.settings.cluster:
            with self.links.of(self.keys.names) as link:
                link.ask(command)
            return []
        return [command]

    def _replicated(self) -> list[Command]:
        if not self.settings.min_replicas:
            return []
        ms = max(1, int(self.settings.replica_timeout * 1000))
        return [Command("WAIT", self.settings.min_replicas, ms)]

    def _check_replicas(self, replies: Sequence[Reply]) -> None:
        wanted = self.settings.min_replicas
        if wanted and replies[-1] < wanted:
            raise BackendUnavailable(
                f"{self.described()}: queued, but only {replies[-1]} of {wanted} replicas "
                f"(min_replicas) have it after {self.settings.replica_timeout:g} s"
            )

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        with guarded():
            if not queues:
                self._delete_along(finished)
                return []
            if self.settings.cluster:
                return self._reserve_on_cluster(queues, limit, finished)
            return self._reserve(queues, limit, finished)

    def _reserve_on_cluster(
        self, queues: Sequence[str], limit: int, finished: Job | None
    ) -> list[Job]:
        jobs: list[Job] = []
        moments = []
        self._delete_along(finished)
        for queue in queues:
            jobs += self._reserve([queue], limit - len(jobs), None)
            if len(jobs) >= limit:
                break
            moments += self._idle.expected
        if jobs:
            self._idle.forget()
        else:
            self._idle.expect_until(queues, min(moments, default=0.0))
        return jobs

    def _reserve(self, queues: Sequence[str], limit: int, finished: Job | None) -> list[Job]:
        taken = self._idle.taken()
        if taken is not None:
            jobs = self._from_wait(taken)
            if finished is None and taken.queues == tuple(queues):
                return jobs
            self._all_back(jobs)
        keys = [self.keys.of(queue) for queue in queues]
        commands = self.remembering(queues)
        link = self.links.of(keys[0].ready)
        if isinstance(finished, RedisJob):
            deletion = finished.deletion()
            # First: what follows its batch may be the very next job.
            commands.append(deletion if finished.member_at_end is None else link.known(deletion))
        commands.append(call("reserve", tuple(k for each in keys for k in each[:4]), limit))
        asked_at = self.clock()
        replies = self._ask(link, finished, *commands)
        if isinstance(finished, RedisJob):
            self._finish(finished, replies[-2], link)
        reply = replies[-1]
        if len(reply) == EMPTY:
            seconds, now = map(float, reply)
            self._idle.expect(queues, seconds, asked_at - now)
            return []
        self._idle.forget()
        return self._held(reply, queues, asked_at)

    def _held(self, reply: Reply, queues: Sequence[str], asked_at: float) -> list[Job]:
        """Make jobs of what a reservation gave."""
        score, *found = reply
        first = float(score)
        return [
            RedisJob(
                self, queues[place], self.keys.of(queues[place]), stored, first + index * _STEP,
                asked_at,
            )
            for index, (place, stored) in enumerate(zip(found[::2], found[1::2], strict=True))
        ]  # fmt: skip

    def _from_wait(self, taken: Taken) -> list[Job]:
        """Make jobs of what a wait has held, some time before its answer was heard."""
        at = float(taken.reply[0]) - HOLD + taken.ahead
        return self._held(taken.reply, taken.queues, min(at, taken.heard_at))

    def let_go(self) -> None:
        taken = self._idle.taken()
        if taken is not None:
            self._all_back(self._from_wait(taken))

    def _all_back(self, jobs: Sequence[Job]) -> None:
        for job in reversed(jobs):
            with suppress(SettleError):
                job.give_back()

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        if not isinstance(job, RedisJob):
            raise TypeError(f"{job!r} is not a job of {self.name!r}")
        with guarded():
            done = finished if isinstance(finished, RedisJob) else None
            if done is not None and self.settings.cluster and done.queue != job.queue:
                self._delete_along(done)
                done = None
            return self._start(job, done)

    def _start(self, job: RedisJob, done: RedisJob | None) -> bool:
        now = self.clock()
        stored, began = job.starting(now)
        sure_until = job.sure_until if done is None else min(job.sure_until, done.sure_until)
        sure = now < sure_until
        score = repr(job.held_until + self._from_hold) if sure else ""
        command = self._start_of(job, stored, score, done)
        link = self.links.of(job.keys.reserved)
        until = now + self.retry_after / 3
        if not sure:
            (reply,) = self._ask(link, done, command)
            if done is not None:
                self._finish(done, reply[1], link)
            if reply[0]:
                job.has_started(stored, reply[0].decode(), began, until)
                return True
            job.mark("lost")
            return False
        if done is not None:
            done.mark("deleted")
        held = job.stored, job.score
        job.has_started(stored, score, began, until)
        job.start_sent, job.sent_on = command, link
        try:
            link.tell(command, lambda reply, twice: self._answered(job, done, reply, twice=twice))
            if self.clock() >= sure_until:  # it was said so late that the answer must be heard
                link.ask()
        except BackendUnavailable:
            link.forget(command)
            job.has_not_started(*held)
            if done is not None:
                done.mark("")
                done.in_doubt = True
            raise
        return not job.is_lost

    def _start_of(self, job: RedisJob, stored: bytes, score: str, done: RedisJob | None) -> Command:
        """Give the command that starts a job, and deletes and counts the one done before."""
        reserved = job.keys.reserved
        names: tuple[str, ...] = (reserved, reserved if done is None else done.keys.reserved)
        words: tuple[str | bytes | int, ...] = (job.stored, job.score, stored, score, self._lease)
        name = "start"
        if done is not None:
            words = (*words, done.stored, done.score)
            if done.lock is not None and (ended := done.lock_at_end) is not None:
                names, words = (*names, self.keys.store + ended.key), (*words, ended.uuid)
            place = done.member_at_end
            if place is not None:
                failed = done.ends_in_failure
                more, said = counting(self.keys, place, done.uuid, failed=failed, part=2)
                name, names, words = "start+counted", (*names, *more), (*words, *said)
        notes = self._notes_of_start(job, done)
        if notes:
            command = noted(name, names, words, self.keys.status, notes)
        else:
            command = call(name, names, *words)
        if job.lock is not None and (begun := job.lock_at_start) is not None:
            return self._locked(command, (begun, "free", 1))
        return command

    def _notes_of_start(self, job: RedisJob, done: RedisJob | None) -> Sequence[Part]:
        """Give what the two parts of a start's reply are about: the job begun, and that done."""
        tracked = job.tracking
        if tracked is None and (done is None or done.tracking is None):
            return _NOTHING
        parts = []
        if tracked is not None and self.notes_starts:
            parts.append((1, tracked.running(job.attempts() + 1)))
        note = None if done is None else done.deletion_note()
        return parts if note is None else [*parts, (2, note)]

    def _answered(self, job: RedisJob, done: RedisJob | None, reply: Reply, *, twice: bool) -> None:
        """Hear what became of a start that was not waited for."""
        if isinstance(reply, Exception):
            # The lease keeper asks again while the job runs; what is lost is found by its settle.
            if done is not None:
                self.finish(done, deleted=False)
            return
        score, deleted = reply
        twice = twice or job.start_sent is None  # by another thread, too
        if score:
            job.start_sent = None
        elif not job.is_settled and job.start_sent is not None:
            job.mark("lost")
        if done is None:
            return
        if not deleted and not twice:
            self.finish(done, deleted=False)
        elif not self.noting:
            done.note_end()

    def take_up(self, ticket: bytes) -> Job | None:
        queue, _, stored = ticket.partition(b" ")
        name = queue.decode()
        job = RedisJob(self, name, self.keys.of(name), stored, 0.0, self.clock())
        return job if job.take_up() else None

    def _delete_along(self, finished: Job | None) -> None:
        """Delete a finished job whose queue is in another slot than what comes next."""
        if isinstance(finished, RedisJob):
            link = self.links.of(finished.keys.reserved)
            (deleted,) = self._ask(link, finished, finished.deletion())
            self._finish(finished, deleted, link)

    def _ask(self, link: Link, done: Job | None, *commands: Command) -> list[Reply]:
        """Ask; where nobody knows what came of it, the finished job may be deleted or not."""
        try:
            return link.ask(*commands)
        except BackendUnavailable:
            if isinstance(done, RedisJob):
                done.in_doubt = done.in_doubt or link.repeated
            raise

    def _finish(self, done: RedisJob, deleted: Reply, link: Link) -> None:
        """Note whether a finished job was deleted now, or perhaps before, unheard."""
        self.finish(done, deleted=bool(deleted) or link.repeated or done.in_doubt)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self._idle.wait(queues, timeout, wake)

    # -- operating ------------------------------------------------------------------------------

    def sizes(self, queue: str | None = None) -> Sizes:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        names = (keys.ready, keys.delayed, keys.reserved, keys.buried)
        with self.links.of(keys.ready) as link:
            (counts,) = link.ask(call("sizes", names))
        return Sizes(*counts)

    def queues(self) -> list[str]:
        """Name the queues that hold jobs; one only PHP pushed to is found within half a minute."""
        with self.links.of(self.keys.names) as link:
            (names,) = link.ask(Command("SMEMBERS", self.keys.names))
        known = {name.decode() for name in names} | self._foreign_queues()
        return sorted(filter(self._holds_jobs, known))

    def _holds_jobs(self, name: str) -> bool:
        try:
            sizes = self.sizes(name)
        except BackendUnavailable as error:
            if not is_wrong_type(error.__cause__):
                raise
            # Somebody else's key is no queue, and must not hide those there are.
            if name not in self._mistyped:
                self._mistyped.add(name)
                log.warning("%s", error)
            return False
        return sizes.total + sizes.buried > 0

    def _foreign_queues(self) -> set[str]:
        now = time.monotonic()
        if not self._looked_around or now - self._looked_around > _LOOK_AROUND:
            self._looked_around = now
            found = self.links.scan(self.keys.pattern)
            self._foreign = {self.keys.queue_in(key) for key in found}
        return {name for name in self._foreign if is_queue_name(name)}

    def clear(self, queue: str | None = None) -> int:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        removed = cleared(self, keys)
        with self.links.of(keys.ready) as link:
            return removed + int(link.ask(call("clear", keys[:4]))[0])

    def kick(self, queue: str | None = None) -> int:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        names = (keys.buried, keys.ready, keys.notify, keys.delayed)
        kicked = 0
        with self.links.of(keys.ready) as link:
            (there,) = link.ask(Command("LLEN", keys.buried))
            while kicked < there:
                (count,) = link.ask(call("kick", names, there - kicked))
                if not count:
                    break
                kicked += count
        return kicked

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        return cancelled(self, uuid, [queue] if queue else self.queues())

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        if not self.shares(store):
            return super().requeue(record, payload, store)
        stored, _ = self._stored(payload, record.uuid)
        keys = (self.keys.failed, self.keys.failed_order, *self.keys.of(record.queue)[:3])
        messages = [(payload, record.uuid)]
        notes = self.queued_notes(messages, record.queue, 0) if self.noting else []
        with self.links.of(keys[0]) as link:
            command = self._call("requeue", keys, notes, record.uuid, stored)
            lock = unique.of_raw(payload)
            if lock is not None:
                command = self._locked(command, retaking(lock))
            (done,) = link.ask(command)
            if lock is not None and isinstance(done, bytes):
                self.check_holder(lock, done.decode())
            return bool(done) or link.repeated

    def shares(self, store: FailedStore) -> bool:
        """Whether the failed jobs are kept in this very Redis, and one script reaches them."""
        return (
            isinstance(store, RedisFailedStore)
            and store.links is self.links
            and not self.settings.cluster
        )

    def own_store(self) -> Store:
        return self._store

    def own_failed_store(self) -> FailedStore:
        return self._failed

    def own_statuses(self) -> StatusStore:
        return self._statuses

    def seal_batch(self, store: BatchStore, identity: str) -> None:
        if store is not self._batches or not self.noting:
            super().seal_batch(store, identity)
        else:
            self._batches.seal_and_tell(identity, self.keys.ready)

    def own_batches(self) -> BatchStore:
        return self._batches

    def described(self) -> str:
        return self.links.server.shown()

    def ping(self) -> str:
        return checks.version(self.links)

    def warnings(self) -> list[str]:
        return checks.warnings(self.links, self.settings)

    def close(self) -> None:
        with suppress(BackendUnavailable):
            self.let_go()
        self._idle.close()
        self.links.close()


def _chunks(group: Group) -> Iterator[Group]:
    """Cut a group into what one script takes."""
    messages, queue, delay = group
    first = size = 0
    for index, (raw, _) in enumerate(messages):
        if index > first and (index - first >= _CHUNK or size + len(raw) > _CHUNK_BYTES):
            yield messages[first:index], queue, delay
            first, size = index, 0
        size += len(raw)
    if messages:
        yield messages[first:], queue, delay


def _together(commands: list[Command]) -> list[Command]:
    """Make one transaction of several calls of a script, which the server is given first."""
    if len(commands) == 1:
        return commands
    script = commands[0].script
    text = b"" if script is None else script.text
    return [Command("SCRIPT", "LOAD", text), Command("MULTI"), *commands, Command("EXEC")]
