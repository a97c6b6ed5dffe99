"""OrderedBackend: non-atomic steps. Facts first, then pushes, the reservation last.

Messages are in one backend, facts and failed records in others (beanstalkd; a Cluster, where each
is in its own slot; a store configured elsewhere). A step is made in parts, each of them atomic and
safe to repeat. If a process dies between two parts, the reservation's lease runs out and the
message is delivered again, to a job whose facts may already be written. Therefore the pushes of the
step are in an outbox, written with the facts: the worker that next starts or settles the message
sends it. Everything happens at least once, and nothing is lost.

Nobody sends later what a step about no reservation was to push: the push may be refused, or its
dispatcher killed. So the claims of such a step count once its message is pushed (`claims.py`), and
its facts about the jobs are written after the push.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from qframe import events
from qframe.contracts import step as op
from qframe.contracts.backend import Backend, Capability, Health, Standing
from qframe.contracts.browsing import Found, Page, Place, Span
from qframe.contracts.facts import FactCopy, Latch, LatchCopy
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Sizes
from qframe.contracts.step import APPLIED, Claim, Outcome, Push, Reservation, Result, Step
from qframe.drivers.claims import PushStep, in_one, withdrawing
from qframe.drivers.parts import in_parts
from qframe.exceptions import BackendUnavailable, InvalidPayload, InvalidSignature
from qframe.forks import cached_property
from qframe.payload.envelope import new_uuid
from qframe.payload.signature import Signer, is_signed, seal, unseal

log = logging.getLogger("qframe")

_PARTS: dict[type, str] = {
    **dict.fromkeys(get_args(op.OfReservation), "own"),
    **dict.fromkeys((*get_args(op.OfFact), *get_args(op.OfLatch), *get_args(op.OfParts)), "facts"),
    Push: "pushes",
    op.Record: "records",
    op.Forget: "forgotten",
}
"""The part of a step that each operation belongs to."""
_OF_PUSH = {Push, *get_args(op.OfFact), *get_args(op.OfParts)}
"""Operations that a pushing step may have, besides latches."""
_TOGETHER = 10
"""Steps that write their facts in one request."""
_LAST = {op.Delete, op.Bury}
_LATCHED = {op.Arrive, op.Close}
_FOR = 30 * 86400.0
"""Seconds that an outbox is kept for a redelivered message."""


Opened = Backend | Callable[[], Backend]
"""A backend, or a function that opens it on first use."""


class OrderedBackend(Backend):
    """Combines a backend for messages with one for facts and one for failed records.

    `messages` and `facts` may be the same backend if its steps cannot span both.
    """

    def __init__(
        self, messages: Backend, facts: Opened, failed: Opened, signer: Signer | None = None
    ) -> None:
        self.messages = messages
        self._signer = signer
        """Signs the outbox, which anybody who can write facts could change."""
        self._facts = facts
        self._failed = failed
        self.wires = messages.wires
        self.capabilities = (messages.capabilities | Capability.FACTS) & ~(
            Capability.JOINT | Capability.OUTBOX
        )
        if facts is not messages:
            self.capabilities &= ~Capability.WITHIN
        self.timing = messages.timing
        self.look_every = messages.look_every

    @cached_property
    def facts(self) -> Backend:
        return _opened(self._facts)

    @cached_property
    def failed(self) -> Backend:
        return _opened(self._failed)

    def within(self, transaction: object) -> Backend:
        """Return the messages' backend, which also has the facts; failed records are not needed."""
        return self.messages.within(transaction)

    def read_replies(self) -> None:
        self.messages.read_replies()

    def standing(self, reservation: Reservation) -> Standing:
        return self.messages.standing(reservation)

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        results: list[Result] = []
        for way, group in groupby(steps, self._way):
            with in_parts(results):
                results += way([*group])
        return results

    def _way(self, step: Step) -> Callable[[Sequence[Step]], list[Result]]:
        """Return the function that applies consecutive steps like this one."""
        if _is_plain(step):
            return self._apply_plain
        if step.reservation is None and _OF_PUSH.issuperset(map(type, step.operations)):
            return self._apply_pushes
        return self._apply_each

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        if all(map(_is_plain, steps)):
            self.messages.apply_async(steps, on_result)
        else:
            on_result(self.apply(*steps))

    def _apply_plain(self, steps: Sequence[Step]) -> list[Result]:
        return self.messages.apply(*steps) if steps else []

    def _apply_each(self, steps: Sequence[Step]) -> list[Result]:
        results: list[Result] = []
        for step in steps:
            with in_parts(results):
                result, end = self._lead(step)
                results.append(_first_refused(self._apply_plain(end)) or result)
        return results

    def _apply_pushes(self, steps: Sequence[Step]) -> list[Result]:
        """Write the facts of several steps in one request, and push their messages in another.

        A `bulk` of unique jobs takes two thirds of the time.
        """
        results: list[Result] = []
        for begin in range(0, len(steps), _TOGETHER):
            some = steps[begin : begin + _TOGETHER]
            with in_parts(results):
                results += self._push_some([PushStep(self.facts, step.operations) for step in some])
        return results

    def _push_some(self, steps: Sequence[PushStep]) -> list[Result]:
        with withdrawing(self.facts, steps):
            asked = [step.before() for step in steps if step.first]
            results_of_facts = iter(self.facts.apply(*asked) if asked else ())
            answers = [next(results_of_facts) if step.first else APPLIED for step in steps]
            results: list[Result] = []
            claims: list[Claim] = []
            for step, first in zip(steps, answers, strict=True):
                results.append(step.take(first, claims))
                claims += step.claims if results[-1].applied else ()
            taken = [step for step, each in zip(steps, results, strict=True) if each.applied]
            pushed = iter(self._push_and_follow(taken))
        return [next(pushed) if result.applied else result for result in results]

    def _push_and_follow(self, steps: Sequence[PushStep], due: Sequence[Push] = ()) -> list[Result]:
        """Push the messages of the steps and those that are `due`; then write what comes after."""
        began = self.clock()
        for step in steps:
            step.begun = True
        self._push((*(each for step in steps for each in step.pushes), *map(self._as_new, due)))
        after = [step.after() for step in steps]
        if not any(after):
            return [APPLIED] * len(steps)
        try:
            results_of_facts = iter(self.facts.apply(*(each for some in after for each in some)))
        except BackendUnavailable as error:
            if not all(step.can_do_without for step in steps):
                raise
            log.warning("pushed, but no status says so before the job is begun: %s", error)
            return [APPLIED] * len(steps)
        results = [
            step.conclude([*islice(results_of_facts, len(some))])
            for step, some in zip(steps, after, strict=True)
        ]
        took = self.clock() - began
        self._push(each for step in steps for each in step.overtaken(took))
        return results

    def _lead(self, step: Step) -> tuple[Result, list[Step]]:
        """Apply all of a step but its end: facts, records, pushes, records to forget.

        Also returns that end, a step of the reservation alone, to apply where the rest was applied.
        """
        if _is_plain(step):
            return APPLIED, [step]
        job = step.reservation
        parts: defaultdict[str, list[Any]] = defaultdict(list)
        for each in step.operations if job is None else in_one(step.operations):
            parts[_PARTS[type(each)]].append(each)
        own = parts["own"]
        if job is not None:
            result = self._held(job, own, parts["facts"])
            if not result.applied:
                return result, []
            if own and type(own[0]) is op.Start:
                own = []
        for each in parts["forgotten"]:
            record = self.failed.find_failed(each.uuid)
            if record is None or not record.is_of(each.failed_at):
                return Result(Outcome.REFUSED, each.uuid), []
        result = self._facts_and_pushes(parts, job)
        if result.applied and parts["forgotten"]:
            (forgot,) = self.failed.apply(Step(None, *parts["forgotten"]))
            # There is one all the same if the pushed job has failed anew meanwhile.
            if not forgot.applied and self.failed.find_failed(forgot.key) is None:
                result = forgot
        return result, [Step(job, *own)] if result.applied and own else []

    def _held(self, job: Reservation, own: Sequence[op.Operation], facts: Sequence[Any]) -> Result:
        """Make sure of the lease before anything is done for the job, and send its outbox.

        A start comes first, because the step writes facts of a job that runs. Its expectations are
        checked even before the start.
        """
        if own and type(own[0]) is op.Start:
            for each in facts:
                if isinstance(each, op.Expect):
                    (holds,) = self.facts.read(each.key)
                    if holds != each.value:
                        return Result(Outcome.REFUSED, each.key, holds)
            (result,) = self.messages.apply(Step(job, *own))
        elif self.messages.clock() < job.sure_until:
            result = APPLIED
        else:
            (result,) = self.messages.apply(Step(job, op.Renew(job.lease or self.timing.hold)))
        if result.applied and (job.unsent or not job.started):
            self._send_outbox(job)
        return result

    def _facts_and_pushes(
        self, parts: defaultdict[str, list[Any]], job: Reservation | None
    ) -> Result:
        # Latches return their message instead of pushing it: messages are in another backend.
        facts = [replace(e, push=False) if type(e) in _LATCHED else e for e in parts["facts"]]
        records = parts["records"]
        if records and self.failed is self.facts and Capability.JOINT in self.facts.capabilities:
            facts, records = [*facts, *records], []
        hands_over = any(type(e) in _LATCHED and not e.push for e in parts["facts"])
        if job is not None and facts and parts["pushes"]:
            return self._push_by_outbox(facts, records, parts["pushes"], job, hands_over=hands_over)
        step = PushStep(self.facts, (*facts, *parts["pushes"]))
        with withdrawing(self.facts, [step]):
            result = APPLIED
            if step.first:
                (result,) = self.facts.apply(step.before())
                result = step.take(result)
            if not result.applied:
                return result
            self._record(records)
            (pushed,) = self._push_and_follow([step], () if hands_over else result.due)
        return result if hands_over and pushed.applied else pushed

    def _push_by_outbox(
        self,
        facts: Sequence[op.Operation],
        records: Sequence[op.Operation],
        pushes: Sequence[Push],
        job: Reservation,
        *,
        hands_over: bool,
    ) -> Result:
        """Write the facts of a job's step, with the pushes in an outbox; then push."""
        key, made = _outbox(job), os.urandom(8).hex()
        pushes = [replace(each, id=each.id or f"{made}.{n}") for n, each in enumerate(pushes)]
        outbox = op.Unset(key, seal(self._signer, key, _encoded(pushes)))
        result = self._apply_with(outbox, facts, job)
        if not result.applied:
            return result
        self._record(records)
        self._push((*pushes, *(() if hands_over else map(self._as_new, result.due))))
        self.facts.apply(Step(None, outbox))
        job.unsent = False
        return result if hands_over else APPLIED

    def _record(self, records: Sequence[op.Operation]) -> None:
        if records:
            self.failed.apply(Step(None, *records))

    def _apply_with(
        self, outbox: op.Unset, facts: Sequence[op.Operation], job: Reservation
    ) -> Result:
        """Write facts with an outbox; first sends the outbox of a message with the same bytes."""
        key, text = outbox.key, outbox.value or ""
        step = Step(None, op.Expect(key, None), *facts, op.Set(key, text, _FOR))
        while True:
            job.unsent = True  # until the answer is known
            (result,) = self.facts.apply(step)
            job.unsent = result.applied
            if result.applied or result.key != key:
                return result
            self._send_outbox(job)

    def _send_outbox(self, job: Reservation) -> None:
        """Push what the step of an earlier reservation of this message left in the outbox."""
        outbox = _outbox(job)
        (text,) = self.facts.read(outbox)
        if text is not None:
            try:
                pushes = _decoded(unseal(self._signer, outbox, text).text)
            except (InvalidSignature, InvalidPayload) as error:
                self._put_aside(outbox, text, error)
            else:
                self._push(pushes, again=True)
                self.facts.apply(Step(None, op.Unset(outbox, text)))
        job.unsent = False

    def _put_aside(self, outbox: str, text: str, error: Exception) -> None:
        """Keep an outbox that cannot be sent under another key, for inspection."""
        (result,) = self.facts.apply(
            Step(
                None,
                op.Expect(outbox, text),
                op.Unset(outbox),
                op.Set(_aside(outbox), text, _FOR),
            )
        )
        if result.applied:
            what = "what a step that broke off was to push"
            log.error("%s is refused, and kept as %s: %s", what, _aside(outbox), error)
            events.fire(events.StoredRefused, self.described(), _aside(outbox), what, error)

    def _as_new(self, push: Push) -> Push:
        """Give a latch's message an id of its own: it may be pushed more than once.

        Two workers that run copies at once would share an outbox, and each send what is in it.
        """
        start, key, end = push.raw.rpartition(b'"id":"')
        _, quote, rest = end.partition(b'"')
        if not (key and quote) or (is_signed(push.raw) and self._signer is None):
            return push
        raw = b"".join((start, key, new_uuid().encode(), quote, rest))
        if self._signer is not None:
            try:
                raw = self._signer.renewed(push.raw, raw, push.queue)
            except InvalidSignature:
                return push  # the worker refuses it
        return replace(push, raw=raw)

    def _push(self, pushes: Iterable[Push], *, again: bool = False) -> None:
        """Push messages in one request, those for one queue in one step.

        `again`: another process may have pushed them.
        """
        steps = [Step(None, *group) for _, group in groupby(pushes, attrgetter("queue"))]
        if steps and again:
            self.messages.apply_again(*steps)
        else:
            self._apply_plain(steps)

    # -- calls of one of the backends -------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        if all(map(_is_plain, first)):
            jobs, results = self.messages.reserve(queues, limit, first=first)
        else:
            results = self.apply(*first[:-1]) if len(first) > 1 else []
            with in_parts(results):
                result, end = self._lead(first[-1])
                jobs, ended = self.messages.reserve(queues, limit, first=end)
            results.append(_first_refused(ended) or result)
        for job in jobs:
            job.unsent = job.unsent or job.attempts > 0
        return jobs, results

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self.messages.wait(queues, timeout, wake)

    def adopt(self, fence: bytes) -> Reservation | None:
        job = self.messages.adopt(fence)
        if job is not None:
            job.unsent = True
        return job

    def sizes(self, queue: str) -> Sizes:
        return self.messages.sizes(queue)

    def queues(self) -> list[str]:
        return self.messages.queues()

    def purge(self, queue: str) -> int:
        return self.messages.purge(queue)

    def kick(self, queue: str) -> int:
        return self.messages.kick(queue)

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        return self.messages.search(queue, text, limit, within)

    def spans(self, queue: str) -> list[Span]:
        return self.messages.spans(queue)

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        return self.messages.peek(queue, within, limit)

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        return self.messages.browse(queue, place, limit, after)

    def count_before(self, found: Found) -> int | None:
        return self.messages.count_before(found)

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:
        return self.messages.due_by_step(queue, since, step, steps)

    def notes_of(self, found: Found) -> bytes:
        return self.messages.notes_of(found)

    def take(self, found: Found) -> Reservation | None:
        job = self.messages.take(found)
        if job is not None:
            job.unsent = job.unsent or job.attempts > 0
        return job

    def read(self, *keys: str) -> list[str | None]:
        return self.facts.read(*keys)

    def wake(self, queue: str, handle: str) -> bool:
        return self.messages.wake(queue, handle)

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        return self.facts.scan(prefix, limit, after, last_first=last_first)

    def remove_expired(self, prefix: str) -> None:
        self.facts.remove_expired(prefix)

    def copy(self, *keys: str) -> list[FactCopy | None]:
        return self.facts.copy(*keys)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        return self.facts.latch(key, labels)

    def copy_latch(self, key: str) -> LatchCopy | None:
        return self.facts.copy_latch(key)

    def find_failed(self, uuid: str) -> FailedJob | None:
        return self.failed.find_failed(uuid)

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        return self.failed.list_failed(limit, after, queue)

    def count_failed(self) -> int:
        return self.failed.count_failed()

    def check_queue(self, name: str) -> None:
        self.messages.check_queue(name)

    def longest_message(self) -> int | None:
        return self.messages.longest_message()

    def clock(self) -> float:
        return self.messages.clock()

    def described(self) -> str:
        return self.messages.described()

    def path(self) -> Path | None:
        return self.messages.path()

    def queues_elsewhere(self) -> dict[str, list[str]]:
        return self.messages.queues_elsewhere()

    def check(self) -> Health:
        return self.messages.check()

    def close(self) -> None:
        opened = vars(self)
        facts, failed = opened.get("facts", self._facts), opened.get("failed", self._failed)
        for each in {self.messages, facts, failed}:
            if isinstance(each, Backend):
                each.close()


