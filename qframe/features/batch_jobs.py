"""The jobs by which a batch begins in a chain, and dispatches what follows it."""

from __future__ import annotations

import json
import logging
from typing import Any, ClassVar

from qframe.contracts.batch import BatchRecord
from qframe.contracts.step import Operation, Step
from qframe.exceptions import BackendUnavailable, InvalidSignature, QframeError
from qframe.features import batch, chain
from qframe.features.base import Plan
from qframe.features.batch import BatchMember, BatchPlan, MakeMember
from qframe.features.batches import BatchStore, StoredBatch, renumbered
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared
from qframe.features.refused import RefusedText, tell_refused
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.payload.signature import is_signed

log = logging.getLogger("qframe")

EVENTS = ("progress", "catch", "then", "finally")
_TRIES = 100


def batches_of(job: JobDefinition) -> BatchStore:
    """Give the batches of the connection that a job runs for."""
    running: Any = job.job
    if isinstance(running, ReservedJob):
        return BatchStore(running.context, running, running.queue)
    return BatchStore(running._job.context, queue=running.queue)  # noqa: SLF001 (in a process of its own, which settles nothing)


class RunBatchCallbacks(JobDefinition):
    """Dispatches what follows the state a batch has come to, each once it is so.

    What was dispatched is noted in the same step. So of two that run at once, one finds that it is.
    """

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: what follows"

    of: str

    def handle(self) -> None:
        """Dispatch the callbacks that are due, then go on in the chain whose link the batch is."""
        batches = batches_of(self)
        for _ in range(_TRIES):
            found = batches.find(self.of)
            if found is None:
                log.warning("the batch %s is not kept (any more): nothing follows it", self.of)
                return
            if found.refused is not None:
                self._refuse(batches, found, found.refused)
                return
            plan = _callbacks(batches, found)
            if plan.operations:
                batches.apply(plan)  # where it is refused, it is made anew
            elif not _chain_is_due(found.record) or _go_on(batches, found):
                return
        raise BackendUnavailable(f"the batch {self.of} is changed again and again")

    def _refuse(self, batches: BatchStore, found: StoredBatch, error: QframeError) -> None:
        """Fail at once: what follows the batch is not as it was signed."""
        what = f"what follows the batch {self.of}"
        refused = RefusedText(batch.batch_key(self.of), found.text, what, error)
        tell_refused(batches.context.connection, refused)
        self.fail(error)


def _callbacks(batches: BatchStore, found: StoredBatch) -> Plan:
    """Give the plan that dispatches what is due; without operations where nothing is."""
    plan, record, context = Plan(), found.record, batches.context
    due = [event for event in EVENTS if _is_due(record, event)]
    if not due:
        return plan
    if not context.joint:
        del due[1:]  # the others in steps of their own: fewer come twice where a worker dies
    for event in due:
        for fields in record.options["follow"].get(event, ()):
            job = Prepared.of(fields, vouched=found.vouched)
            if event == "catch":
                job = chain.caused(context, job, *_first_failure(batches, found))
            chain.plan_prepared(context, job, plan)
    notified = record.notified.union(due) - {"progress"}
    progress = record.settled if "progress" in due else record.notified_progress
    plan.add(*found.changed(notified=sorted(notified), notified_progress=progress))
    return plan


def _is_due(record: BatchRecord, event: str) -> bool:
    if event in record.notified:
        return False
    if event == "progress":
        return record.settled > record.notified_progress
    if event == "catch":
        return record.failed > 0
    if event == "then":
        done = record.closed and record.done >= record.total
        return done and record.cancelled_at is None
    return record.is_finished


def _first_failure(batches: BatchStore, found: StoredBatch) -> tuple[str, str, str]:
    """Give the uuid, the name and the error of the job by which the first member failed."""
    uuid = batches.first_failure(found.record.id)
    if batches.context.signer is not None and found.vouched:
        return _signed_failure(batches, found.record.id, uuid)
    kept = batches.context.backend.find_failed(uuid) if uuid else None
    if kept is not None:
        return kept.uuid, kept.name, kept.exception.strip().rpartition("\n")[2]
    inner = batches.read(uuid) if uuid else None
    if inner is not None:  # a batch, the link by which its chain has failed
        return inner.id, inner.name or "a batch", _failure(inner)
    return uuid, "", "the job was removed, or its record is gone"


