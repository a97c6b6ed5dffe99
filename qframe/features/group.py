"""Groups: the jobs of one key of a queue, which take turns with those of other keys.

A group has few messages in its queue at a time, its *places*: one as long as none of its jobs is
taken, or as many as may run at once. The other jobs are in line, as the facts
`grouped:QUEUE:HASH:N`, and `group:QUEUE:HASH` says which jobs have a place, and where the line
begins and ends. When a place becomes free, the first in line is pushed to the tail of the queue, in
the same step. An empty group has no facts.

Whatever pushes without a place (a delay, a transaction, a chain, PHP) is lined up by the worker
that takes it.

Where steps are made in parts (`drivers/ordered.py`), `turn:QUEUE:HASH:UUID` says more of a job. A
dispatcher claims it with a place, so that nobody stands in line behind a job whose push broke off.
Later it has a word for the worker that gets a message again, or gets another one of the same job:
that the job is in line, which message of it runs, that it has left its group, or is done.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar

from pydantic_core import from_json, to_json

from qframe.config import GroupSettings
from qframe.contracts.backend import Backend
from qframe.contracts.status import State
from qframe.contracts.step import (
    Claim,
    Delete,
    Expect,
    Operation,
    Outcome,
    Push,
    Release,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.drivers import claims
from qframe.features.base import DONE_BEFORE, End, Plan, Pushing, attempts
from qframe.features.batches import apply_for
from qframe.features.context import Context, Prepared, push_of
from qframe.features.reserved import Feature, Postponed, ReservedJob
from qframe.jobs.foreign import foreign
from qframe.jobs.groups import LONGEST_NAME
from qframe.payload import envelope
from qframe.payload.envelope import Envelope

log = logging.getLogger("qframe")

KEY = "group"
"""The payload key of the group's name."""
ADVANCES = "qframe.features.group_jobs.AdvanceGroup"
_BELIEVED = 1.0
"""Seconds for which a group's facts are taken to be as they were last seen."""
_MOST_SEEN = 1000
_MARKED_FOR = 60.0
"""Seconds after which the mark of a queue is written again: somebody may have emptied the store."""
_FULL_DELAY = 1.0
"""Seconds after which a job of a full group that cannot stand in line looks again."""
_CLAIMED_FOR = 3600.0
"""Seconds that a claim is kept once it is proven."""
_WORD_KEPT = 3600.0
"""Seconds, and the lease, that it is kept how a job has ended."""
_LINED_FOR = 90 * 86400.0
_ADVANCED_FOR = 10.0
"""Seconds after which another job is pushed that advances the same group."""
_IN_LINE, _LEFT, _DONE = "in line", "left", "done"
_RUNS = "runs "
"""Before the id of the message by which a job runs."""
_AT_ONCE = 100
"""Jobs in line that are passed over or pushed in one step."""
_PLAIN = GroupSettings()
_BACK = Release(counted=False)
_GONE = Delete()
_MOST_IN_LINE = 100_000_000
_MOST_BLANKS = 1000
"""Places in line without a job that one step passes over."""
_FURTHEST = 10 * 365 * 86400.0
"""Seconds from now to the latest start that a rate can allow."""
_SETTLED = {Outcome.APPLIED, Outcome.LOST}


def marker_key(queue: str) -> str:
    """Return the key of the fact that a queue has had groups, which stays."""
    return f"groups:{queue}"


def state_prefix(queue: str) -> str:
    return f"group:{queue}:"


@dataclass(frozen=True, slots=True)
class GroupLine:
    """The jobs of a group, as `group:QUEUE:HASH` has it."""

    name: str
    first: int = 0
    """The number of the first job in line."""
    end: int = 0
    """The number of the next one to join."""
    placed: tuple[str, ...] = ()
    """The uuids of the jobs that have a place."""
    due: float = 0.0
    """When the rate allows the next start (epoch seconds)."""

    @classmethod
    def read(cls, text: str) -> GroupLine:
        """Decode. Raises `ValueError`."""
        try:
            name, _, first, end, placed, due = from_json(text)
            line = cls(str(name), int(first), int(end), tuple(map(str, placed)), float(due))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"what is kept of a group cannot be read: {error}") from None
        in_order = 0 <= line.first <= line.end <= line.first + _MOST_IN_LINE
        if not (in_order and 0 <= line.due <= time.time() + _FURTHEST):
            raise ValueError("what is kept of a group cannot be: a number in it was changed")
        return line

    def text(self) -> str:
        """Encode. Two states are never equal, so that an old one is not taken for a later one."""
        word = secrets.token_hex(4)
        fields = [self.name, word, self.first, self.end, self.placed, self.due]
        return to_json(fields).decode()

    @property
    def waiting(self) -> int:
        """How many jobs are in line."""
        return self.end - self.first


