"""The Redis connection: every move of a job is one script on Laravel's keys."""

from __future__ import annotations

import math
import threading
import time
import uuid as uuids
from collections import deque
from collections.abc import Iterator, Sequence

from qframe import host
from qframe.config import RedisSettings
from qframe.contracts import Capability, FailedJob, FailedStore, Job, Sizes, Store
from qframe.drivers.base import HOLD, BaseQueue
from qframe.drivers.redis import checks, member
from qframe.drivers.redis.clock import clock
from qframe.drivers.redis.failed import RedisFailedStore
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.keys import QueueKeys
from qframe.drivers.redis.link import Link, Reply
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.store import RedisStore
from qframe.drivers.redis.trouble import meaning
from qframe.drivers.redis.waiting import Listener, until_one
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded
from qframe.names import queue_name

_STEP = 1 / 1048576
"""What keeps the scores of one batch apart; as in the script."""
_CHUNK = 5000
_CHUNK_BYTES = 4_000_000
_REMEMBER = 60.0
_DOUBTS = 1000
_LOOK_AROUND = 30.0
_MARGIN = 0.002
"""Seconds a wait goes on after the moment it is for: two clocks never run alike."""
_LATER = 0.5
"""Seconds after our own end at which the server would end a wait, should we not."""
_PATIENCE = 0.3
"""Seconds the server is given to end a wait that need not end at a moment."""

Group = tuple[list[tuple[bytes, str]], str, float]


