"""Claims: keys taken for jobs that are pushed apart from their facts.

The dispatcher writes an unproven claim before the push; only the dispatcher counts it as its own.
Once the message is in its queue, the dispatcher or the worker that gets the message proves the
claim, whichever is first. Another dispatch that needs the key waits a few seconds, while the first
dispatcher may still be pushing, and then withdraws the claim. A claim is proven or withdrawn, never
both. The message of a withdrawn claim, if there is one, is void: no worker runs it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from qframe.contracts.backend import Backend
from qframe.contracts.step import (
    APPLIED,
    Afterwards,
    Claim,
    Expect,
    Operation,
    Outcome,
    Push,
    Raise,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import BackendUnavailable, QframeError

PUSHED_WITHIN = 5.0
"""Seconds that a dispatcher has to prove its claim once another dispatch needs the key."""
_VOID_FOR = 30 * 86400.0
_MARK = "unproven "
_FIRST_GLANCE = 0.002
_LONGEST_GLANCE = 0.05


def unproven(value: str) -> str:
    """Return the value of a key while the job's message may not be in its queue yet."""
    return _MARK + value


def proven(held: str) -> str:
    """Return the value of a key whose claim may be unproven."""
    return held.removeprefix(_MARK)


def is_unproven(held: str | None) -> bool:
    """Whether a key holds an unproven claim."""
    return held is not None and held.startswith(_MARK)


def is_refused_by_claim(result: Result) -> bool:
    """Whether a step was refused because of an unproven claim."""
    return result.outcome is Outcome.REFUSED and is_unproven(result.holds)


def settle(backend: Backend, refusal: Result) -> None:
    """Wait until the claim that refused a step is proven or gone, so that the step can be repeated.

    Withdraws a claim whose dispatcher no longer works on it.
    """
    key, held = refusal.key, refusal.holds or ""
    value, glance = proven(held), _FIRST_GLANCE
    while True:
        holds, at_work = backend.read(key, _at_work(value))
        if holds != held:
            return
        if at_work is None:
            backend.apply(_withdrawal(key, value))
            return
        time.sleep(glance)
        glance = min(_LONGEST_GLANCE, glance * 2)


def is_void(backend: Backend, key: str, value: str, ttl: float) -> bool:
    """Whether the job's claim was withdrawn. Otherwise proves it: its message has arrived."""
    while True:
        holds, void = backend.read(key, _void(value))
        if void is not None:
            return True
        if holds == value:
            return False
        if holds != unproven(value):  # it may have been withdrawn between the two reads
            return was_withdrawn(backend, value)
        (result,) = backend.apply(_proof(key, value, ttl))
        if result.applied:
            return False


def stands(backend: Backend, key: str, value: str) -> bool:
    """Whether the claim of another dispatch was not withdrawn; waits until that is certain."""
    while True:
        holds, void = backend.read(key, _void(value))
        if void is not None or holds != unproven(value):
            return void is None
        settle(backend, Result(Outcome.REFUSED, key, holds))


def not_void(value: str) -> Unset:
    """Return the operation after which a job with this value counts again."""
    return Unset(_void(value))


def was_withdrawn(backend: Backend, value: str) -> bool:
    """Whether a claim of this value was withdrawn."""
    return backend.read(_void(value)) != [None]


