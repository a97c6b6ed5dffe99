"""RedisSteps: encodes steps for `lua/apply.lua`, and decodes the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qframe.contracts import step as op
from qframe.contracts.step import APPLIED, LOST, UNKNOWN, Outcome, Reservation, Result, Step
from qframe.drivers.redis import message
from qframe.drivers.redis.commands import RedisCommand, Word, call
from qframe.drivers.redis.connection import RedisConnection
from qframe.drivers.redis.job import RedisJob, State, noted, released
from qframe.drivers.redis.keys import Keys, QueueKeys
from qframe.drivers.redis.records import encoded

_MOST = 5000
_MOST_BYTES = 4_000_000
_CHECKS: dict[type, Callable[[Any], Sequence[Word]]] = {
    op.Expect: lambda it: ("expect", it.key, _given(it.value)),
    op.Extend: lambda it: ("extendable", it.latch),
    op.Forget: lambda it: ("recorded", it.uuid, _ttl(it.failed_at)),
}
"""Operations that are checked before anything changes."""
_EVEN_WHEN_FULL = {op.Expect, op.Unset, op.Forget, op.Record, op.Arrive, op.Leave, op.Close}
"""Operations that work when the memory is full, because they end something."""
_BEGUN = 5
"""Offset of the started message's bytes within a step's words."""
_FOR_EVER = 3e9
"""Seconds; the longest life of a key."""


class RedisSteps:
    """Steps for one call of the script."""

    marked = False
    """Whether the server needs a marker to apply it only once."""
    pushes = False
    tagged = False
    """Whether equal messages may need to be told apart."""
    awaited = False
    """Whether the new state of reservations depends on the answer."""
    command: RedisCommand | None = None
    _touched = ""
    _bytes = _count = 0
    _kind: tuple[str, float, int | None] = ("", 0.0, None)
    """Queue, delay and priority of the last encoded message."""
    _end = _pushed = -1
    """Index behind its words, and index of the counter of messages like it."""
    _at = 0
    """Index of the last step's words."""
    _repeatable = False
    """Whether that step's fence makes it safe to send twice."""

    def __init__(self, keys: Keys) -> None:
        self.key = ""
        """A key that determines the server; on a Cluster all other keys are in its slot."""
        self.jobs: list[RedisJob] = []
        self.queues: set[QueueKeys] = set()
        self._keys = keys
        self._words: list[Any] = []
        self._steps: list[Step] = []
        self._changes: dict[int, tuple[RedisJob, op.Start | op.Renew, bytes]] = {}
        """Operations on reservations by index of the step, with the key of the notes."""
        self._ended: dict[int, RedisJob] = {}
        """Reservations that are settled, by index of the step."""
        self._before: dict[int, tuple[RedisJob, State]] = {}
        """Their states before they were sent."""
        self._notes: list[bytes] = []
        """Keys of notes."""

    # -- encoding steps ---------------------------------------------------------------------------

    def add(self, step: Step) -> bool:
        """Add a step. Returns False if it belongs to the next exchange."""
        job, operations = step.reservation, step.operations
        if job is not None:
            job = _own(job)
        if not self._steps:
            self.key = self._key_of(job, operations)
        elif not self._has_room(job, operations):
            return False
        words, kinds = self._words, set(map(type, operations))
        at = self._at = len(words)
        words.append(0)
        if job is not None:
            self._fence(job)
        elif not self._touched and kinds <= _EVEN_WHEN_FULL:
            self._touched = f"{self._keys.facts}order"
        is_checked = not kinds.isdisjoint(_CHECKS)
        if is_checked:
            self._check(operations)
        # The fence makes these safe to send twice. So is a step that only renews, except for a held
        # message, whose new score the answer returns.
        self._repeatable = job is not None and not job.score and kinds <= {op.Start, op.Renew}
        for each in operations:
            _ENCODERS[type(each)](self, each, job)
        words[at] = len(words) - at
        if is_checked and len(self._steps) in self._changes:
            self.awaited = True
        if not self._repeatable:
            self.marked = True
        self._steps.append(step)
        return True

    def _fence(self, job: RedisJob) -> None:
        self.jobs.append(job)
        self.queues.add(job.keys)
        self._touched = job.keys.reserved
        self._words += ("fence", self._touched, job.stored, job.score, b"")

    def _check(self, operations: Sequence[object]) -> None:
        for each in operations:
            if type(each) in _CHECKS:
                self._words += _CHECKS[type(each)](each)

    def _has_room(self, job: RedisJob | None, operations: Sequence[object]) -> bool:
        if self._count >= _MOST or self._bytes >= _MOST_BYTES:
            return False
        for changed, *_ in self._changes.values():
            if changed is job:
                return False  # its new state must be known first
        return not self._keys.braces or self._key_of(job, operations) == self.key

    def _key_of(self, job: RedisJob | None, operations: Sequence[object]) -> str:
        if job is not None:
            return job.keys.ready
        if operations and isinstance(operations[0], op.Push):
            return self._keys.of(operations[0].queue).ready
        return self._keys.facts

    def _push(self, push: op.Push, _: RedisJob | None) -> None:
        """Encode a message; consecutive messages with the same queue and delay share a header."""
        words, level = self._words, b""
        if push.priority is not None:
            level = self._level(push)
        raw = message.sent(push.raw, level)
        if push.attempts or push.notes:
            raw = self._begun(push, level)
        self._bytes += len(raw)
        self._count += 1
        if push.buried:
            words += ("aside", self._keys.of(push.queue).ready, raw)
            return
        kind = (push.queue, push.delay, push.priority)
        if self._end == len(words) and self._kind == kind:
            words[self._pushed] += 1
            words.append(raw)
        else:
            keys = self._keys.of(push.queue)
            self.queues.add(keys)
            words += ("push", keys.ready, _delay(push.delay), 1, raw)
            self._pushed = len(words) - 2
            self._kind = kind
            self.pushes = True
            self.tagged = self.tagged or push.delay > 0 or bool(level)
        self._end = len(words)

    def _begun(self, push: op.Push, level: bytes) -> bytes:
        """Encode the notes of a message that was started elsewhere; return its stored form."""
        stored, tag, notes = message.begun(push.raw, push.attempts, push.notes)
        key = self._keys.of(push.queue).notes + tag
        self._words += ("note", key, notes)
        self._notes.append(key)
        return stored + level

    def _level(self, push: op.Push) -> bytes:
        return message.level(push.priority, self._keys.of(push.queue).aging)

    def _start(self, start: op.Start, job: RedisJob) -> None:
        if job.score:
            self._repeatable = True
            stored, tag = job.begun()
            self._words[self._at + _BEGUN] = stored
            notes = message.noted(job.beside + (job.at < 0), start.notes)
            note = job.keys.notes + tag if notes else b""
            self._words += ("start", repr(start.lease), job.note, note, notes)
            self._notes += (job.note, note)
        else:
            _, note, notes = noted(job, start.notes, job.beside)
            self._words += ("renew", repr(start.lease), "1", note, notes)
            self._notes.append(note)
        self._changes[len(self._steps)] = (job, start, note)

    def _renew(self, renew: op.Renew, job: RedisJob) -> None:
        self._words += ("renew", repr(renew.lease), "0" if job.score else "1", "", "")
        self._changes[len(self._steps)] = (job, renew, b"")

    def _settle(self, job: RedisJob) -> None:
        self._repeatable = True
        self._ended[len(self._steps)] = job

    def _delete(self, _: op.Delete, job: RedisJob) -> None:
        self._settle(job)
        self._words += ("delete", job.note)
        self._notes.append(job.note)

    def _release(self, release: op.Release, job: RedisJob) -> None:
        self._settle(job)
        stored, note, notes = released(job, release)
        where = "head" if release.front else "tail"
        if release.delay > 0:
            where = repr(release.delay)
            self.tagged = True
        self._words += ("release", job.keys.ready, stored, where, note, notes)
        self._notes.append(note)

    def _bury(self, bury: op.Bury, job: RedisJob) -> None:
        self._settle(job)
        stored, note, notes = noted(job, bury.notes, job.beside)
        self._words += ("bury", job.keys.buried, stored, note, notes)
        self._notes.append(note)

    def _open(self, opened: op.Open, _: RedisJob | None) -> None:
        then = opened.then
        keys = self._keys.of(then.queue)
        priority = "" if then.priority is None else then.priority
        self._words += (
            "open", opened.latch, opened.every, _ttl(opened.ttl), keys.ready,
            then.queue, message.sent(then.raw, self._level(then)), _delay(then.delay), priority,
        )  # fmt: skip

    def _arrive(self, arrival: op.Arrive, _: RedisJob | None) -> None:
        self.tagged = self.pushes = True
        self._words += _arriving(arrival)

    def _close(self, closed: op.Close, _: RedisJob | None) -> None:
        self.tagged = self.pushes = True
        self._words += ("close", closed.latch, int(closed.push))

    # -- to the server and back -------------------------------------------------------------------

    def command_for(self, connection: RedisConnection, skew: float) -> RedisCommand:
        """Return the command that applies the steps; the same on each call."""
        if self.command is None:
            number = str(connection.next_number()) if self.marked else ""
            keys: list[str | bytes]
            if self._keys.braces:
                marked = [connection.marker, f"{connection.marker}:results"] * self.marked
                keys = [*marked, *self._declared()]
            else:
                keys = [connection.marker if self.marked else self.key, self._keys.names]
            tag = message.new_tag() if self.tagged else b""
            names = "" if self._keys.braces else self._keys.names
            self.command = call(
                "apply", keys, repr(skew), tag, number, names, self._keys.facts,
                self._touched, *self._words,
            )  # fmt: skip
        return self.command

    def _declared(self) -> list[str | bytes]:
        """Return the keys that it touches, except markers."""
        found: set[str | bytes] = {self._touched, *self._notes}
        for step in self._steps:
            job = None if step.reservation is None else _own(step.reservation)
            if job is not None:
                found.add(job.keys.reserved)
            for each in step.operations:
                found.update(self._keys_of(each, job))
        return sorted(found - {"", b""}, key=str)

    def _keys_of(self, operation: object, job: RedisJob | None) -> Sequence[str]:
        facts = self._keys.facts
        match operation:
            case op.Push(queue=queue):
                return self._keys.of(queue).declared
            case op.Release() | op.Bury() if job is not None:
                return job.keys.declared
            case (
                op.Expect(key=key)
                | op.Set(key=key)
                | op.Unset(key=key)
                | op.Raise(key=key)
                | op.Add(key=key)
            ):
                return (f"{facts}:{key}",)
            case (
                op.Open(latch=name)
                | op.Extend(latch=name)
                | op.Arrive(latch=name)
                | op.Leave(latch=name)
                | op.Close(latch=name)
            ):
                return f"{facts}latch:{name}", f"{facts}lost:{name}"
            case op.Record() | op.Forget():
                return f"{facts}failed", f"{facts}order"
        return ()

    def begin(self, asked_at: float) -> None:
        """Assume that all steps are applied; `results` takes back what was not."""
        for place, (job, *_) in self._changes.items():
            self._before[place] = job, job.state()
            self._change(place, asked_at)
        self._changes = {}

    def results(self, reply: object, asked_at: float, *, is_repeat: bool) -> list[Result]:
        """Return the result of each step; `is_repeat`: an earlier request got no answer."""
        if reply == 1:
            for job in self._ended.values():
                job.sure_until = 0.0
            for place in self._changes:
                self._change(place, asked_at)
            return [APPLIED] * len(self._steps)
        answers = reply if isinstance(reply, list) else [0] * len(self._steps)
        unsure = set(self.jobs) if is_repeat and not self.marked else set()
        found = []
        for place, each in enumerate(answers):
            result = _result(each)
            ended = self._ended.get(place)
            if ended is None:
                self._became(place, each, result, asked_at)
            elif result.applied or (result.lost and ended in unsure):
                result = result if result.applied else UNKNOWN
                ended.sure_until = 0.0
                unsure.discard(ended)
            found.append(result)
        return found

    def _became(self, place: int, answer: object, result: Result, asked_at: float) -> None:
        """Update a reservation that continues."""
        if not result.applied:
            if place in self._before:
                job, state = self._before[place]
                job.restore(state)
        elif place in self._changes:  # otherwise `begin` has changed it already
            self._change(place, asked_at)
            if isinstance(answer, list) and answer[1]:
                self._changes[place][0].score = answer[1]

    def _change(self, place: int, asked_at: float) -> None:
        job, operation, note = self._changes[place]
        job.sure_until = asked_at + operation.lease / 3
        if isinstance(operation, op.Renew):
            return
        if job.score:
            job.start(note, operation.notes, operation.lease)
        else:
            job.note, job.notes, job.lease = note, operation.notes, operation.lease