class _Waits(threading.local):
    """What one thread waits with, and what its last reservation said of the future."""

    def __init__(self) -> None:
        self.pid = host.pid()
        self.listeners: dict[str, Listener] = {}
        self.outlook: tuple[tuple[str, ...], float] | None = None


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
        | Capability.HISTORY
        | Capability.ATOMIC_FAIL
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
        self._waits = _Waits()
        self._remembered: dict[str, float] = {}
        self._foreign: set[str] = set()
        self._looked_around = 0.0
        self._in_doubt: deque[str] = deque(maxlen=_DOUBTS)
        """The last pushes that raised: whoever repeats one may find it there already."""

    # -- pushing --------------------------------------------------------------------------------

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        if len(messages) != 1:
            self.put_groups([(list(messages), queue, delay)])
            return ""
        raw, uuid = messages[0]
        if uuid:
            stored, identity = member.sent(raw), uuid
        else:
            identity = uuids.uuid4().hex
            stored = member.identified(raw, identity)
        keys = self.keys.of(queue)
        around = self._around(queue)

        def again() -> list[Command]:
            return [self._again(keys, delay, [(stored, identity)]), *around]

        if self._in_doubt and identity in self._in_doubt:
            commands = again()
        else:
            commands = [call("push", keys[:3], repr(delay), stored), *around]
        try:
            with self.links.using(keys.ready) as link:
                replies = link.ask(*commands, again=again)
            self._check_replicas(replies)
        except BackendUnavailable:
            self._in_doubt.append(identity)
            raise
        return identity

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
            push.append(call("push", keys[:3], repr(delay), *(raw for raw, _ in stored)))
            said.append((keys, delay, stored))
            around += self._around(queue, replicated=False)
        around += self._replicated()

        def again() -> list[Command]:
            return [*_together([self._again(*each) for each in said]), *around]

        with self.links.using(self.keys.of(chunks[0][1]).ready) as link:
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

    def _again(self, keys: QueueKeys, delay: float, stored: Sequence[tuple[bytes, str]]) -> Command:
        """Give the push for when nobody knows whether the first one arrived."""
        failed = () if self.settings.cluster else (self.keys.failed,)
        first, last = stored[0][1], stored[-1][1]
        return call(
            "push_again", (*keys, *failed), repr(delay), first, last, *(raw for raw, _ in stored)
        )

    def _around(self, queue: str, *, replicated: bool = True) -> list[Command]:
        """Give what travels with a push: the queue's name, now and then; the wait for replicas."""
        return [*self._remembering([queue]), *(self._replicated() if replicated else ())]

    def _remembering(self, queues: Sequence[str]) -> list[Command]:
        """Have the names of queues remembered, that they can be listed before they are scanned."""
        now = time.monotonic()
        new = [queue for queue in queues if now - self._remembered.get(queue, -1e9) > _REMEMBER]
        if not new:
            return []
        self._remembered.update(dict.fromkeys(new, now))
        command = Command("SADD", self.keys.names, *new, optional=True)
        if self.settings.cluster:
            with self.links.using(self.keys.names) as link:
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
        outlooks = []
        self._delete_along(finished)
        for queue in queues:
            jobs += self._reserve([queue], limit - len(jobs), None)
            if len(jobs) >= limit:
                break
            if self._waits.outlook:
                outlooks.append(self._waits.outlook[1])
        self._waits.outlook = None if jobs else (tuple(queues), min(outlooks, default=0.0))
        return jobs

    def _reserve(self, queues: Sequence[str], limit: int, finished: Job | None) -> list[Job]:
        keys = [self.keys.of(queue) for queue in queues]
        commands = self._remembering(queues)
        if isinstance(finished, RedisJob):
            commands.append(finished.deletion())
        commands.append(call("reserve", tuple(k for each in keys for k in each[:4]), limit))
        link = self.links.of(keys[0].ready)
        asked_at = self.clock()
        replies = self._ask(link, finished, *commands)
        if isinstance(finished, RedisJob):
            self._finish(finished, replies[-2], link)
        score, *found = replies[-1]
        if not found:
            self._look_forward(queues, float(score))
            return []
        self._waits.outlook = None
        first = float(score)
        return [
            RedisJob(self, queues[place], keys[place], stored, first + index * _STEP, asked_at)
            for index, (place, stored) in enumerate(zip(found[::2], found[1::2], strict=True))
        ]

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
        reserved = job.keys.reserved
        command = call(
            "start", (reserved, reserved if done is None else done.keys.reserved),
            job.stored, job.score, stored, score, self._lease,
            *(() if done is None else (done.stored, done.score)),
        )  # fmt: skip
        link = self.links.of(reserved)
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
        if done is not None and not deleted and not twice:
            self.finish(done, deleted=False)

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

    # -- waiting --------------------------------------------------------------------------------

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        ends = self._until_next(queues)
        until = time.monotonic() + min(timeout, ends)
        listeners = self._listeners(queues)
        left = until - time.monotonic()
        if left <= 0:
            super().wait(queues, 0, wake)
            return
        try:
            self._wait(listeners, until, wake, exactly=ends <= timeout)
        except BackendUnavailable:
            for listener, _ in listeners:  # none may go on waiting: it would take a token
                listener.drop()
            raise

    def _wait(
        self,
        listeners: Sequence[tuple[Listener, Sequence[str]]],
        until: float,
        wake: int | None,
        *,
        exactly: bool,
    ) -> None:
        # The server ends a pop a tenth of a second late, but that saves telling it to.
        ours, servers = (0.0, _LATER) if exactly else (_PATIENCE, 0.0)
        sockets = []
        with guarded():
            for listener, names in listeners:
                notify = [self.keys.of(name).notify for name in names]
                sockets.append(listener.listen(notify, until - time.monotonic() + servers))
        seconds = until - time.monotonic() + ours
        told = until_one([each for each, _ in listeners], sockets, wake, seconds)
        with guarded():
            for listener, names in listeners:
                if told and listener.answered():
                    listener.hear()
                else:
                    keys = [self.keys.of(name) for name in names]
                    listener.end([(each.ready, each.notify) for each in keys])

    def _until_next(self, queues: Sequence[str]) -> float:
        """Give the seconds until there may be a job: what the last reservation said, or a look."""
        outlook, self._waits.outlook = self._waits.outlook, None
        if outlook is not None and outlook[0] == tuple(queues):
            return outlook[1] - time.monotonic()
        seconds = []
        groups = [[queue] for queue in queues] if self.settings.cluster else [list(queues)]
        for group in groups:
            keys = [self.keys.of(queue) for queue in group]
            names = tuple(k for each in keys for k in each[:4])
            with self.links.using(keys[0].ready) as link:
                (next_one,) = link.ask(call("outlook", names))
            if next_one == b"0":
                return 0.0
            seconds.append(float(next_one))
        return self._bounded(seconds)

    def _look_forward(self, queues: Sequence[str], seconds: float) -> None:
        self._waits.outlook = (tuple(queues), time.monotonic() + self._bounded([seconds]))

    def _bounded(self, seconds: Sequence[float]) -> float:
        """Give the shortest wait; what PHP delays, or gives back, wakes nobody."""
        known = [each + _MARGIN for each in seconds if each >= 0]
        return min([*known, self.settings.block_for, self.retry_after])

    def _listeners(self, queues: Sequence[str]) -> list[tuple[Listener, Sequence[str]]]:
        waits = self._waits
        if waits.pid != host.pid():
            self._waits = waits = _Waits()
        groups = [[queue] for queue in queues] if self.settings.cluster else [list(queues)]
        found: list[tuple[Listener, Sequence[str]]] = []
        for group in groups:
            key = self.keys.of(group[0]).ready if self.settings.cluster else ""
            listener = waits.listeners.get(key)
            if listener is None:
                link = self.links.of(self.keys.of(group[0]).ready)
                listener = waits.listeners[key] = Listener(self.links.server, link)
            found.append((listener, group))
        return found

    # -- operating ------------------------------------------------------------------------------

    def sizes(self, queue: str | None = None) -> Sizes:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        names = (keys.ready, keys.delayed, keys.reserved, keys.buried)
        with self.links.using(keys.ready) as link:
            (counts,) = link.ask(call("sizes", names))
        return Sizes(*counts)

    def queues(self) -> list[str]:
        """Name the queues that hold jobs; one only PHP pushed to is found within half a minute."""
        with self.links.using(self.keys.names) as link:
            (names,) = link.ask(Command("SMEMBERS", self.keys.names))
        known = {name.decode() for name in names} | self._foreign_queues()
        return sorted(name for name in known if _holds_jobs(self.sizes(name)))

    def _foreign_queues(self) -> set[str]:
        now = time.monotonic()
        if not self._looked_around or now - self._looked_around > _LOOK_AROUND:
            self._looked_around = now
            found = self.links.scan(self.keys.pattern)
            self._foreign = {self.keys.queue_in(key) for key in found}
        return {name for name in self._foreign if _is_name(name)}

    def clear(self, queue: str | None = None) -> int:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        with self.links.using(keys.ready) as link:
            return int(link.ask(call("clear", keys[:3]))[0])

    def kick(self, queue: str | None = None) -> int:
        keys = self.keys.of(queue_name(queue or self.default_queue))
        names = (keys.buried, keys.ready, keys.notify, keys.delayed)
        kicked = 0
        with self.links.using(keys.ready) as link:
            (there,) = link.ask(Command("LLEN", keys.buried))
            while kicked < there:
                (count,) = link.ask(call("kick", names, there - kicked))
                if not count:
                    break
                kicked += count
        return kicked

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        if not self.shares(store):
            return super().requeue(record, payload, store)
        stored, _ = self._stored(payload, record.uuid)
        keys = (self.keys.failed, self.keys.failed_order, *self.keys.of(record.queue)[:3])
        with self.links.using(keys[0]) as link:
            (done,) = link.ask(call("requeue", keys, record.uuid, stored))
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

    def described(self) -> str:
        return self.links.server.shown()

    def ping(self) -> str:
        return checks.version(self.links)

    def warnings(self) -> list[str]:
        return checks.warnings(self.links, self.settings)

    def close(self) -> None:
        for listener in self._waits.listeners.values():
            listener.drop()
        self._waits.listeners.clear()
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


def _holds_jobs(sizes: Sizes) -> bool:
    return bool(sizes.total or sizes.buried)


def _is_name(name: str) -> bool:
    try:
        queue_name(name)
    except ValueError:
        return False
    return True