class PushStep:
    """A step about no reservation, split into what is written before and after its push."""

    def __init__(self, facts: Backend, operations: Iterable[Operation]) -> None:
        parts = [*operations]
        self.facts = facts
        self.begun = False
        """Whether the push has begun."""
        self.pushes = [each for each in parts if type(each) is Push]
        others = [each for each in parts if type(each) is not Push]
        self._keys = {each.key for each in others if type(each) is Claim}
        if not self.pushes:
            others = in_one(others)
        self.claims = [e for e in others if type(e) is Claim and e.holds != e.value]
        self.later = [each.fact for each in others if type(each) is Afterwards]
        self.first = [each for each in others if type(each) is not Afterwards]

    def before(self, own: Collection[str] = ()) -> Step:
        """Return the facts to write first; `own` are the keys that hold its own claims already."""
        made: list[Operation] = []
        for each in self.first:
            if type(each) is Claim and each in self.claims:
                made += _claiming(each, again=each.key in own)
            else:
                made += in_one([each])
        return Step(None, *made)

    def take(self, result: Result, beside: Sequence[Claim] = ()) -> Result:
        """Return the result of `before`, after repeating it while unproven claims refuse it.

        A claim in `beside` is not waited for: both are part of the same push.
        """
        own: set[str] = set()
        while result.key in self._keys and is_refused_by_claim(result):
            if (taken := next((e for e in beside if _is_refused_by(result, e)), None)) is not None:
                return Result(Outcome.REFUSED, taken.key, taken.value)
            if any(_is_refused_by(result, each) for each in self.claims):
                own.add(result.key)
            else:
                settle(self.facts, result)
            (result,) = self.facts.apply(self.before(own))
        return result

    def after(self) -> list[Step]:
        """Return what to write once the messages are in their queues."""
        proofs = [_proof(each.key, each.value, each.ttl) for each in self.claims]
        return [*proofs, *(Step(None, each) for each in self.later)]

    @property
    def can_do_without(self) -> bool:
        """Whether the jobs run correctly even if `after` is never written."""
        return not self.claims and all(type(each) is Raise for each in self.later)

    def overtaken(self, seconds: float) -> list[Push]:
        """Return the messages that became due in the `seconds` before `after` was written.

        A worker may have skipped them.
        """
        if all(type(each) is Raise for each in self.later):
            return []
        return [each for each in self.pushes if 0 < each.delay <= seconds]

    def conclude(self, results: Sequence[Result]) -> Result:
        """Return the result of the step; `results` are those of `after`.

        Raises `BackendUnavailable` if the claim was withdrawn and no other job has the key.
        """
        for claim, result in zip(self.claims, results, strict=False):
            if result.applied or result.holds == claim.value:
                continue
            if self.facts.read(_void(claim.value)) == [None]:
                continue  # a worker proved it, and the job has already ended
            if result.holds is None or is_unproven(result.holds):
                raise BackendUnavailable(
                    f"the push of {claim.value} took more than {PUSHED_WITHIN:g} s, and another "
                    "dispatch of the same job began meanwhile: this one is never run"
                )
            return result
        return APPLIED


@contextmanager
def withdrawing(facts: Backend, steps: Sequence[PushStep]) -> Iterator[None]:
    """Withdraw unproven claims if the body raises, as far as the backend can be reached.

    A message that was pushed under such a claim is void. A push is in doubt unless it has not
    begun, or all that it pushed is void.
    """
    try:
        yield
    except BaseException as error:
        claims = [each for step in steps for each in step.claims]
        is_void = False
        if claims:
            with suppress(QframeError):
                results = facts.apply(*(_withdrawal(each.key, each.value) for each in claims))
                is_void = all(
                    result.applied or was_withdrawn(facts, claim.value)
                    for claim, result in zip(claims, results, strict=True)
                )
        begun = [step for step in steps if step.begun]
        one_each = all(len(step.pushes) == 1 and step.claims for step in begun)
        if isinstance(error, BackendUnavailable) and (not begun or (is_void and one_each)):
            error.in_doubt = False
        raise


def _claiming(claim: Claim, *, again: bool) -> Iterable[Operation]:
    held = unproven(claim.value)
    return (
        Expect(claim.key, held if again else claim.holds),
        Set(claim.key, held, None if claim.lasts else claim.ttl),
        Set(_at_work(claim.value), "", PUSHED_WITHIN),
        Unset(_void(claim.value)),
    )


def _is_refused_by(result: Result, claim: Claim) -> bool:
    return (result.key, result.holds) == (claim.key, unproven(claim.value))


def in_one(operations: Iterable[Operation]) -> list[Operation]:
    """Return claims as plain operations, for steps that are atomic together with their pushes."""
    made: list[Operation] = []
    for each in operations:
        if type(each) is Claim:
            made += Expect(each.key, each.holds), Set(each.key, each.value, each.ttl)
        else:
            made.append(each.fact if type(each) is Afterwards else each)
    return made


def _proof(key: str, value: str, ttl: float) -> Step:
    return Step(None, Expect(key, unproven(value)), Set(key, value, ttl), Unset(_at_work(value)))


def _withdrawal(key: str, value: str) -> Step:
    return Step(
        None, Expect(key, unproven(value)), Unset(key), Unset(_at_work(value)),
        Set(_void(value), "", _VOID_FOR),
    )  # fmt: skip


def _at_work(value: str) -> str:
    return f"pushing:{value}"


def _void(value: str) -> str:
    return f"void:{value}"
