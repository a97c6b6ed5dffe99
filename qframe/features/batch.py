"""Batches: members are jobs or chains, counted by a latch as they end.

A batch is a fact, `batch:ID`, with its options and decisions, and a latch with the same key for its
members. The latch pushes the job that runs callbacks (`batch_jobs.py`) when the first member fails,
when progress is due, and when all members have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic_core import to_json

from qframe.contracts.status import State
from qframe.contracts.step import Arrive, Set
from qframe.features.base import End, Plan
from qframe.features.chain import ChainPlan, named_id
from qframe.features.context import Context, Prepared
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import tracebacks

KEPT = 365 * 86400.0
"""Seconds that the facts of a batch are kept, longer than its latch.

The latch expires 30 days after its last change. Without it the batch is gone.
"""
KEY = "batch"
"""Payload key: the batch that a job is a member or callback of."""
_MOST = 2**31


class BatchMember(NamedTuple):
    """A member of a batch; all links of a chain have the same `number`."""

    batch: str
    number: int

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> BatchMember | None:
        """Return the member that a payload belongs to.

        None for a callback, or an invalid number.
        """
        identity = batch_of(message)
        number = message[KEY].get("n") if identity is not None else None
        if identity is None or type(number) is not int or not 0 <= number < _MOST:
            return None
        return cls(identity, number)

    def keys(self) -> dict[str, Any]:
        return {KEY: {"id": self.batch, "n": self.number}}

    def arrives(self, uuid: str, *, failed: bool) -> Arrive:
        """Return the operation that counts it; `uuid` is the job that ended it."""
        label = f"{self.number}:{uuid}" if failed else ""
        return Arrive(batch_key(self.batch), self.number, failed, label)


class BatchFeature(Feature):
    """Counts a member in the step that ends it; for a chain, in its last link's."""

    key: ClassVar[str] = KEY

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Count the member, unless its chain continues."""
        if plan.continues or not end.state.is_final:
            return
        member = BatchMember.of(job.payload)
        if member is None:
            return
        failed = end.state is State.FAILED or end.state is State.CANCELLED
        uuid = job.broken_chain or (job.own_uuid if failed else "")
        plan.add(member.arrives(uuid, failed=bool(uuid) or failed))
        if uuid and job.context.signer is not None:  # callbacks believe only a signed failure
            error = end.error if failed else f"the next link of its chain was refused: {uuid}"
            plan.add(failed_words(job.context, member.batch, uuid, job.name, error))


def failed_words(
    context: Context, identity: str, uuid: str, name: str, error: BaseException | str | None
) -> Set:
    """Return the fact that stores, signed, how a member failed; the failed record is not signed."""
    words = tracebacks.brief(error, 500) if isinstance(error, BaseException) else str(error or "")
    key = failed_key(identity, uuid)
    return Set(key, context.sealed(key, to_json([name, words]).decode()), KEPT)


def failed_key(identity: str, uuid: str) -> str:
    return f"{batch_key(identity)}:failed:{uuid}"


def about(identity: str, event: str) -> dict[str, Any]:
    """Return the keys of a callback's payload about its batch."""
    return {KEY: {"id": identity, "on": event}}


def batch_of(message: Mapping[str, Any]) -> str | None:
    """Return the id of the batch that a payload is a member or callback of."""
    return named_id(message, KEY)


MakeMember = Callable[[int], ChainPlan]
"""Makes the batch member with this number."""


class BatchPlan(NamedTuple):
    """A batch before its dispatch."""

    id: str
    name: str
    options: Mapping[str, Any]
    """What is stored of it: the `queue` of its members, the fields of the callbacks by event
    (`follow`), and for a link of a chain, that chain (`chain`)."""
    allows_failures: bool
    """Whether failures leave the batch running; otherwise the first one cancels it."""
    progress_step: int
    """Members between two progress callbacks; 0: none."""
    callback_job: Prepared
    """The job that runs the callbacks."""
    members: Iterable[MakeMember]
    """An iterator's members are built when they are pushed, others before."""
    vouched: bool = True
    """Whether its stored facts may be signed."""


def batch_key(identity: str) -> str:
    """Return the key of a batch, for its fact and its latch."""
    return f"batch:{identity}"