def _signed_failure(batches: BatchStore, identity: str, uuid: str) -> tuple[str, str, str]:
    """Give the same as it was signed when the member failed; a record may say anything."""
    key = batch.failed_key(identity, uuid)
    (text,) = batches.context.backend.read(key)
    try:
        name, error = json.loads(batches.context.opened(key, text or "").text)
    except (InvalidSignature, ValueError, TypeError):
        return "", "", "the job was removed, or what is kept of its failure is not signed"
    return uuid, str(name), str(error)


# -- in a chain -----------------------------------------------------------------------------------


def _chain_is_due(record: BatchRecord) -> bool:
    linked = "chain" in record.options and record.is_finished
    return linked and _outcome(record) not in record.notified


def _outcome(record: BatchRecord) -> str:
    """Say what is noted once the chain has gone on, or was ended."""
    return "chain" if _went_well(record) else "broken"


def _went_well(record: BatchRecord) -> bool:
    allows = record.options["chain"]["allows"]
    return record.cancelled_at is None and (allows or not record.failed)


def _failure(record: BatchRecord) -> str:
    return f"{record.failed} of {record.total} members of {record.name or 'a batch'} failed"


def _go_on(batches: BatchStore, found: StoredBatch) -> bool:
    """Go on in the chain, or end it where the batch has failed; false where something has changed.

    Where a failure is mended by a retry, the chain goes on after all.
    """
    context, record = batches.context, found.record
    link, outcome = record.options["chain"], _outcome(record)
    plan = Plan()
    plan.add(*found.changed(notified=sorted({*record.notified, outcome})))
    goes_on: bool | None = False
    failed = record.id if outcome == "broken" else ""
    if outcome == "chain":
        try:
            goes_on = chain.plan_next(context, link["id"], link["uuid"], plan)
        except chain.LinkRefused as refused:
            failed = chain.plan_refused(context, link["id"], refused, batches.queue, plan)
    elif context.at_once:
        goes_on = True  # the job that began the batch ends the chain, by what it raises
    else:
        cause = record.id, record.name or "a batch", _failure(record)
        chain.plan_catch(context, link["id"], plan, cause, batches.queue)
    if not goes_on and link["member"] is not None:
        # Before it is noted: who comes again says it again, should nobody have pushed what is due.
        member = BatchMember(link["member"]["id"], link["member"]["n"])
        arrives: list[Operation] = [member.arrives(failed or record.id, failed=bool(failed))]
        words = _failure(record) if outcome == "broken" else "its chain was refused"
        if failed and context.signer is not None:
            name = record.name or "a batch"
            arrives.append(batch.failed_words(context, member.batch, failed, name, words))
        context.backend.apply(Step(None, *arrives))
    return batches.apply(plan, raises=True).applied


class StartBatch(JobDefinition):
    """A link of a chain that is a batch: begins it. The chain goes on when that has finished."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: begins"

    identity: str
    label: str
    default_queue: str | None
    allows: bool
    step: int
    callback_job: dict[str, Any]
    follow: dict[str, list[dict[str, Any]]]
    members: list[dict[str, Any]]

    def handle(self) -> None:
        """Begin it, or go on where a worker that died had begun it."""
        batches, said = batches_of(self), self.job.payload
        context, identity = batches.context, self.identity
        vouched = is_signed(self.job.raw_body)
        link = {
            "id": chain.named_id(said, chain.KEY),
            "uuid": self.job.uuid,
            "allows": self.allows,
            "member": said.get(batch.KEY),
        }
        plan = BatchPlan(
            id=identity,
            name=self.label,
            options={"queue": self.default_queue, "follow": self.follow, "chain": link},
            allows_failures=self.allows,
            progress_step=self.step,
            callback_job=Prepared.of(self.callback_job, vouched=vouched),
            members=(
                _maker(context, identity, place, each, vouched=vouched)
                for place, each in enumerate(self.members)
            ),
            vouched=vouched,
        )
        batches.resume(plan)
        record = batches.read(identity)
        if context.at_once and record is not None and not _went_well(record):
            raise QframeError(_failure(record))  # it has run: the caller of the chain hears of it


def _maker(
    context: Context, identity: str, place: int, kept: dict[str, Any], *, vouched: bool
) -> MakeMember:
    def make(number: int) -> ChainPlan:
        member = ChainPlan.of(kept, vouched=vouched)
        return member if number == place else renumbered(context, member, identity, number)

    return make
