"""RedisBackend: messages under Laravel's keys, one script call for each step."""

from __future__ import annotations

import base64
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any

from redis.exceptions import ResponseError

from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.browsing import Found, Page, Place, Span, position
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers import lookup
from qframe.drivers.guard import guarded
from qframe.drivers.redis import checks, message
from qframe.drivers.redis.commands import RedisCommand, call, command, script
from qframe.drivers.redis.connection import RedisConnection, Reply
from qframe.drivers.redis.errors import is_wrong_type, meaning
from qframe.drivers.redis.facts import RedisFacts
from qframe.drivers.redis.in_flight import (
    ApplyInFlight,
    RedisStartInFlight,
    StepsInFlight,
    start_of,
)
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.keys import ANY_QUEUE, Keys, QueueKeys, prefix_and_queue
from qframe.drivers.redis.pool import RedisPool
from qframe.drivers.redis.settings import RedisSettings
from qframe.drivers.redis.steps import RedisSteps
from qframe.exceptions import BackendUnavailable
from qframe.payload import envelope
from qframe.payload.text import is_queue_name, one_line

log = logging.getLogger("qframe")

_LOOK_AROUND = 30.0
"""Seconds between two searches for queues that only PHP has pushed to."""
_REMEMBER = 60.0
"""Seconds after which a queue's name is written again, on a Cluster."""
_DOUBTS = 100
_STEP = 1 / 1048576
"""As in the scripts: the score of a hold is a multiple of it."""
_BELOW = 2**34
"""As in the scripts: what is ready and has a priority is that far below its rank."""
_FIND = 1000
"""Messages that a script searches at first; twice as many after each quick search."""
_FIND_MOST = 8000
_QUICK = 0.005
"""Seconds that a script may block the server."""
_LOOK_ELSEWHERE = 2.0
"""Seconds spent searching for queues under other prefixes."""
_ELSEWHERE = 20
"""The most prefixes to list, and the most queues of each."""
_LISTS = {Place.READY, Place.BURIED}
"""Places that are lists; the others are sorted sets."""
_DRIFT = 0.0005
"""Seconds by which a wait is prolonged, in all and for each second of it: clocks drift apart."""


