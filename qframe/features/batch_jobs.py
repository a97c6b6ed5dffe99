"""The internal jobs that begin a batch in a chain, and dispatch its callbacks."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, ClassVar

from qframe.contracts.batch import BatchRecord
from qframe.contracts.flow import NodeState
from qframe.contracts.step import Operation, Step
from qframe.exceptions import InvalidSignature, QframeError
from qframe.features import batch, chain, flow
from qframe.features.base import Plan, attempts
from qframe.features.batch import BatchMember, BatchPlan, MakeMember
from qframe.features.batches import BatchStore, StoredBatch, renumbered
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared
from qframe.features.refused import RefusedText, log_refused
from qframe.features.reserved import running_job
from qframe.jobs.definition import JobDefinition
from qframe.payload.signature import is_signed

log = logging.getLogger("qframe")

EVENTS = ("progress", "catch", "then", "finally")


def batches_of(job: JobDefinition) -> BatchStore:
    return BatchStore(*running_job(job), job.job.queue)


class RunBatchCallbacks(JobDefinition):
    """Dispatches the callbacks that are due in a batch's current state, each once.

    The same step records what it dispatches, so of two concurrent runs one finds it done.
    """

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: what follows"

    of: str

    def handle(self) -> None:
        """Dispatch the callbacks that are due, then continue the chain around the batch."""
        batches = batches_of(self)
        for _ in attempts(f"the batch {self.of}"):
            found = batches.find(self.of)
            if found is None:
                log.warning("the batch %s is not kept (any more): nothing follows it", self.of)
                return
            if found.refused is not None:
                self._refuse(batches, found, found.refused)
                return
            plan = _callbacks(batches, found)
            if plan.operations:
                batches.apply(plan)  # refused if something changed: build it anew
            elif not _chain_is_due(found.record) or _go_on(batches, found):
                return

    def _refuse(self, batches: BatchStore, found: StoredBatch, error: QframeError) -> None:
        """Fail at once: the stored callbacks do not match their signature."""
        what = f"what follows the batch {self.of}"
        refused = RefusedText(batch.batch_key(self.of), found.text, what, error)
        log_refused(batches.context.connection, refused)
        self.fail(error)


def _callbacks(batches: BatchStore, found: StoredBatch) -> Plan:
    """Return the plan that dispatches due callbacks; without operations if none are due."""
    plan, record, context = Plan(), found.record, batches.context
    due = [event for event in EVENTS if _is_due(record, event)]
    if not due:
        return plan
    if not context.joint:
        del due[1:]  # the others in separate steps: fewer are repeated if a worker dies
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
    """Return uuid, name and error of the job that failed the first failed member."""
    uuid = batches.first_failure(found.record.id)
    if batches.context.signer is not None and found.vouched:
        return _signed_failure(batches, found.record.id, uuid)
    kept = batches.context.backend.find_failed(uuid) if uuid else None
    if kept is not None:
        return kept.uuid, kept.name, kept.exception.strip().rpartition("\n")[2]
    inner = batches.read(uuid) if uuid else None
    if inner is not None:  # a batch; the failed link of its chain
        return inner.id, inner.name or "a batch", _failure(inner)
    return uuid, "", "the job was removed, or its record is gone"


def _signed_failure(batches: BatchStore, identity: str, uuid: str) -> tuple[str, str, str]:
    """Return the same from the signed facts; anybody may have written the failed record."""
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
    """Return the word that records that the chain has continued or ended."""
    return "chain" if _went_well(record) else "broken"


def _went_well(record: BatchRecord) -> bool:
    allows = record.options["chain"]["allows"]
    return record.cancelled_at is None and (allows or not record.failed)


def _failure(record: BatchRecord) -> str:
    return f"{record.failed} of {record.total} members of {record.name or 'a batch'} failed"


def _go_on(batches: BatchStore, found: StoredBatch) -> bool:
    """Continue the chain, or end it if the batch has failed. Returns False to try again.

    If a retry repairs the failure, the chain continues after all.
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
        goes_on = True  # the job that began the batch raises, which ends the chain
    else:
        cause = record.id, record.name or "a batch", _failure(record)
        chain.plan_catch(context, link["id"], plan, cause, batches.queue)
    if not goes_on and link["member"] is not None:
        # Before it is recorded: a repetition then repeats this, if its messages were not pushed.
        member = BatchMember(link["member"]["id"], link["member"]["n"])
        arrives: list[Operation] = [member.arrives(failed or record.id, failed=bool(failed))]
        words = _failure(record) if outcome == "broken" else "its chain was refused"
        if failed and context.signer is not None:
            name = record.name or "a batch"
            arrives.append(batch.failed_words(context, member.batch, failed, name, words))
        context.backend.apply(Step(None, *arrives))
    place = flow.NodePlace.of(link)
    if not goes_on and place is not None:
        _plan_node_end(context, place, record, failed, plan)
    return batches.apply(plan, raises=True).applied


def _plan_node_end(
    context: Context, place: flow.NodePlace, record: BatchRecord, failed: str, plan: Plan
) -> None:
    """End the node of a flow that ends with this batch; `failed` is the id of what failed it."""
    at, name = round(time.time(), 3), record.name or "a batch"
    if failed == record.id and not record.failed:
        ended = flow.Ended(NodeState.CANCELLED, at, record.id, name, remark="cancelled")
    elif failed:
        words = _failure(record) if failed == record.id else "its chain was refused"
        ended = flow.Ended(NodeState.FAILED, at, failed, name, words)
    else:
        ended = flow.Ended(NodeState.DONE, at, record.id, name)
    flow.plan_end(context, place, ended, plan, encrypt=False)


class StartBatch(JobDefinition):
    """Begins a batch as a link of a chain, which continues when the batch has finished."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: begins"

    identity: str
    label: str
    default_queue: str | None
    allows: bool
    progress_step: int
    callback_job: dict[str, Any]
    follow: dict[str, list[dict[str, Any]]]
    members: list[dict[str, Any]]

    def handle(self) -> None:
        """Begin the batch, or continue after a worker that died while it began the batch."""
        batches, payload = batches_of(self), self.job.payload
        context, identity = batches.context, self.identity
        vouched = is_signed(self.job.raw_body)
        link = {
            "id": chain.named_id(payload, chain.KEY),
            "uuid": self.job.uuid,
            "allows": self.allows,
            "member": payload.get(batch.KEY),
            "flow": payload.get(flow.KEY),
        }
        plan = BatchPlan(
            id=identity,
            name=self.label,
            options={"queue": self.default_queue, "follow": self.follow, "chain": link},
            allows_failures=self.allows,
            progress_step=self.progress_step,
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
            # it has run: the caller of the chain gets the error
            raise QframeError(_failure(record))


def _maker(
    context: Context, identity: str, place: int, kept: dict[str, Any], *, vouched: bool
) -> MakeMember:
    def make(number: int) -> ChainPlan:
        member = ChainPlan.of(kept, vouched=vouched)
        return member if number == place else renumbered(context, member, identity, number)

    return make