_Encoder = Callable[[RedisSteps, Any, Any], None]


def _simple(words: Callable[[Any], Sequence[Word]]) -> _Encoder:
    def encode(exchange: RedisSteps, operation: object, _: object) -> None:
        exchange._words += words(operation)  # noqa: SLF001

    return encode


_SIMPLE: dict[type, Callable[[Any], Sequence[Word]]] = {
    op.Set: lambda it: ("set", it.key, it.value, _ttl(it.ttl)),
    op.Unset: lambda it: ("unset", it.key, _given(it.value)),
    op.Raise: lambda it: ("raise", it.key, it.rank, it.value, _ttl(it.ttl)),
    op.Add: lambda it: ("add", it.key, it.number, _ttl(it.ttl)),
}
_ENCODERS: dict[type, _Encoder] = {
    op.Push: RedisSteps._push,  # noqa: SLF001 (a table of its methods)
    op.Start: RedisSteps._start,  # noqa: SLF001
    op.Renew: RedisSteps._renew,  # noqa: SLF001
    op.Delete: RedisSteps._delete,  # noqa: SLF001
    op.Release: RedisSteps._release,  # noqa: SLF001
    op.Bury: RedisSteps._bury,  # noqa: SLF001
    op.Open: RedisSteps._open,  # noqa: SLF001
    op.Arrive: RedisSteps._arrive,  # noqa: SLF001
    op.Close: RedisSteps._close,  # noqa: SLF001
    op.Expect: _simple(lambda _: ()),  # it is among the checks
    op.Extend: _simple(lambda it: ("extend", it.latch, it.size)),
    op.Leave: _simple(lambda it: ("leave", it.latch, it.member)),
    op.Record: _simple(lambda it: ("record", it.job.uuid, encoded(it.job))),
    op.Forget: _simple(lambda it: ("forget", it.uuid)),
    **{kind: _simple(words) for kind, words in _SIMPLE.items()},
}