@dataclass(slots=True)
class _Seen:
    """What a process knows of the groups of a connection."""

    states: dict[str, tuple[str | None, float]] = field(default_factory=dict)
    """By key: what the fact held, or will when a step is applied; and when that was."""
    marked: dict[str, float] = field(default_factory=dict)
    """The queues that are known to have had groups, and since when."""
    settings: dict[str, GroupSettings] = field(default_factory=dict)
    certain: dict[str, float] = field(default_factory=dict)
    """The jobs with a place whose claims stand, by key, and when that was seen."""
    advanced: dict[str, float] = field(default_factory=dict)
    """When a job was pushed that advances a group."""
    words: dict[str, str] = field(default_factory=dict)
    """What is kept of jobs that are pushed again, by key."""

    @classmethod
    def of(cls, context: Context) -> _Seen:
        found: _Seen | None = context.kept.get(KEY)
        if found is None:
            found = context.kept[KEY] = cls()
        return found

    def note(self, key: str, text: str | None) -> None:
        if len(self.states) >= _MOST_SEEN:
            self.states.clear()
        self.states[key] = text, time.monotonic()

    def last(self, key: str) -> str | None:
        text, at = self.states.get(key, (None, 0.0))
        return text if time.monotonic() - at < _BELIEVED else None

    @staticmethod
    def lately(noted: dict[str, float], key: str, seconds: float) -> bool:
        """Whether a key was noted in the last `seconds`."""
        return time.monotonic() - noted.get(key, -math.inf) < seconds

    @staticmethod
    def keep(noted: dict[str, float], key: str) -> None:
        """Note a key."""
        if len(noted) >= _MOST_SEEN:
            noted.clear()
        noted[key] = time.monotonic()


def settings_of(context: Context, queue: str) -> GroupSettings:
    """Return the settings for the groups of a queue: those of its name, or of the first pattern."""
    found = _Seen.of(context).settings
    if queue not in found:
        if len(found) >= _MOST_SEEN:
            found.clear()
        given = context.groups
        named = (given[text] for text in given if fnmatchcase(queue, text))
        found[queue] = given.get(queue) or next(named, _PLAIN)
    return found[queue]