class _Work:
    """Steps to apply, in one exchange after another."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.next = 0
        self.exchange: RedisSteps | None = None
        """The exchange that was sent last, until its answer arrives."""
        self.results: list[Result] = []
        self.is_done = False
        """Whether the last exchange was applied, although something else failed."""


class RedisBackend(RedisFacts, Backend):
    """Messages in a list and sorted sets of whole payloads (Laravel's RedisQueue).

    While leases are certainly valid, a start and the deletion of the job done before are sent
    without waiting for the answer. On a Cluster each queue is in its own slot, and so are the
    facts. The backend reads outstanding answers at the thread's next call about the same slot.
    """

    settings_model = RedisSettings
    capabilities = ~(Capability.WITHIN | Capability.OUTBOX)
    look_every = 3.5

    def __init__(self, name: str, settings: RedisSettings, timing: Timing | None = None) -> None:
        self.name = name
        self.settings = settings
        self.timing = timing or Timing()
        self.keys = Keys(settings.prefix, braces=settings.cluster, aging=settings.aging)
        self.pool = RedisPool(settings, self.keys)
        if settings.cluster:
            self.capabilities = type(self).capabilities & ~Capability.JOINT
        script("apply")  # pushes while the interpreter ends can read no file
        self._remembered: dict[str, float] = {}
        self._foreign: set[str] = set()
        self._looked_around = -_LOOK_AROUND
        self._mistyped: set[str] = set()
        self._unanswered: deque[_Work] = deque(maxlen=_DOUBTS)
        """Steps whose call raised; if the caller applies them again, they count once."""

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        with guarded:
            return self._apply(steps)[0]

    def _apply(
        self, steps: Sequence[Step], *behind: RedisCommand, key: str = ""
    ) -> tuple[list[Result], list[Reply]]:
        """Apply steps; the commands in `behind` go with the last exchange."""
        work = self._begun_before(steps) if self._unanswered else None
        work = work or _Work(steps)
        replies: list[Reply] = []
        while work.exchange or work.next < len(work.steps):
            exchange = work.exchange = work.exchange or self._next_exchange(work)
            is_last = work.next == len(work.steps)
            connection = self.pool.of(exchange.key)
            try:
                replies = self._exchange(work, connection, behind if is_last else ())
            except BackendUnavailable as error:
                error.in_doubt = self._may_be_applied(work, connection)
                raise
        if not steps:
            replies = self.pool.of(key).ask(*behind)
        return work.results, replies

    def _next_exchange(self, work: _Work) -> RedisSteps:
        exchange = RedisSteps(self.keys)
        while work.next < len(work.steps) and exchange.add(work.steps[work.next]):
            work.next += 1
        return exchange

    def _exchange(
        self, work: _Work, connection: RedisConnection, behind: Sequence[RedisCommand]
    ) -> list[Reply]:
        exchange = work.exchange
        assert exchange is not None  # noqa: S101 (every caller has one)
        starts = [] if not exchange.jobs else _starts_elsewhere(exchange.jobs, connection)
        sent = exchange.command_for(connection, self.timing.skew)
        replicas = self._replicas() if exchange.pushes and self.settings.min_replicas else []
        if exchange.pushes and self.settings.cluster:
            self._remember(exchange.queues)
        asked_at = self.clock() if exchange.jobs else 0.0
        replies = connection.ask_all(*starts, sent, *replicas, *behind)[len(starts) :]
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._meaning(reply, exchange.queues) from reply
        is_repeat = connection.repeated
        if replicas:
            work.is_done = True
            self._check_replicas(connection, replicas, replies.pop(1))
            work.is_done = False
        work.results += exchange.results(replies[0], asked_at, is_repeat=is_repeat)
        work.exchange = None
        return replies[1:]

    def _may_be_applied(self, work: _Work, connection: RedisConnection) -> bool:
        """Whether steps may have been applied although no answer came; remembers pushes."""
        exchange = work.exchange
        if exchange is None or not (connection.repeated or work.results or work.is_done):
            return False
        if exchange.marked:
            connection.new_marker()
            self._unanswered.append(work)
        return True

    def _begun_before(self, steps: Sequence[Step]) -> _Work | None:
        for work in list(self._unanswered):
            if work.steps == steps:
                self._unanswered.remove(work)
                return work
        return None

    def _replicas(self) -> list[RedisCommand]:
        ms = max(1, int(self.settings.replica_timeout * 1000))
        return [command("WAIT", self.settings.min_replicas, ms)]

    def _check_replicas(
        self, connection: RedisConnection, sent: list[RedisCommand], count: int
    ) -> None:
        if connection.mended:  # it waited for the exchange before it
            (count,) = connection.ask(*sent)
            count *= not connection.repeated
        wanted = self.settings.min_replicas
        if count < wanted:
            raise BackendUnavailable(
                f"{self.described()}: queued, but only {count} of {wanted} replicas "
                f"(min_replicas) have it after {self.settings.replica_timeout:g} s"
            )

    def _remember(self, queues: set[QueueKeys]) -> None:
        """Write the names of queues on a Cluster, where the script cannot."""
        now = time.monotonic()
        new = [each.ready for each in queues if now > self._remembered.get(each.ready, 0.0)]
        if new:
            self.pool.of(self.keys.names).ask(command("SADD", self.keys.names, *new))
            self._remembered.update(dict.fromkeys(new, now + _REMEMBER))

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        with guarded:
            now = self.clock()
            sure_until = _sure_until(steps)
            sent = self._sendable(steps, now, on_result) if now < sure_until else None
            if sent is None:
                on_result(self._apply(steps)[0])
                return
            try:
                sent.connection.send(sent)
            except BackendUnavailable:
                sent.refused()
                raise
            sent.begin()
            # by now the leases may have run out, so the answer matters
            if self.clock() >= sure_until:
                sent.connection.ask_all()

    def read_replies(self) -> None:
        self.pool.read_replies()

    def _sendable(
        self, steps: Sequence[Step], now: float, on_result: Callable[[list[Result]], None]
    ) -> StepsInFlight | None:
        """Return what to send without waiting; None if the answer must be waited for."""
        found = None if self.settings.cluster else start_of(steps, self.keys)
        if found is not None:
            connection = self.pool.of(found[1].keys.ready)
            return RedisStartInFlight(*found, connection, self.timing.skew, now, on_result)
        exchange = RedisSteps(self.keys)
        if not all(map(exchange.add, steps)) or exchange.marked or exchange.awaited:
            return None
        return ApplyInFlight(exchange, self.pool.of(exchange.key), self.timing.skew, now, on_result)

    # -- reserving --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        with guarded:
            if not queues:
                return [], self._apply(first)[0]
            if not self.settings.cluster:
                return self._reserve(queues, limit, first)
            results = self._apply(first)[0] if first else []
            return self._reserve_one_by_one(queues, limit), results

    def _reserve_one_by_one(self, queues: Sequence[str], limit: int) -> list[Reservation]:
        """Reserve on a Cluster."""
        waiter = self.pool.waiter
        jobs: list[Reservation] = []
        ends = []
        for queue in queues:
            jobs += self._reserve([queue], limit - len(jobs), (), alone=len(queues) == 1)[0]
            size = sum(len(job.raw_body) for job in jobs)
            if jobs and (len(jobs) >= limit or size >= self.timing.most_bytes):
                break
            ends += [waiter.expected[1]] if waiter.expected else []
        waiter.expected = (tuple(queues), min(ends)) if ends and not jobs else None
        return jobs

    def _reserve(
        self, queues: Sequence[str], limit: int, first: Sequence[Step], *, alone: bool = True
    ) -> tuple[list[Reservation], list[Result]]:
        """Reserve from queues in one slot; `alone` if the caller asked for no others."""
        keys = [self.keys.of(queue) for queue in queues]
        timing = self.timing
        reserve = call(
            "reserve", [*[each.ready for each in keys], *keys[0].declared[1:]], repr(timing.skew),
            message.new_tag(), limit, repr(timing.hold), timing.bytes_a_second, timing.most_bytes,
            self.keys.notes, len(keys),
        )  # fmt: skip
        asked_at = self.clock()
        results, replies = self._apply(first, reserve, key=keys[0].ready)
        found, soonest, bad = replies[-1]
        if len(bad) == len(queues) and alone and not first:
            raise self._meaning(ResponseError("WRONGTYPE"), set(keys))
        self._mistyped -= set(queues) - {queues[place] for place in bad}
        for place in bad:
            self._warn_of(keys[place])
        sure_until = asked_at + timing.hold / 3
        jobs: list[Reservation] = []
        for at in range(0, len(found), 4):
            job = RedisJob(keys[found[at]], found[at + 1], found[at + 2], found[at + 3])
            job.sure_until = sure_until
            jobs.append(job)
        waiter = self.pool.waiter
        waiter.expected = None if jobs else (tuple(queues), self._until(float(soonest)))
        if limit > 0:
            waiter.token_of = ()
        return jobs, results

    def _until(self, seconds: float) -> float:
        """Return when a wait ends. Jobs that PHP delays or releases wake nobody."""
        longest = min(self.settings.block_for, self.settings.retry_after)
        if 0 <= seconds < longest:
            longest = seconds + _DRIFT + _DRIFT * seconds if seconds else 0.0
        return time.monotonic() + longest

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        waiter = self.pool.waiter
        if waiter.token_of not in {(), tuple(queues)}:
            self.reserve(waiter.token_of, 0)  # the token was for another wait
            waiter.token_of = ()
        if queues and (waiter.expected is None or waiter.expected[0] != tuple(queues)):
            self.reserve(queues, 0)
        ends = waiter.expected[1] - time.monotonic() if waiter.expected else timeout
        waiter.expected = None
        sound = [self.keys.of(queue) for queue in queues if queue not in self._mistyped]
        seconds = min(timeout, ends)
        if seconds <= 0:
            return
        if not sound:
            super().wait(queues, seconds, wake)
            return
        notify = {each.ready: each.notify for each in sound}
        if waiter.wait(notify, seconds, wake, exactly=ends <= timeout):
            self.reserve(queues, 0)  # the token came late, for another wait
        elif waiter.has_token:
            waiter.token_of = tuple(queues)

    def adopt(self, fence: bytes) -> Reservation | None:
        queue, _, stored = fence.partition(b" ")
        keys = self.keys.of(queue.decode())
        note = keys.notes + message.tag_of(stored)
        score, notes = self.pool.of(keys.ready).ask(
            command("ZSCORE", keys.reserved, stored), command("GET", note)
        )
        if score is None or not float(score) % _STEP:
            return None
        job = RedisJob(keys, stored, b"", notes or b"")
        job.started = True
        return job

    # -- messages that wait -----------------------------------------------------------------------

    def _call(self, name: str, keys: QueueKeys, *arguments: str | bytes | float) -> Reply:
        connection = self.pool.of(keys.ready)
        skew = repr(self.timing.skew)
        sent = call(name, keys.declared, skew, message.new_tag(), *arguments)
        (reply,) = connection.ask_all(sent)
        if isinstance(reply, Exception):
            raise self._meaning(reply, {keys}) from reply
        return reply

    def sizes(self, queue: str) -> Sizes:
        return Sizes(*self._call("sizes", self.keys.of(queue)))

    def queues(self) -> list[str]:
        """List the queues. A queue that only PHP has pushed to appears within half a minute."""
        foreign = self._foreign_queues()
        if self.settings.cluster:
            return self._queues_of_cluster(foreign)
        ready = [self.keys.of(name).ready for name in foreign]
        connection = self.pool.of(self.keys.names)
        ((found, bad),) = connection.ask(call("queues", (self.keys.names,), "0", "", *ready))
        for key in bad:
            self._warn_of(self.keys.of(self.keys.queue_in(key.decode())))
        return sorted({self.keys.queue_in(key.decode()) for key in found})

    def _queues_of_cluster(self, foreign: set[str]) -> list[str]:
        """List the queues.

        Names are never removed: a pusher repeats its queue's name only seldom.
        """
        connection = self.pool.of(self.keys.names)
        (names,) = connection.ask(command("SMEMBERS", self.keys.names))
        known = foreign | {self.keys.queue_in(name.decode()) for name in names}
        queues = [self.keys.of(name) for name in sorted(known)]
        skew = repr(self.timing.skew)
        sizes = self.pool.ask_each(
            {each.ready: call("sizes", each.declared, skew, "") for each in queues}
        )
        found: list[str] = []
        for each in queues:
            reply = sizes[each.ready]
            if is_wrong_type(reply):
                self._warn_of(each)
            elif isinstance(reply, Exception):
                raise meaning(reply, self.described()) from reply
            elif any(reply):
                found.append(each.queue)
        return found

    def _foreign_queues(self) -> set[str]:
        now = time.monotonic()
        if now - self._looked_around >= _LOOK_AROUND:
            self._looked_around = now
            found = self.pool.scan(self.keys.pattern)
            self._foreign = set(filter(is_queue_name, map(self.keys.queue_in, found)))
        return self._foreign

    def purge(self, queue: str) -> int:
        keys = self.keys.of(queue)
        return int(self._call("purge", keys, keys.notes))

    def kick(self, queue: str) -> int:
        keys = self.keys.of(queue)
        (there,) = self.pool.of(keys.ready).ask(command("LLEN", keys.buried))
        kicked = 0
        while kicked < there and (count := int(self._call("kick", keys, there - kicked))):
            kicked += count
        return kicked

    def spans(self, queue: str) -> list[Span]:
        self.reserve([queue], 0)  # moves due and expired messages to the ready list
        keys = self.keys.of(queue)
        places = keys.places()
        # In the order in which a message goes through them.
        order = (Place.DELAYED, Place.READY, Place.RUNNING, Place.BURIED)
        there = {each: places[each] for each in order}
        counts = self.pool.of(keys.ready).ask(
            *(command("LLEN" if each in _LISTS else "ZCARD", key) for each, key in there.items())
        )
        return [
            Span(each.value, 0, count, in_order=each is Place.READY)
            for each, count in zip(there, counts, strict=True)
        ]

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        keys, place = self.keys.of(queue), Place(within.of)
        last = min(within.end, within.first + limit) - 1
        if last < within.first:
            return []
        asked = "LRANGE" if place in _LISTS else "ZRANGE"
        sent = command(asked, keys.places()[place], within.first, last)
        (rows,) = self.pool.of(keys.ready).ask(sent)
        return [(at, message.read(row, b"")[0]) for at, row in enumerate(rows, within.first)]

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        keys = self.keys.of(queue)
        wanted, first, end = [keys.delayed, keys.ready, keys.reserved, keys.buried], 0, -1
        if within is not None:
            wanted, first, end = [keys.places()[Place(within.of)]], within.first, within.end
        else:
            self.reserve([queue], 0)  # moves due and expired messages to the ready list
        found: list[Found] = []
        at_once = _FIND
        for key in wanted:
            left = end
            while left and left != first and len(found) < limit:
                most = min(at_once, left - first) if left > 0 else at_once
                began = time.monotonic()
                left, *rest = self._find(keys, key, text, left, most)
                quick = time.monotonic() - began < _QUICK
                at_once = min(2 * at_once, _FIND_MOST) if quick else _FIND
                for stored, score in zip(rest[::2], rest[1::2], strict=True):
                    raw = message.read(stored, b"")[0]
                    if text in raw:
                        found.append(_found(keys, key, stored, score, raw))
        return found[:limit]

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:
        keys = self.keys.of(queue)
        bounds = [repr(max(0.0, since + number * step)) for number in range(steps + 1)]
        asked = [command("ZCOUNT", keys.delayed, low, f"({high}") for low, high in pairwise(bounds)]
        return [int(each) for each in self._ask_about(keys, *asked)]

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        self.reserve([queue], 0)  # moves due and expired messages to the ready list
        keys, first = self.keys.of(queue), position(after)
        last = first + limit  # one more than `limit` shows whether there is another page
        rows = self._rows(keys, place, first, last)
        found = [
            _found(keys, key, stored, score, message.read(stored, b"")[0])
            for key, stored, score in rows[:limit]
        ]
        return Page(found, str(last) if len(rows) > limit else "")

    def count_before(self, found: Found) -> int | None:
        keys, uuid = self.keys.of(found.queue), envelope.uuid_of(found.raw_body)
        spans = (each for each in self.spans(found.queue) if each.of == Place.READY.value)
        at = lookup.position(self, found.queue, uuid, next(spans))
        if at is None:
            return None  # a search for its bytes would keep the server from all others
        soon = repr(time.time() + self.timing.skew - _BELOW)
        (leveled,) = self._ask_about(keys, command("ZCOUNT", keys.delayed, "-inf", f"({soon}"))
        return int(leveled) + at

    def _rows(
        self, keys: QueueKeys, place: Place, first: int, last: int
    ) -> list[tuple[str, bytes, bytes]]:
        """Return the messages of a place from one position to another: key, bytes and score."""
        soon = repr(time.time() + self.timing.skew - _BELOW)  # the rank of what is pushed now
        counts = [command("ZCOUNT", keys.delayed, "-inf", f"({each}") for each in (soon, 0)]
        counts.append(command("LLEN", keys.ready))
        before, leveled, plain = self._ask_about(keys, *counts)
        parts = {
            Place.READY: (
                (keys.delayed, 0, before), (keys.ready, 0, plain), (keys.delayed, before, leveled),
            ),
            Place.DELAYED: ((keys.delayed, leveled, sys.maxsize),),
        }.get(place, ((keys.places()[place], 0, sys.maxsize),))  # fmt: skip
        rows: list[tuple[str, bytes, bytes]] = []
        at = 0
        for key, low, high in parts:
            begin, end = max(first - at, 0) + low, min(last + 1 - at, high - low) + low
            at += high - low
            if begin >= end:
                continue
            is_list = key in {keys.ready, keys.buried}
            words = ("LRANGE", key) if is_list else ("ZRANGE", key)
            scores = () if is_list else ("WITHSCORES",)
            (found,) = self._ask_about(keys, command(*words, begin, end - 1, *scores))
            if is_list:
                rows += [(key, stored, b"0") for stored in found]
            else:
                rows += zip(repeat(key), found[::2], found[1::2], strict=False)
        return rows

    def _ask_about(self, keys: QueueKeys, *asked: RedisCommand) -> list[Any]:
        replies = self.pool.of(keys.ready).ask_all(*asked)
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._meaning(reply, {keys}) from reply
        return [*replies]

    def _find(
        self, keys: QueueKeys, key: str, text: bytes, left: int, most: int
    ) -> Sequence[Reply]:
        sent = call("find", (key,), repr(self.timing.skew), "", text, left, most)
        (reply,) = self.pool.of(keys.ready).ask(sent)
        return list(reply)

    def notes_of(self, found: Found) -> bytes:
        keys, tag = self.keys.of(found.queue), message.tag_of(found.handle)
        if not tag:
            return b""
        (notes,) = self.pool.of(keys.ready).ask(command("GET", keys.notes + tag))
        return message.read(found.handle, notes or b"")[-1]

    def wake(self, queue: str, handle: str) -> bool:
        return bool(self._call("wake", self.keys.of(queue), base64.b64decode(handle)))

    def take(self, found: Found) -> Reservation | None:
        keys = self.keys.of(found.queue)
        stored: bytes = found.handle
        tag = message.tag_of(stored)
        hold = self.timing.hold + len(stored) / self.timing.bytes_a_second
        asked_at = self.clock()
        taken = self._call("take", keys, stored, repr(hold), keys.notes + tag if tag else b"")
        if taken is None:
            return None
        job = RedisJob(keys, *taken)
        job.sure_until = asked_at + self.timing.hold / 3
        return job

    # -- other calls ------------------------------------------------------------------------------

    def _meaning(self, error: Exception, queues: set[QueueKeys]) -> BackendUnavailable:
        """Translate an error; names the keys of another type."""
        where = self.described()
        if is_wrong_type(error):
            places = [(keys.ready, keys.types()) for keys in queues]
            places += [(key, {key: kind}) for key, kind in self.keys.types().items()]
            wrong = [text for place in places for text in self._wrong_types(*place)]
            where = one_line(": ".join([where, ", ".join(wrong)] if wrong else [where]), 300)
        return meaning(error, where)

    def _wrong_types(self, near: str, types: Mapping[str, bytes]) -> list[str]:
        """Name the keys, all in one slot, that hold another type."""
        kinds = self.pool.of(near).ask(*(command("TYPE", key) for key in types))
        return [
            f"{key} is a {kind.decode()}, not a {types[key].decode()}"
            for key, kind in zip(types, kinds, strict=True)
            if kind not in (types[key], b"none")
        ]

    def _warn_of(self, keys: QueueKeys) -> None:
        """Warn once that a key of another type is not a queue."""
        if keys.queue not in self._mistyped:
            self._mistyped.add(keys.queue)
            wrong = self._wrong_types(keys.ready, keys.types())
            log.warning("%s: %s", self.described(), ", ".join(wrong))

    def check_queue(self, name: str) -> None:
        self.keys.of(name)

    def described(self) -> str:
        return self.pool.server.shown()

    def check(self) -> Health:
        return checks.health(self.pool.of(self.keys.facts), self.settings)

    def queues_elsewhere(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for key in self.pool.scan(ANY_QUEUE, _LOOK_ELSEWHERE):
            prefix, queue = prefix_and_queue(key)
            is_wanted = queue and prefix != self.settings.prefix and len(found) < _ELSEWHERE
            if is_wanted and len(found.get(prefix, ())) < _ELSEWHERE:
                (kind,) = self.pool.of(key).ask(command("TYPE", key))
                if kind in {b"list", b"zset"}:
                    found.setdefault(prefix, set()).add(queue)
        return {prefix: sorted(found[prefix]) for prefix in sorted(found)}

    def close(self) -> None:
        self.pool.close()


def _sure_until(steps: Sequence[Step]) -> float:
    """Return until when all leases are certainly valid without a check."""
    soonest = math.inf if steps else 0.0
    for step in steps:
        job = step.reservation
        if job is None:
            return 0.0
        soonest = min(soonest, job.sure_until)
    return soonest


def _starts_elsewhere(jobs: Sequence[RedisJob], connection: RedisConnection) -> list[RedisCommand]:
    """Return unanswered starts of other threads, to be sent again first: they may arrive later."""
    starts = []
    for job in jobs:
        sent = job.in_flight
        if sent is not None and sent.connection is not connection:
            sent.was_repeated = True
            starts.append(sent.command)
    return starts


def _found(keys: QueueKeys, key: str, stored: bytes, score: bytes, raw: bytes) -> Found:
    """Return a stored message as a search shows it; the score says when it is due, or free."""
    place = _place(keys, key, score)
    at = float(score) if place is Place.DELAYED else None
    ends = float(score) if place in {Place.RUNNING, Place.HELD} else None
    return Found(keys.queue, raw, place, stored, at, ends)


def _place(keys: QueueKeys, key: str, score: bytes) -> Place:
    if key == keys.delayed and float(score) < 0:
        return Place.READY
    if key != keys.reserved:
        return {keys.ready: Place.READY, keys.delayed: Place.DELAYED}.get(key, Place.BURIED)
    return Place.RUNNING if float(score) % _STEP else Place.HELD