def _arriving(it: op.Arrive) -> Sequence[Word]:
    return "arrive", it.latch, it.member, int(it.failed), it.label, int(it.push)


_BESIDES = _SIMPLE | {op.Arrive: _arriving}


def besides(operations: Sequence[object]) -> list[Word] | None:
    """Encode operations that are about no message.

    None if one of them may be refused, or is of another kind.
    """
    words: list[Word] = []
    for each in operations:
        encode = _BESIDES.get(type(each))
        if encode is None:
            return None
        words += encode(each)
    return words


def _own(job: Reservation) -> RedisJob:
    if isinstance(job, RedisJob):
        return job
    raise TypeError(f"{job!r} is not of this backend")


def _given(value: str | None) -> str:
    """Encode a value or its absence."""
    return "" if value is None else f"={value}"


def _delay(seconds: float) -> str:
    return repr(seconds) if seconds > 0 else "0"


def _ttl(seconds: float | None) -> str:
    return "" if seconds is None else repr(min(seconds, _FOR_EVER))


def _result(answer: object) -> Result:
    if answer == 1:
        return APPLIED
    if not isinstance(answer, list):
        return LOST
    kind, *rest = answer
    if kind == b"refused":
        key, holds = rest
        return Result(Outcome.REFUSED, key.decode(), None if holds is None else holds.decode())
    groups = zip(*[iter(rest[1:])] * 4, strict=True)
    return Result(Outcome.APPLIED, due=tuple(_push_of(*group) for group in groups))


def _push_of(queue: bytes, raw: bytes, delay: bytes, priority: bytes) -> op.Push:
    sent = message.read(raw, b"")[0]
    return op.Push(queue.decode(), sent, float(delay), int(priority) if priority else None)
