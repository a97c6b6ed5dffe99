"""Doubts: pushes without an answer, which were made again on another connection.

Such a job may have two messages, and the first that starts is the job. Both are facts of the store
that the connections share. A worker notes for a short time that a job has started; a dispatcher
whose push is in doubt either finds that note, or writes the doubt, which workers find from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Operation, Outcome, Set, Step, Unset

KEY = "failover"
"""The payload key of the jobs whose workers look for a doubt before they start one."""
KEPT_FOR = 120.0
"""Seconds for which a start is noted: longer than a dispatcher waits for an answer."""
_DOUBTED_FOR = 30 * 86400.0
_OPEN = ""


def open_doubts(facts: Backend, uuids: Sequence[str]) -> set[str]:
    """Note that these jobs may have a second message. Returns those that have already started."""
    results = facts.apply(*map(_doubting, uuids))
    return {
        uuid
        for uuid, result in zip(uuids, results, strict=True)
        if not result.applied and not (result.key == _doubt(uuid) and result.holds == _OPEN)
    }


def may_start(facts: Backend, uuid: str, connection: str) -> bool:
    """Note the start of a job's message. False if its message of another connection was first."""
    started = Step(
        None, Expect(_doubt(uuid), None), Set(_started(uuid), connection, KEPT_FOR)
    )  # fmt: skip
    claimed = Step(
        None, Expect(_doubt(uuid), _OPEN), Set(_doubt(uuid), connection, _DOUBTED_FOR)
    )  # fmt: skip
    while True:
        (result,) = facts.apply(started)
        if result.outcome is Outcome.REFUSED and result.holds == _OPEN:
            (result,) = facts.apply(claimed)
        if result.applied or result.holds == connection:
            return True
        if result.holds not in {None, _OPEN}:
            return False


def reopened(uuid: str) -> tuple[Operation, ...]:
    """Return the operations after which a job begins anew; it may have a message left elsewhere."""
    return Set(_doubt(uuid), _OPEN, _DOUBTED_FOR), Unset(_started(uuid))


def leaving(facts: Backend, uuid: str, connection: str, target: str) -> list[Operation] | None:
    """Return the operations with which a job's message leaves its connection for another one.

    The message that leaves is the job from then on. None if its other message has started. `target`
    is "" for a failover, where the first message that starts is the job.
    """
    (doubt,) = facts.read(_doubt(uuid))
    if doubt is None:
        return [Expect(_doubt(uuid), None), Set(_started(uuid), target, KEPT_FOR)]
    if doubt not in {_OPEN, connection}:
        return None
    return [Expect(_doubt(uuid), doubt), Set(_doubt(uuid), target or _OPEN, _DOUBTED_FOR)]


def _doubting(uuid: str) -> Step:
    # A database locks the facts in this order, which has to be that of a start.
    return Step(
        None, Expect(_doubt(uuid), None), Expect(_started(uuid), None),
        Set(_doubt(uuid), _OPEN, _DOUBTED_FOR),
    )  # fmt: skip


def _doubt(uuid: str) -> str:
    return f"doubt:{uuid}"


def _started(uuid: str) -> str:
    return f"started:{uuid}"
