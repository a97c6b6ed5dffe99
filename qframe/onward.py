"""The jobs by which a batch begins in a chain, and tells those that follow it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from qframe import manager, membership, tail
from qframe.contracts import BatchRecord, BatchStore, NewBatch
from qframe.drivers import following
from qframe.drivers.base import BaseQueue
from qframe.drivers.beginning import BatchPlan, ChainPlan, MakeMember
from qframe.exceptions import QframeError
from qframe.membership import Member
from qframe.queueable import Queueable
from qframe.tail import Link

log = logging.getLogger("qframe")

_TELLING = 5.0
"""Seconds, at most, after which another may tell where a worker died telling."""
_LOOK = 0.05
_GLANCE = 0.005
_AGAIN = 0.1
"""Seconds one waits in its worker for another, between two looks, and until it is back."""


def new_batch(
    queue: BaseQueue,
    identity: str,
    label: str,
    name: str | None,
    follow: Mapping[str, Sequence[Link]],
    *,
    allows: bool,
    step: int,
    more: dict[str, Any],
) -> NewBatch:
    """Put together what is kept of a batch; `more` are further options."""
    teller = queue.link(TellBatch(of=identity), name, 0, {})
    return NewBatch(
        id=identity,
        name=label,
        connection=queue.name,
        options={
            "queue": name,
            "follow": {event: [link.fields() for link in links] for event, links in follow.items()},
            **more,
        },
        allows_failures=allows,
        progress_step=step,
        teller=queue.signed(teller.raw, teller.queue),
        teller_uuid=teller.uuid,
        teller_queue=teller.queue,
    )


def about(identity: str, event: str) -> dict[str, Any]:
    """Give what a callback's payload says of its batch."""
    return {membership.KEY: {"id": identity, "on": event}}


class TellBatch(Queueable):
    """Dispatches what follows the state a batch has come to, each once it is so."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: what follows"

    of: str

    def handle(self) -> None:
        """Dispatch what has not been, while no other of the same batch does.

        One that has to wait for another looks again later, should that one have died.
        """
        queue = manager.default().connection(self.job.connection_name)
        kept = queue.lock_store()
        if kept is None:  # all runs here, one after the other
            self._tell_all(queue)
            return
        key, owner = f"batch:{self.of}:telling", secrets.token_hex(8)
        until = time.monotonic() + _LOOK
        while not kept.add(key, owner, min(_TELLING, queue.retry_after)):
            if time.monotonic() > until:
                self.release(_AGAIN)
                return
            time.sleep(_GLANCE)
        try:
            self._tell_all(queue)
        finally:
            kept.delete(key, owner)

    def _tell_all(self, queue: BaseQueue) -> None:
        """Look how the batch stands and dispatch what has not been."""
        store = queue.batch_store()
        record = None if store is None else store.read(self.of)
        if store is None or record is None:
            log.warning("the batch %s is not kept (any more): nothing follows it", self.of)
            return
        for event in ("progress", "catch", "then", "finally"):
            if _is_due(record, event):
                self._tell(queue, store, record, event)
        chain = record.options.get("chain")
        if chain is not None and record.is_finished:
            _go_on(queue, store, record, chain)

    def _tell(self, queue: BaseQueue, store: BatchStore, record: BatchRecord, event: str) -> None:
        links = [Link.of(fields) for fields in record.options["follow"].get(event, ())]
        if event == "catch" and links:
            cause = _first_failure(queue, store, record)
            links = [following.caused(queue, link, *cause) for link in links]
        following.put(queue, links)
        if event == "progress":
            store.told(record.id, progress=record.settled)
        else:
            store.told(record.id, event)


def _is_due(record: BatchRecord, event: str) -> bool:
    if event in record.told:
        return False
    if event == "progress":
        return record.settled > record.told_progress
    if event == "catch":
        return record.failed > 0
    if event == "then":
        done = record.sealed and record.done >= record.total
        return done and record.cancelled_at is None
    return record.is_finished


def _first_failure(
    queue: BaseQueue, store: BatchStore, record: BatchRecord
) -> tuple[str, str, str]:
    uuid = store.first_failure(record.id)
    kept = queue.failed_store.find(uuid) if uuid and queue.failed_store is not None else None
    if kept is not None:
        return kept.uuid, kept.name, kept.exception.strip().rpartition("\n")[2]
    inner = store.read(uuid) if uuid else None
    if inner is not None:  # a batch, the link by which its chain has failed
        return inner.id, inner.name or "a batch", _failure(inner)
    return uuid or "", "", "the job was removed, or its record is gone"


def _go_on(
    queue: BaseQueue, store: BatchStore, record: BatchRecord, onward: dict[str, Any]
) -> None:
    """Go on in the chain whose link the batch is, or end it where the batch has failed.

    Where that is mended by a retry, the chain goes on after all.
    """
    chain, link, number = onward["id"], onward["uuid"], onward.get("member")
    well = _went_well(record, onward)
    event = "chain" if well else "broken"
    links = queue.lock_store()
    if event in record.told:
        return
    if links is None:  # the caller of the link goes on
        store.told(record.id, event)
        return
    if not well:
        cause = record.id, record.name or "a batch", _failure(record)
        catch = tail.catch_of(links, chain)
        following.put(queue, [following.caused(queue, each, *cause) for each in catch])
    if (not well or not following.advance(queue, chain, link)) and number is not None:
        following.count_in(queue, Member(number["id"], number["n"]), link, failed=not well)
    store.told(record.id, event)


def _went_well(record: BatchRecord, onward: dict[str, Any]) -> bool:
    return record.cancelled_at is None and (onward["allows"] or not record.failed)


def _failure(record: BatchRecord) -> str:
    return f"{record.failed} of {record.total} members of {record.name or 'a batch'} failed"


class BeginBatch(Queueable):
    """A link of a chain that is a batch: begins it. The chain goes on when that has finished."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "batch: begins"

    label: str
    default_queue: str | None
    allows: bool
    step: int
    follow: dict[str, list[dict[str, Any]]]
    members: list[dict[str, Any]]

    def handle(self) -> None:
        """Begin it, or go on where a worker that died had begun it; its id is this job's."""
        reserved = self.job
        queue = manager.default().connection(reserved.connection_name)
        identity = reserved.uuid
        follow = {
            event: [queue.changed(Link.of(fields), about(identity, event)) for fields in each]
            for event, each in self.follow.items()
        }
        said = reserved.payload
        onward = {
            "id": tail.chain_of(said),
            "uuid": identity,
            "allows": self.allows,
            "member": said.get(membership.KEY),
        }
        new = new_batch(
            queue, identity, self.label, self.default_queue, follow,
            allows=self.allows, step=self.step, more={"chain": onward},
        )  # fmt: skip
        makers = (self._maker(queue, identity, each) for each in self.members)
        queue.begin_batch(BatchPlan(new, follow["before"], makers, len(self.members)))
        if queue.lock_store() is None:  # it has run: nobody goes on but this job's caller
            store = queue.batch_store()
            record = None if store is None else store.read(identity)
            if record is not None and not _went_well(record, onward):
                raise QframeError(_failure(record))

    @staticmethod
    def _maker(queue: BaseQueue, identity: str, kept: dict[str, Any]) -> MakeMember:
        def make(number: int) -> ChainPlan:
            said = {membership.KEY: Member(identity, number).wire()}
            links = [queue.changed(Link.of(fields), said) for fields in kept["links"]]
            catch = [Link.of(fields) for fields in kept["catch"]]
            return ChainPlan(kept["chain"], [None] * len(links), links, catch)

        return make
