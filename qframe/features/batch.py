"""Batches: jobs that are counted as they end, by a latch, and what a batch consists of.

A batch is a fact, `batch:ID`, for what was asked for and is decided, and a latch of the same key
for its members. The latch pushes the job that runs callbacks (`batch_jobs.py`) when the first
member failed, when progress is to be told, and when all have ended.
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
"""Seconds the facts of a batch are kept: more than its latch, which ends 30 days after its last
change. Without that the batch is gone."""
KEY = "batch"
"""The payload's key: the batch a job is a member of, or follows."""
_MOST = 2**31


class BatchMember(NamedTuple):
    """A member of a batch: `number` is its place, the same in every link of a chain."""

    batch: str
    number: int

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> BatchMember | None:
        """Give the member a payload is; None of a callback, or of what could be none."""
        identity = batch_of(message)
        number = message[KEY].get("n") if identity is not None else None
        if identity is None or type(number) is not int or not 0 <= number < _MOST:
            return None
        return cls(identity, number)

    def keys(self) -> dict[str, Any]:
        """Give what a payload says of it."""
        return {KEY: {"id": self.batch, "n": self.number}}

    def arrives(self, uuid: str, *, failed: bool) -> Arrive:
        """Give the operation that counts it, done or failed by the job `uuid`."""
        label = f"{self.number}:{uuid}" if failed else ""
        return Arrive(batch_key(self.batch), self.number, failed, label)


class BatchFeature(Feature):
    """Counts a member in the step that ends it; one that is a chain with its last link."""

    key: ClassVar[str] = KEY

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Count the member, unless its chain goes on."""
        if plan.continues or not end.state.is_final:
            return
        member = BatchMember.of(job.payload)
        if member is None:
            return
        failed = end.state is State.FAILED or end.state is State.CANCELLED
        uuid = job.broken_chain or (job.own_uuid if failed else "")
        plan.add(member.arrives(uuid, failed=bool(uuid) or failed))
        if uuid and job.context.signer is not None:  # who tells of it believes no other's words
            error = end.error if failed else f"the next link of its chain was refused: {uuid}"
            plan.add(failed_words(job.context, member.batch, uuid, job.name, error))


def failed_words(
    context: Context, identity: str, uuid: str, name: str, error: BaseException | str | None
) -> Set:
    """Give what keeps, signed, how a member failed: its record says so to all, but not signed."""
    words = tracebacks.brief(error, 500) if isinstance(error, BaseException) else str(error or "")
    key = failed_key(identity, uuid)
    return Set(key, context.sealed(key, to_json([name, words]).decode()), KEPT)


def failed_key(identity: str, uuid: str) -> str:
    """Give the key of that."""
    return f"{batch_key(identity)}:failed:{uuid}"


def about(identity: str, event: str) -> dict[str, Any]:
    """Give what a callback's payload says of its batch."""
    return {KEY: {"id": identity, "on": event}}


def batch_of(message: Mapping[str, Any]) -> str | None:
    """Give the id of the batch a payload names, as member or as callback."""
    return named_id(message, KEY)


MakeMember = Callable[[int], ChainPlan]
"""Makes the member of a batch that has this number."""


class BatchPlan(NamedTuple):
    """A batch about to begin."""

    id: str
    name: str
    options: Mapping[str, Any]
    """What is kept of it besides: the `queue` of its members, the fields of the callbacks by their
    events (`follow`), and of a link of a chain, that (`chain`)."""
    allows_failures: bool
    """Else the first failure cancels it."""
    progress_step: int
    """Progress is told each time so many members are done; 0: never."""
    callback_job: Prepared
    """The job that runs the callbacks."""
    members: Iterable[MakeMember]
    """Those an iterator gives are built as they are pushed, others before."""
    vouched: bool = True
    """Whether what is kept of it may be signed."""


def batch_key(identity: str) -> str:
    """Give the key of a batch: of its fact and of its latch."""
    return f"batch:{identity}"