class Group:
    """One group of one queue, and the operations that change it."""

    def __init__(self, context: Context, queue: str, name: str) -> None:
        self.name = name
        self.queue = queue
        self.settings = settings_of(context, queue)
        digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        self.key = f"{state_prefix(queue)}{digest}"
        self._seen = _Seen.of(context)
        self.context = context
        self._backend: Backend = context.backend

    @classmethod
    def of(cls, context: Context, queue: str, message: Mapping[str, Any]) -> Group | None:
        """Return the group that a payload names; None if it names none, or cannot have one."""
        name = envelope.text(message, KEY, LONGEST_NAME)
        if (
            name is None
            or context.at_once
            or not are_kept(context)
            or envelope.uuid(message) is None
        ):
            return None
        return cls(context, queue, name)

    @property
    def places(self) -> int:
        """How many messages of the group are in its queue, or run if that is limited."""
        return self.settings.at_once or 1

    # -- its state --------------------------------------------------------------------------------

    def guess(self) -> str | None:
        return self._seen.last(self.key)

    def read(self) -> str | None:
        (text,) = self._backend.read(self.key)
        self._seen.note(self.key, text)
        return text

    def line(self, text: str | None) -> GroupLine:
        if text is not None:
            try:
                return GroupLine.read(text)
            except ValueError:
                log.exception("the group %s of %s begins anew", self.name, self.queue)
        return GroupLine(self.name)

    def change(self, before: str | None, line: GroupLine) -> list[Operation]:
        """Return the operations that replace a state; none is kept of an empty group."""
        made: list[Operation] = [Expect(self.key, before)]
        left = line.due - time.time()
        if not (line.placed or line.waiting):
            line = replace(line, first=0, end=0)
        if line.placed or line.waiting or left > 0:
            text = line.text()
            made.append(Set(self.key, text, None if line.placed or line.waiting else left))
        else:
            text = None
            made.append(Unset(self.key))
        self._seen.note(self.key, text)
        return made

    def _next_start(self, line: GroupLine) -> tuple[float, GroupLine]:
        """Return the delay of a job that gets a place, and the line with its start counted."""
        if not self.settings.per_second:
            return 0.0, line
        now = time.time()
        due = max(now, line.due)
        return due - now, replace(line, due=due + 1 / self.settings.per_second)

    # -- in parts ---------------------------------------------------------------------------------

    def turn_key(self, uuid: str) -> str:
        """Return the key of what is kept of one of its jobs."""
        return turn_key(self.key, uuid)

    def word(self, uuid: str, word: str, seconds: float) -> list[Operation]:
        """Return the operation that keeps a word about a job; none where nobody needs it."""
        return [Set(self.turn_key(uuid), word, seconds)] if self.context.in_parts else []

    def no_word(self, uuid: str) -> list[Operation]:
        """Return the operation that removes the word about a job."""
        return [Unset(self.turn_key(uuid))] if self.context.in_parts else []

    def claim(self, uuid: str) -> list[Operation]:
        """Return the operation by which a place counts only if the job is pushed."""
        if not self.context.in_parts:
            return []
        key = self.turn_key(uuid)
        return [Claim(key, uuid, _CLAIMED_FOR, self._seen.words.pop(key, None), lasts=True)]

    def unclaimed(self, uuid: str) -> list[Operation]:
        """Return the operations by which a job without a place counts, though pushed before."""
        if not self.context.in_parts:
            return []
        return [Unset(self.turn_key(uuid)), claims.not_void(uuid)]

    def _certain(self, line: GroupLine) -> GroupLine:
        """Return a state without the places of jobs whose push broke off."""
        if not self.context.in_parts or all(map(self._is_certain, line.placed)):
            return line
        return replace(line, placed=(*filter(self._is_certain, line.placed),))

    def _is_certain(self, uuid: str) -> bool:
        key = self.turn_key(uuid)
        if self._seen.lately(self._seen.certain, key, _BELIEVED):
            return True
        if not claims.stands(self._backend, key, uuid):
            return False
        self._seen.keep(self._seen.certain, key)
        return True

    def advancing(self, left: str = "") -> Push:
        """Return the push of the internal job that fills free places; `left` has none any more."""
        # Not by its class, whose import would cost every program time.
        job = foreign(ADVANCES, {"name": self.name, "left": left})
        made = Envelope(envelope.create(job, self.context.keyring))
        prepared = Prepared(made.uuid, made.raw, self.queue, 0.0, message=made.payload)
        return push_of(self.context.pushing(prepared))

    # -- moves ------------------------------------------------------------------------------------

    def joined(
        self, before: str | None, uuid: str, raw: bytes
    ) -> tuple[float | None, list[Operation]]:
        """Return the operations that give a job a place, or put it in line.

        Also returns the seconds until it may start; None if it is in line.
        """
        line = self._certain(self.line(before))
        if len(line.placed) < self.places:
            if not line.waiting:
                delay, line = self._next_start(line)
                return delay, self.change(before, replace(line, placed=(*line.placed, uuid)))
            if not self._seen.lately(self._seen.advanced, self.key, _ADVANCED_FOR):
                self._backend.apply(Step(None, self.advancing()))
                self._seen.keep(self._seen.advanced, self.key)
        made = self.change(before, replace(line, end=line.end + 1))
        made.append(Set(entry_key(self.key, line.end), raw.decode()))
        if not self._seen.lately(self._seen.marked, self.queue, _MARKED_FOR):
            self._seen.keep(self._seen.marked, self.queue)
            made.append(Set(marker_key(self.queue), "1"))
        return None, made

    def left(self, before: str | None, uuid: str) -> list[Operation]:
        """Return the operations that take a place back and push the next in line."""
        line = self.line(before)
        rest = replace(line, placed=tuple(each for each in line.placed if each != uuid))
        placed = [*self._certain(rest).placed]
        first, pushes, blanks = line.first, list[Operation](), 0
        while len(placed) < self.places and first < line.end:
            if blanks >= _MOST_BLANKS:
                pushes.append(self.advancing())
                break
            most = _AT_ONCE if blanks else self.places - len(placed)
            count = min(most, line.end - first)
            keys = [entry_key(self.key, number) for number in range(first, first + count)]
            for key, text in zip(keys, self._backend.read(*keys), strict=True):
                if text and len(placed) >= self.places:
                    break
                first += 1
                blanks += not text
                pushes.append(Unset(key))
                if text:  # "": it was cancelled
                    push, own_uuid, line = self._pushed(text, line)
                    pushes.append(push)
                    placed += [own_uuid] if own_uuid else []
        if (*placed,) == line.placed and first == line.first:
            return []
        line = replace(line, first=first, placed=(*placed,))
        return [*self.change(before, line), *pushes]

    def _pushed(self, text: str, line: GroupLine) -> tuple[Push, str, GroupLine]:
        """Return the push of a job in line, its uuid, and the line with its start counted."""
        delay, line = self._next_start(line)
        job = self.context.as_it_is(text.encode(), self.queue, delay)
        return push_of(job), envelope.uuid(job.message) or "", line