def _opened(backend: Opened) -> Backend:
    return backend if isinstance(backend, Backend) else backend()


def _first_refused(results: Iterable[Result]) -> Result | None:
    return next((result for result in results if not result.applied), None)


def _is_plain(step: Step) -> bool:
    """Whether the messages' backend can apply the step alone."""
    job = step.reservation
    if job is None:
        queues = {each.queue if type(each) is Push else "" for each in step.operations}
        return len(queues) == 1 and "" not in queues
    kind = type(step.operations[0])
    if len(step.operations) != 1 or _PARTS[kind] != "own":
        return False
    # A job may end unstarted if an earlier step for it broke off halfway.
    last = not job.started and kind in _LAST
    return kind is op.Renew or not (job.unsent or last)


def _outbox(job: Reservation) -> str:
    """Return the key of a message's outbox, the same for each of its reservations.

    Messages with the same bytes share a key if the backend does not tell them apart.
    """
    digest = hashlib.blake2b(job.raw_body, digest_size=16).hexdigest()
    return f"outbox:{job.queue[:80]}:{job.id[:64]}:{digest}"


def _aside(outbox: str) -> str:
    return f"refused:{outbox}"[:250]


def _encoded(pushes: Iterable[Push]) -> str:
    return json.dumps(
        [[p.queue, base64.b64encode(p.raw).decode(), p.delay, p.priority, p.id] for p in pushes]
    )


def _decoded(text: str) -> list[Push]:
    """Decode the text of `_encoded`. Raises `InvalidPayload`."""
    try:
        return [Push(queue, base64.b64decode(raw), *more) for queue, raw, *more in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise InvalidPayload(f"what is kept is no outbox: {error!r}") from None
