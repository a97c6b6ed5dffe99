"""FailoverBackend: several backends as one; pushes go to the first that answers.

A push goes to the next backend only if the one before cannot have taken it, or once the doubt
whether it has is noted where all workers look (`doubts.py`). None is asked again here: a backend
repeats a request itself where both count once. Everything about a reservation goes to the backend
that gave it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import and_, methodcaller
from typing import TypeVar

from qframe.contracts.backend import Backend, Capability, Health
from qframe.contracts.browsing import Found, Page, Place, Span, position
from qframe.contracts.queue import Sizes
from qframe.contracts.step import APPLIED, Push, Renew, Reservation, Result, Step
from qframe.drivers.failover.doubts import KEPT_FOR, KEY, open_doubts
from qframe.drivers.failover.member import Member, left_alone
from qframe.drivers.failover.settings import FailoverSettings
from qframe.drivers.parts import in_parts
from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidPayload
from qframe.payload import envelope

log = logging.getLogger("qframe")

T = TypeVar("T")

_CANNOT = (
    Capability.JOINT | Capability.FACTS | Capability.WITHIN | Capability.OUTBOX
    | Capability.ADOPT | Capability.WAKE | Capability.ORDER
)  # fmt: skip
"""What several backends together cannot do, whatever each can."""
_APART = ("table", "schema", "prefix", "suffix")
"""Settings by which connections to one server have queues of their own."""
_GLANCE = 0.5
"""Seconds after which a worker that waits on one member looks at the others."""
_DOUBT_ENDS = KEPT_FOR / 2
"""Seconds after which a push in doubt is not made elsewhere: its start may be forgotten."""


class FailoverBackend(Backend):
    """Keeps messages in the backends of other connections, and no facts.

    A worker takes from all that answer: in turn, from each strictly in the order of the queues. The
    ends of jobs of one that went down are told to it later.
    """

    settings_model = FailoverSettings
    needs_facts = True
    needs_backends = True
    payload_keys = {KEY: True}  # noqa: RUF012 (as the contract has it)

    def __init__(
        self,
        name: str,
        settings: FailoverSettings,
        facts: Callable[[], Backend],
        backend_of: Callable[[str], Backend],
    ) -> None:
        self._facts = facts
        self._members = [
            Member(name, each, backend_of(each), settings.retry_down_after)
            for each in settings.connections
        ]
        self._by_name = {each.name: each for each in self._members}
        backends = [each.backend for each in self._members]
        for each in self._members:
            if Capability.RESERVE not in each.backend.capabilities:
                raise ConfigurationError(f"the connection {each.name!r} keeps no jobs")
        _check_places(self._members)
        self.capabilities = reduce(and_, (each.capabilities for each in backends)) & ~_CANNOT
        self.capabilities |= Capability.WAIT
        self.timing = backends[0].timing
        self.look_every = min(each.look_every for each in backends)
        self._turn = 0
        self._waited = threading.local()

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        results: list[Result] = []
        for name, group in groupby(steps, _giver):
            some = [*group]
            with in_parts(results):
                results += self._settle(self._by_name[name], some) if name else self._push(some)
        return results

    def apply_again(self, *steps: Step) -> list[Result]:
        """Apply steps that push; the earlier call may have pushed to another connection.

        Without a store that answers they are pushed all the same: a job lost is worse than two.
        """
        pushes, uuids = _pushes(steps)
        known = [uuid for uuid in uuids if uuid]
        try:
            started = open_doubts(self._facts(), known) if known else set()
        except BackendUnavailable as error:
            log.debug("pushed again without a note of the doubt: %s", error)
            started = set()
        left = _without(steps, pushes, uuids, started)
        if left:
            self._push(left)
        return [APPLIED] * len(steps)

    def _settle(self, member: Member, steps: Sequence[Step]) -> list[Result]:
        """Apply steps about reservations of a member.

        If it does not answer, nothing starts, and ends are told later: no job waits for it.
        """
        try:
            return member.ask_if_up(lambda backend: backend.apply(*steps))
        except BackendUnavailable as error:
            if any(type(each) is Renew for step in steps for each in step.operations):
                raise
            return [member.tell_later(step, in_doubt=error.in_doubt) for step in steps]

    def _push(self, steps: Sequence[Step]) -> list[Result]:
        began = self.clock()
        left = list(steps)
        errors: list[BackendUnavailable] = []
        for member in sorted(self._members, key=lambda each: not each.is_up):
            try:
                member.ask(methodcaller("apply", *left))
            except BackendUnavailable as error:
                errors.append(error)
                if error.in_doubt:
                    left = self._without_started(left, error, began)
            else:
                return [APPLIED] * len(steps)
            if not left:
                return [APPLIED] * len(steps)
        errors[0].in_doubt = any(each.in_doubt for each in errors)
        raise errors[0]

    def _without_started(
        self, steps: Sequence[Step], error: BackendUnavailable, began: float
    ) -> list[Step]:
        """Return the steps without the pushes that were taken, and note the doubt of the others.

        Raises the error if it cannot be noted.
        """
        pushes, uuids = _pushes(steps)
        if not all(uuids) or self.clock() - began > _DOUBT_ENDS:
            raise error
        try:
            started = open_doubts(self._facts(), [each for each in uuids if each])
        except BackendUnavailable:
            raise error from None
        return _without(steps, pushes, uuids, started)

    # -- reserving --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        turns, jobs, results = self._turns(), list[Reservation](), list[Result]()
        together = bool(first) and bool(turns) and {*map(_giver, first)} == {turns[0].name}
        if first and not together:
            results = self.apply(*first)
        error: BackendUnavailable | None = None
        for member in turns:
            if len(jobs) >= limit or (jobs and member.was_empty):
                break
            steps = first if together and member is turns[0] else ()
            try:
                found, answers = member.reserve(queues, limit - len(jobs), steps)
            except BackendUnavailable as raised:
                error = error or raised
                found = []
                answers = [member.tell_later(step, in_doubt=raised.in_doubt) for step in steps]
            jobs += found
            results += answers
        if not jobs and (error or not turns) and all(each.error for each in self._members):
            away = error or left_alone(self._why())
            away.in_doubt = away.in_doubt or bool(first)  # they were applied, or are told later
            raise away
        return jobs, results

    def _turns(self) -> list[Member]:
        """Return the members to ask, beginning with another one each time.

        Those that were empty come last. The one on which this thread waited comes first: it may
        have a message for it.
        """
        self._turn = turn = (self._turn + 1) % len(self._members)
        members = [each for each in self._members[turn:] + self._members[:turn] if each.is_up]
        waited = getattr(self._waited, "member", None)
        self._waited.member = None
        return sorted(members, key=lambda each: (each is not waited, each.was_empty))

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        up = [each for each in self._members if each.is_up]
        if timeout <= 0:  # a worker stops: each gives back what it may have
            for each in up:
                self._wait_on(each, queues, 0.0, wake)
        elif not up or not self._wait_on(up[0], queues, self._look_soon(timeout), wake):
            super().wait(queues, self._look_soon(timeout), wake)
        else:
            self._waited.member = up[0]

    def _look_soon(self, timeout: float) -> float:
        return timeout if len(self._members) == 1 else min(timeout, _GLANCE)

    @staticmethod
    def _wait_on(member: Member, queues: Sequence[str], timeout: float, wake: int | None) -> bool:
        try:
            member.backend.wait(queues, timeout, wake)
        except BackendUnavailable:  # the next request finds that it is down
            return False
        return True

    # -- looking ----------------------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        found = self._of_answering(lambda backend: backend.sizes(queue))
        return Sizes(
            sum(each.ready for each in found),
            sum(each.delayed for each in found),
            sum(each.reserved for each in found),
            sum(each.buried for each in found),
            approximate=len(found) < len(self._members) or any(e.approximate for e in found),
            unknown=frozenset().union(*(each.unknown for each in found)),
        )

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:
        found = self._of_answering(lambda backend: backend.due_by_step(queue, since, step, steps))
        return [*map(sum, zip(*found, strict=True))] if all(found) else []

    def queues(self) -> list[str]:
        found = self._of_answering(lambda backend: backend.queues())
        return sorted({name for each in found for name in each})

    def queues_elsewhere(self) -> dict[str, list[str]]:
        found = self._of_answering(lambda backend: backend.queues_elsewhere())
        return {of: names for each in found for of, names in each.items()}

    def purge(self, queue: str) -> int:
        return sum(each.ask(lambda backend: backend.purge(queue)) for each in self._members)

    def kick(self, queue: str) -> int:
        return sum(each.ask(lambda backend: backend.kick(queue)) for each in self._members)

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        if within is not None:
            member, span = self._member_of(within)
            there = member.ask(lambda backend: backend.search(queue, text, limit, span))
            return [*_from(member, there)]
        found: list[Found] = []
        for each in self._members:
            if len(found) < limit:
                searching = methodcaller("search", queue, text, limit - len(found))
                found += _from(each, each.ask(searching))
        return found

    def spans(self, queue: str) -> list[Span]:
        found: list[Span] = []
        for each in self._members:
            spans = each.ask(lambda backend: backend.spans(queue))
            found += (span._replace(of=f"{each.name}:{span.of}") for span in spans)
        return found

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        member, span = self._member_of(within)
        return member.ask(lambda backend: backend.peek(queue, span, limit))

    def _member_of(self, span: Span) -> tuple[Member, Span]:
        name, _, of = span.of.partition(":")
        return self._by_name[name], span._replace(of=of)

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        """List them member by member; the cursor begins with the number of the next member."""
        number, _, cursor = after.partition(":")
        at = position(number)
        found: list[Found] = []
        while at < len(self._members):
            member = self._members[at]
            asked = methodcaller("browse", queue, place, max(1, limit - len(found)), cursor)
            page: Page = member.ask(asked)
            if len(found) >= limit and page.found:
                return Page(found, f"{at}:{cursor}")
            found += _from(member, page.found)
            at, cursor = (at, page.after) if page.after else (at + 1, "")
        return Page(found, "")

    def take(self, found: Found) -> Reservation | None:
        name, handle = found.handle
        member = self._by_name[name]
        job = member.ask(lambda backend: backend.take(replace(found, handle=handle)))
        if job is not None:
            job.came_from = name
        return job

    def notes_of(self, found: Found) -> bytes:
        name, handle = found.handle
        there = replace(found, handle=handle)
        return self._by_name[name].ask(lambda backend: backend.notes_of(there))

    def _of_answering(self, call: Callable[[Backend], T]) -> list[T]:
        """Return the answers of the members that answer. Raises if none does."""
        answers: list[T] = []
        for each in self._members:
            try:
                answers.append(each.ask_if_up(call))
            except BackendUnavailable:
                continue
        if not answers:
            raise left_alone(self._why())
        return answers

    def _why(self) -> BackendUnavailable:
        errors = (each.error for each in self._members)
        return next(filter(None, errors), BackendUnavailable("no connection answers"))

    # -- the rest ---------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:
        for each in self._members:
            each.backend.check_queue(name)

    def longest_message(self) -> int | None:
        """Return the smallest limit of the members that answer.

        One that is down is not asked: Redis knows the limit without its server, and would seem up.
        """
        found: list[int | None] = []
        for each in self._members:
            if each.error is None:
                with suppress(BackendUnavailable):
                    found.append(each.backend.longest_message())
        if not found:
            raise left_alone(self._why())
        return min((each for each in found if each is not None), default=None)

    def described(self) -> str:
        return ", else ".join(each.backend.described() for each in self._members)

    def check(self) -> Health:
        """Check each member; one that does not answer is a warning, as long as another does."""
        warnings: list[str] = []
        versions: list[str] = []
        longest = math.inf
        for each in self._members:
            try:
                health = each.ask(lambda backend: backend.check())
            except BackendUnavailable as error:
                warnings.append(f"{each.name}: {error}")
            else:
                versions.append(f"{each.name}: {health.version}")
                warnings += (f"{each.name}: {warning}" for warning in health.warnings)
                longest = min(longest, health.longest_job)
        if not versions:
            raise left_alone(self._why())
        return Health(", else ".join(versions), tuple(warnings), longest)

    def close(self) -> None:
        for each in self._members:
            each.backend.close()

    def leave(self) -> None:
        for each in self._members:
            each.backend.leave()


def _check_places(members: Sequence[Member]) -> None:
    """Refuse two connections to the same queues: both messages of a job in doubt would run."""
    seen: dict[tuple[object, ...], str] = {}
    for each in members:
        settings = getattr(each.backend, "settings", None)
        if settings is None:
            continue  # the memory of this process: each is its own
        apart = (getattr(settings, name, "") for name in _APART)
        place = (each.backend.described(), *apart)
        if (other := seen.setdefault(place, each.name)) != each.name:
            raise ConfigurationError(f"{other!r} and {each.name!r} are the same place: name one")


def _giver(step: Step) -> str:
    """Return the member that gave the reservation of a step; "" if it is about none."""
    return "" if step.reservation is None else step.reservation.came_from


def _pushes(steps: Sequence[Step]) -> tuple[list[Push], list[str | None]]:
    """Return the pushes of steps, and the uuids of their jobs, as `_uuid`."""
    pushes = [each for step in steps for each in step.operations if isinstance(each, Push)]
    return pushes, [_uuid(each.raw) for each in pushes]


def _without(
    steps: Sequence[Step], pushes: Sequence[Push], uuids: Sequence[str | None], gone: set[str]
) -> list[Step]:
    """Return the steps without the pushes of some jobs."""
    left_out = {id(each) for each, uuid in zip(pushes, uuids, strict=True) if uuid in gone}
    kept = ([each for each in step.operations if id(each) not in left_out] for step in steps)
    return [Step(None, *each) for each in kept if each]


def _uuid(raw: bytes) -> str | None:
    """Return the uuid of a job whose workers look for doubts; None for any other."""
    try:
        message = envelope.parse(raw)
    except InvalidPayload:
        return None
    return envelope.uuid(message) if message.get(KEY) is True else None


def _from(member: Member, there: Iterable[Found]) -> Iterator[Found]:
    """Yield what was found, with the member in its handle."""
    return (replace(each, handle=(member.name, each.handle)) for each in there)