class GroupFeature(Feature):
    """Gives jobs of a group their places, one after the other."""

    key: ClassVar[str] = KEY
    waits: ClassVar[bool] = True
    asks: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Put the job in line if its group has no place for it.

        Only where the step may be tried again, and is in no transaction of a program, which would
        keep the group's state from workers. Elsewhere it is lined up when a worker takes it.
        """
        is_lined_up_later = not plan.is_alone or job.delay or context.in_transaction
        if is_lined_up_later and not job.retried:
            return
        group, uuid = Group.of(context, job.queue, job.message), envelope.uuid(job.message)
        if group is None or uuid is None:
            return
        if job.retried:
            plan.add(*group.no_word(uuid))
            return
        delay, made = group.joined(group.guess(), uuid, job.raw)
        at = next(i for i, each in enumerate(plan.operations) if isinstance(each, Push))
        if delay is None:
            del plan.operations[at]
            made += group.unclaimed(uuid)
        else:
            made += group.claim(uuid)
            if delay:
                plan.operations[at] = replace(push_of(job), delay=delay)
        plan.add(*made)

    def learn(self, context: Context, refused: Result) -> bool:
        if refused.key.startswith("group:"):
            _Seen.of(context).note(refused.key, refused.holds)
            return True
        if not refused.key.startswith("turn:") or claims.is_refused_by_claim(refused):
            return False
        words = _Seen.of(context).words
        if len(words) >= _MOST_SEEN:
            words.clear()
        if refused.holds is not None:  # it is pushed once more
            words[refused.key] = refused.holds
        return True

    # -- a worker has taken it --------------------------------------------------------------------

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip a job whose push broke off, or that was done before."""
        turn = _turn(job) if job.context.in_parts else None
        if turn is None:
            return None
        key = turn.group.turn_key(job.own_uuid)
        if claims.is_void(job.context.backend, key, job.own_uuid, _CLAIMED_FOR):
            turn.is_void = True
            return "never dispatched: its push was broken off, and its group went on"
        return f"{DONE_BEFORE}its group has gone on" if turn.word == _DONE else None

    def joins_first(self, job: ReservedJob) -> bool:
        """Whether the job has no place yet: set aside, it would lose its turn to later ones."""
        turn = _turn(job)
        return turn is not None and turn.is_to_join()

    def wait_reason(self, job: ReservedJob) -> Postponed | None:
        """Return why a held job must wait: it has no place.

        In a group without a limit, a job that starts gives its place to the next.
        """
        turn = _turn(job)
        if turn is None:
            return None
        # In parts: if this process dies, the message comes back, and with it what is pushed.
        of = job.reservation if job.context.in_parts else None
        for _ in attempts(f"the group {turn.group.name}"):
            needed = turn.before_start()
            if isinstance(needed, Postponed):
                return needed
            if not needed and turn.word == _LEFT:
                job.reservation.unsent = True  # its last worker may have died before the push
            if not needed or job.context.backend.apply(Step(of, *needed))[0].outcome in _SETTLED:
                turn.has_left = bool(needed) and not turn.group.settings.at_once
                break  # a lease that was lost shows at the start
            vars(turn).pop("word", None)
        return None

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        turn = _turn(job)
        if turn is None:
            return
        group = turn.group
        if turn.lines_up and end.state is State.WAITING:
            if turn.is_spare:
                plan.instead = _GONE
                return
            # Several that were taken together are lined up by one request.
            before = group.read() if turn.was_planned else group.guess()
            turn.was_planned = True
            delay, made = group.joined(before, job.own_uuid, job.raw_body)
            if delay is None:
                made += group.word(job.own_uuid, _IN_LINE, _LINED_FOR)
            plan.instead = _GONE if delay is None else replace(_BACK, delay=delay)
        elif end.state.is_final or end.state is State.BURIED:
            if end.state is State.FAILED and group.settings.blocks:
                plan.add(*group.no_word(job.own_uuid))  # any message of it may be the next to run
                return
            made = [] if turn.has_left else group.left(group.read(), job.own_uuid)
            # What is kept may be of a dispatch that was repeated.
            made += [] if turn.is_void else turn.last_word(job, end)
        elif turn.word == turn.runs:
            made = group.no_word(job.own_uuid)  # it may come back as another message
        else:
            return
        if made:
            plan.add(*made)
            plan.waited_for = True


class _Turn:
    """One reservation of a job of a group."""

    def __init__(self, group: Group, uuid: str, message: str, *, is_fresh: bool) -> None:
        self.group = group
        self.uuid = uuid
        self.runs = _RUNS + message
        """The word that the job runs by this message."""
        self.is_fresh = is_fresh
        """Whether nothing is kept beside the message, which can so be put in line."""
        self.has_left = False
        """Whether its place went to the next one."""
        self.lines_up = False
        self.is_spare = False
        """Whether the message is to be removed: the job is in line, or runs by another one."""
        self.is_void = False
        """Whether its push broke off."""
        self.was_planned = False
        """Whether a step was planned that lines it up, and perhaps was refused."""

    @cached_property
    def word(self) -> str | None:
        """The word that is kept about it, where steps are made in parts."""
        context = self.group.context
        return context.backend.read(self.group.turn_key(self.uuid))[0] if context.in_parts else None

    def before_start(self) -> Postponed | Sequence[Operation]:
        """Return what has to be done before it may start, or why it may not."""
        group, before = self.group, self.group.read()
        line, at_once = group.line(before), self.group.settings.at_once
        if self.uuid in line.placed:
            if at_once:
                return self._runs_alone()
            return [*group.left(before, self.uuid), *group.word(self.uuid, _LEFT, _LINED_FOR)]
        if self.word == _LEFT or not (self.is_fresh or at_once):
            return ()
        if self.is_fresh:
            self.lines_up = True
            self.is_spare = self.word == _IN_LINE
            return Postponed("its group lines up")
        if len(line.placed) >= group.places:
            return Postponed("as many of its group run as may", _FULL_DELAY)
        return group.change(before, replace(line, placed=(*line.placed, self.uuid)))

    def is_to_join(self) -> bool:
        """Whether `before_start` would line it up."""
        placed = self.group.line(self.group.read()).placed
        return self.is_fresh and self.uuid not in placed and self.word != _LEFT

    def _runs_alone(self) -> Postponed | Sequence[Operation]:
        """Keep, in parts, which message the job runs by: there may be another one."""
        if not self.group.context.in_parts or self.word == self.runs:
            return ()
        if self.word is not None and self.word.startswith(_RUNS):
            self.lines_up = self.is_spare = True
            return Postponed("another message of it runs")
        key, before = self.group.turn_key(self.uuid), self.word
        self.word = self.runs
        return [Expect(key, before), Set(key, self.runs, _LINED_FOR)]

    def last_word(self, job: ReservedJob, end: End) -> list[Operation]:
        """Return the operation that keeps, in parts, that a job is done and not to be repeated."""
        if end.state in {State.COMPLETE, State.SKIPPED, State.CANCELLED}:
            return self.group.word(job.own_uuid, _DONE, _WORD_KEPT + 2 * job.reservation.lease)
        return self.group.no_word(self.uuid)

    @classmethod
    def of(cls, job: ReservedJob) -> _Turn | None:
        group = Group.of(job.context, job.queue, job.payload)
        reservation = job.reservation
        # In parts the words tell what has begun; beanstalkd counts each reservation.
        is_fresh = job.context.in_parts or not (reservation.attempts or reservation.notes)
        return (
            None if group is None else cls(group, job.own_uuid, reservation.id, is_fresh=is_fresh)
        )


def advance(group: Group, left: str = "", job: ReservedJob | None = None) -> None:
    """Fill the free places of a group; `left` has none any more. In the name of a running job."""
    for _ in attempts(f"the group {group.name}"):
        plan = Plan(None, *group.left(group.read(), left))
        if not plan.operations or apply_for(group.context, job, plan).applied:
            return


def are_kept(context: Context) -> bool:
    """Whether the backend of a connection keeps groups."""
    return context.joint or context.in_parts


def entry_key(key: str, number: int) -> str:
    """Return the key of a job in line of the group with this key."""
    return f"grouped:{key.removeprefix('group:')}:{number}"


def turn_key(key: str, uuid: str) -> str:
    """Return the key of the word on a job of the group with this key."""
    return f"turn:{key.removeprefix('group:')}:{uuid}"


# -- reservations ---------------------------------------------------------------------------------


def _turn(job: ReservedJob) -> _Turn | None:
    return job.read_once(KEY, lambda: _Turn.of(job))
