"""Batches: starting, adding members, reading, cancelling and pruning.

The fact `batch:ID` has the options, and later decisions and dispatches; the latch `batch:ID` has
the members. `batch:ID:size` is how many numbers were assigned, `batch:ID:once:WORD` the first
number assigned for a word. `batches:TIME:ID` lists the batches, the latest first. With a signing
key the options are signed, and `batch:ID:failed:UUID` says, signed, how a member failed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qframe.contracts.batch import BatchRecord
from qframe.contracts.facts import Latch
from qframe.contracts.step import (
    Claim,
    Close,
    Expect,
    Extend,
    Open,
    Operation,
    Push,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.drivers.store import Store
from qframe.exceptions import (
    InvalidJob,
    InvalidPayload,
    InvalidSignature,
    QframeError,
    SettleError,
)
from qframe.features import chain
from qframe.features.base import Plan, attempts
from qframe.features.batch import KEPT, BatchMember, BatchPlan, MakeMember, batch_key
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared
from qframe.features.refused import REFUSED
from qframe.features.reserved import ReservedJob
from qframe.payload import tracebacks
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

CHUNK = 500
"""Members that are counted and pushed together."""
_ABOUT = "about"
"""The field of signed options."""
_PAGE = 200


class StoredBatch(NamedTuple):
    text: str
    latch: Latch
    record: BatchRecord
    vouched: bool = True
    """Whether its options may be signed."""
    refused: QframeError | None = None
    """Why its options are not used; the record then has none."""

    def changed(self, **fields: object) -> list[Operation]:
        """Return the operations that change its fact.

        Raises `InvalidPayload` if it cannot be read.
        """
        key = batch_key(self.record.id)
        try:
            text = _json({**json.loads(self.text), **fields})
        except (ValueError, TypeError):
            raise InvalidPayload(f"what is kept of the batch {self.record.id} is none") from None
        return [Expect(key, self.text), Set(key, text, KEPT)]


class BatchStore:
    """The batches of a connection. Raises `BackendUnavailable`.

    With a running `job`, steps are made in its name.
    """

    def __init__(self, context: Context, job: ReservedJob | None = None, queue: str = "") -> None:
        self.context = context
        self.queue = queue
        """The queue of the running job."""
        self._backend = context.backend
        self._job = job

    # -- beginning --------------------------------------------------------------------------------

    def start(self, plan: BatchPlan) -> None:
        """Store a batch and push its members, in portions.

        If it raises, the batch is cancelled, and ends when the members pushed so far have ended.
        """
        for _ in self.starting(plan):
            pass

    def starting(self, plan: BatchPlan) -> Iterator[None]:
        """Do so in parts, between which other calls may run.

        The members of a list are all built first, so a batch that is refused has not begun. Those
        of an iterator are built as they are pushed, except for the first portion.
        """
        chunks = _chunks(plan)
        ahead = 1 if isinstance(plan.members, Iterator) else None
        built: list[list[ChainPlan]] = []
        for makers in itertools.islice(chunks, ahead):
            built.append(_built(makers, len(built) * CHUNK))
            yield
        try:
            self._create(plan)
            begun = (
                _makers(self.context, plan.id, each, place * CHUNK)
                for place, each in enumerate(built)
            )
            for makers in itertools.chain(begun, chunks):
                yield
                self.add(plan.id, makers)
            self.close(plan.id)
        except BaseException:
            with contextlib.suppress(QframeError):
                self.cancel(plan.id)
                self.close(plan.id)
            raise

    def resume(self, plan: BatchPlan) -> None:
        """Begin a batch in a job, or continue after a worker that died while it began it."""
        self._create(plan)
        found = self.find(plan.id)
        if found is None:
            return
        if not found.record.closed:
            begun = len(Store(self._backend).keys(f"{batch_key(plan.id)}:once:begin "))
            for number, makers in enumerate(_chunks(plan)):
                if number >= begun - 1:
                    self.add(plan.id, makers, f"begin {number}", again=False)
        self.close(plan.id)  # also if repeated: its messages may not have been pushed

    def _create(self, plan: BatchPlan) -> None:
        """Store a batch without members and push what comes before them, unless it exists."""
        key, created = batch_key(plan.id), time.time()
        fields = {"connection": self.context.connection, "created_at": created}
        about = {
            "name": plan.name,
            "options": plan.options,
            "allows_failures": plan.allows_failures,
        }
        if self.context.signer is not None and plan.vouched:
            fields[_ABOUT] = self.context.sealed(_about_key(plan.id), _json(about))
        else:
            fields |= about
        runs = self.context.pushing(plan.callback_job)
        made = Plan()
        made.add(
            Expect(key, None),
            Set(key, _json(fields), KEPT),
            Set(_size_key(plan.id), "0", KEPT),
            Set(index_key(plan.id, created), "", KEPT),
            Open(key, Push(runs.queue, runs.raw, runs.delay), plan.progress_step),
        )
        for job in plan.options["follow"].get("before", ()):
            before = Prepared.of(job, vouched=plan.vouched)
            chain.plan_prepared(self.context, before, made)
        self.apply(made)

    def close(self, identity: str) -> None:
        """Declare that all first members are there; a repetition checks the callbacks again."""
        self._backend.apply(Step(None, Close(batch_key(identity))))

    # -- members ----------------------------------------------------------------------------------

    def add(
        self, identity: str, makers: Sequence[MakeMember], word: str = "", *, again: bool = True
    ) -> None:
        """Count members and push them, in one step, except those whose locks may be taken.

        Repeated with the same word, they get the same numbers, and are pushed again if `again` is
        set. Raises `InvalidJob` if the batch accepts none. Members that cannot be pushed have
        failed.
        """
        first, counted = self._number(identity, word)
        members = [make(number) for number, make in enumerate(makers, first)]
        for _ in attempts(f"the batch {identity}"):
            plan, apart = self._plan(members)
            if not counted:
                plan.add(*_counting(identity, first, len(members), word))
            try:
                if (counted and not again) or self.apply(plan).applied:
                    self._push_apart(identity, members, first, apart)
                    return
            except SettleError:
                raise  # another worker has the turn
            except BaseException:
                if again:
                    with contextlib.suppress(QframeError):
                        self._give_up(identity, first, len(members), word)
                raise
            before = first
            first, counted = self._number(identity, word)
            if first != before:
                members = [
                    renumbered(self.context, member, identity, number)
                    for number, member in enumerate(members, first)
                ]

    def _push_apart(
        self, identity: str, members: Sequence[ChainPlan], first: int, places: Sequence[int]
    ) -> None:
        """Push members, each in its own step.

        A member whose lock another job has counts as done.
        """
        for place in places:
            if not chain.push_first(self.context, members[place], self.apply):
                done = BatchMember(identity, first + place).arrives("", failed=False)
                self._backend.apply(Step(None, done))

    def _give_up(self, identity: str, first: int, count: int, word: str) -> None:
        """Count members as failed that may not have been pushed, because of an error."""
        (size,) = self._backend.read(_size_key(identity))
        counting = _counting(identity, first, count, word) if size == str(first) else []
        numbers = range(first, first + count)
        failed = [BatchMember(identity, number).arrives("", failed=True) for number in numbers]
        self._backend.apply(Step(None, *counting, *failed))

    def _number(self, identity: str, word: str) -> tuple[int, bool]:
        """Return the next member's number, and whether the word had already got one."""
        found = self.find(identity)
        size, once = self._backend.read(_size_key(identity), _once_key(identity, word))
        if word and once is not None:
            return int(once), True
        over = found is None or (
            found.record.closed
            and (found.record.is_finished or found.record.cancelled_at is not None)
        )
        if found is not None and found.refused is not None:
            raise found.refused
        if over or size is None:
            raise InvalidJob(
                f"the batch {identity} is finished, cancelled or gone: it takes no jobs"
            )
        return int(size), False

    def _plan(self, members: Sequence[ChainPlan]) -> tuple[Plan, list[int]]:
        """Return the plan that pushes members, and the indexes of those that need their own steps.

        Those expect something, such as a free lock.
        """
        plan, apart = Plan(), list[int]()
        for place, member in enumerate(members):
            _, own = chain.plan_first(self.context, member)
            if any(isinstance(each, Expect | Claim) for each in own.operations):
                apart.append(place)
            else:
                plan.operations += own.operations
                plan.then(*own.after)
        return plan, apart

    def apply(self, plan: Plan, *, raises: bool = False) -> Result:
        """Apply a plan as `apply_for` does."""
        return apply_for(self.context, self._job, plan, raises=raises)

    # -- one batch --------------------------------------------------------------------------------

    def find(self, identity: str) -> StoredBatch | None:
        if not chain.is_id(identity):
            return None
        (text,) = self._backend.read(batch_key(identity))
        return None if text is None else self._found(identity, text)

    def _found(self, identity: str, text: str) -> StoredBatch | None:
        latch = self._backend.latch(batch_key(identity))
        if latch is None:
            return None
        record, vouched, refused = _record(self.context, identity, text, latch)
        return StoredBatch(text, latch, record, vouched, refused)

    def read(self, identity: str) -> BatchRecord | None:
        found = self.find(identity)
        return None if found is None else found.record

    def failures(self, identity: str, limit: int = 1000) -> list[str]:
        """Return the uuids of the jobs that failed members, by member number."""
        latch = self._backend.latch(batch_key(identity), limit)
        return [] if latch is None else [label.partition(":")[2] for label in latch.labels]

    def first_failure(self, identity: str) -> str:
        """Return the uuid of the job that failed the first member, by time.

        If that member succeeded on a retry, another failed member's; "" if there is none.
        """
        latch = self._backend.latch(batch_key(identity), 1000)
        if latch is None:
            return ""
        first = f"{latch.first_failed}:"
        label = min(latch.labels, key=lambda each: not each.startswith(first), default="")
        return label.partition(":")[2]

    def cancel(self, identity: str) -> bool:
        """Cancel the batch. Returns False if it was already cancelled or finished."""

        def cancelled(found: StoredBatch) -> Mapping[str, object] | None:
            over = found.record.cancelled_at is not None or found.record.is_finished
            return None if over else {"cancelled_at": time.time()}

        return self._change(identity, cancelled)

    def revive(self, identity: str) -> bool:
        """Undo the cancelling of a batch. Returns whether it was cancelled.

        A first failure from before does not cancel it again.
        """

        def revived(found: StoredBatch) -> Mapping[str, object] | None:
            was = found.record.cancelled_at is not None
            forgiven = found.latch.failed_at is not None
            return {"cancelled_at": None, "forgiven": forgiven} if was else None

        return self._change(identity, revived)

    def reopen(self, identity: str) -> list[str]:
        """Let a batch go on that failed, and failed batches in it. Returns its failed jobs.

        They are to be retried. If they were before, the end of the batch is counted now.
        """
        found: list[str] = []
        seen, left = {identity}, [identity]
        while left:
            batch = left.pop(0)
            self.revive(batch)
            record = self.read(batch)
            if record is None:
                continue
            uuids = self.failures(batch, record.failed) if record.failed else []
            if record.is_finished and not uuids:
                self.close(batch)  # workers look again
            for uuid in uuids:
                if self.read(uuid) is None:
                    found.append(uuid)
                elif uuid not in seen:
                    seen.add(uuid)
                    left.append(uuid)
        return found

    def _change(
        self, identity: str, fields: Callable[[StoredBatch], Mapping[str, object] | None]
    ) -> bool:
        for _ in attempts(f"the batch {identity}"):
            found = self.find(identity)
            wanted = None if found is None else fields(found)
            if found is None or wanted is None:
                return False
            (result,) = self._backend.apply(Step(None, *found.changed(**wanted)))
            if result.applied:
                return True
        return False

    # -- all of them ------------------------------------------------------------------------------

    def all(self) -> Iterator[BatchRecord]:
        """Iterate over all batches, the latest first, skipping those removed meanwhile."""
        return (record for _, _, record in self._listed() if record is not None)

    def _listed(self) -> Iterator[tuple[str, str, BatchRecord | None]]:
        """Iterate over keys, ids and records; the record is None for a batch that is gone."""
        after = ""
        while page := self._backend.scan("batches:", _PAGE, after):
            keys = [key for key, _ in page]
            ids = [key.rpartition(":")[2] for key in keys]
            texts = self._backend.read(*map(batch_key, ids))
            for key, identity, text in zip(keys, ids, texts, strict=True):
                found = None if text is None else self._found(identity, text)
                yield key, identity, None if found is None else found.record
            after = keys[-1]

    def prune(
        self,
        finished: float,
        *,
        unfinished: float | None = None,
        cancelled: float | None = None,
    ) -> int:
        """Remove batches that finished before an epoch time. Returns how many.

        It keeps those with callbacks still to dispatch (`is_notified`). `unfinished` also removes
        these and unfinished ones created before a time; `cancelled`, ones cancelled before a time.
        """
        count = 0
        for key, identity, record in self._listed():
            if record is None or _is_old(record, finished, unfinished, cancelled):
                kept = Store(self._backend).keys(f"{batch_key(identity)}:")
                gone = map(Unset, [key, batch_key(identity), *kept])
                self._backend.apply(Step(None, *gone))
                count += record is not None
        return count


def apply_for(
    context: Context, job: ReservedJob | None, plan: Plan, *, raises: bool = False
) -> Result:
    """Apply a plan, in the name of a running job if there is one.

    If jobs run in their push, their exceptions are logged unless `raises` is set: the other
    members must run all the same.
    """
    if context.at_once and not raises:
        return _apply_at_once(context, plan)
    if job is None or job.is_settled or context.at_once:
        return context.apply(plan)
    return job.apply(plan)


def _apply_at_once(context: Context, plan: Plan) -> Result:
    pushes = [each for each in plan.operations if isinstance(each, Push)]
    others = [each for each in plan.operations if not isinstance(each, Push)]
    (result,) = context.backend.apply(Step(None, *others))
    for push in pushes if result.applied else ():
        try:
            context.backend.apply(Step(None, push))
        except Exception as error:  # noqa: BLE001 (its failure is counted, the others still run)
            log.warning("a job of %s failed: %s", push.queue, tracebacks.brief(error))
    if result.applied:
        plan.applied()
    return result


def _is_old(
    record: BatchRecord, finished: float, unfinished: float | None, cancelled: float | None
) -> bool:
    over = record.finished_at if record.is_notified else None
    if over is not None and over < finished:
        return True
    if over is None and unfinished is not None and record.created_at < unfinished:
        return True
    return None not in {cancelled, record.cancelled_at} and record.cancelled_at < cancelled  # type: ignore[operator]


def _record(
    context: Context, identity: str, text: str, latch: Latch
) -> tuple[BatchRecord, bool, QframeError | None]:
    """Return a batch's record, whether its options may be signed, and why they are refused."""
    fields: dict[str, Any] = {}
    vouched, refused = True, None
    try:
        fields, vouched = _fields(context, identity, text)
    except (InvalidSignature, InvalidPayload) as error:
        refused = error
        fields = {"connection": context.connection, "created_at": 0.0, "name": REFUSED}
        fields |= {"options": {"follow": {}}, "allows_failures": True}
    cancelled_at = fields.get("cancelled_at")
    if cancelled_at is None and not fields["allows_failures"] and not fields.get("forgiven"):
        cancelled_at = latch.failed_at
    record = BatchRecord(
        id=identity,
        name=fields["name"],
        connection=fields["connection"],
        total=latch.size,
        done=latch.done,
        failed=latch.failed,
        closed=latch.closed,
        notified=frozenset(fields.get("notified", ())),
        notified_progress=fields.get("notified_progress", 0),
        options=fields["options"],
        created_at=fields["created_at"],
        cancelled_at=cancelled_at,
        finished_at=latch.completed_at,
    )
    return record, vouched, refused


def _fields(context: Context, identity: str, text: str) -> tuple[dict[str, Any], bool]:
    """Return the fields of a batch's fact, and whether its options may be signed.

    Raises `InvalidSignature` or `InvalidPayload`.
    """
    place, vouched = _about_key(identity), True
    try:
        fields = json.loads(text)
        sealed = fields.get(_ABOUT)
        if isinstance(sealed, str):
            kept = context.opened(place, sealed)
            fields, vouched = {**fields, **json.loads(kept.text)}, kept.vouched
        # from before the key existed: refused or accepted, by setting
        elif context.signer is not None:
            vouched = context.opened(place, "{}").vouched
        for key, kind in _KINDS.items():
            if not isinstance(fields[key], kind):
                raise TypeError(f"{key} is none")
        return fields, vouched
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidSignature):
            raise
        raise InvalidPayload(f"what is kept is no batch: {one_line(repr(error), 100)}") from None


_KINDS = {
    "name": str, "connection": str, "options": dict, "allows_failures": bool,
    "created_at": int | float,
}  # fmt: skip


def renumbered(context: Context, member: ChainPlan, identity: str, number: int) -> ChainPlan:
    """Return a member with another number."""
    keys = BatchMember(identity, number).keys()
    return member._replace(links=[context.changed(link, keys) for link in member.links])


def _chunks(plan: BatchPlan) -> Iterator[list[MakeMember]]:
    rest = iter(plan.members)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


def whole(context: Context, plan: BatchPlan) -> BatchPlan:
    """Build all members of a batch that begins later."""
    built = _built([*plan.members], 0)
    return plan._replace(members=_makers(context, plan.id, built, 0))


def _built(makers: Sequence[MakeMember], first: int) -> list[ChainPlan]:
    """Build members, numbered from `first`.

    They are kept as bytes: decoded, they would take three times the memory.
    """
    built = (make(number) for number, make in enumerate(makers, first))
    return [
        each._replace(links=[link._replace(message=None) for link in each.links]) for each in built
    ]


def _makers(
    context: Context, identity: str, built: Sequence[ChainPlan], first: int
) -> list[MakeMember]:
    """Return functions that make the built members, numbered from `first`."""

    def ready(place: int, member: ChainPlan) -> MakeMember:
        return lambda number: (
            member if number == place else renumbered(context, member, identity, number)
        )

    return [ready(place, member) for place, member in enumerate(built, first)]


def _counting(identity: str, first: int, count: int, word: str) -> list[Operation]:
    """Return the operations that count members, with numbers that no other members have."""
    size = first + count
    step: list[Operation] = [
        Expect(_size_key(identity), str(first)),
        Extend(batch_key(identity), size),
        Set(_size_key(identity), str(size), KEPT),
    ]
    if word:
        key = _once_key(identity, word)
        step += [Expect(key, None), Set(key, str(first), KEPT)]
    return step


def _about_key(identity: str) -> str:
    """Return the key that the options are signed for."""
    return f"{batch_key(identity)}:{_ABOUT}"


def _size_key(identity: str) -> str:
    return f"{batch_key(identity)}:size"


def _once_key(identity: str, word: str) -> str:
    return f"{batch_key(identity)}:once:{word}"


def index_key(identity: str, created: float) -> str:
    """Return the key by which a batch is listed, the latest first."""
    return f"batches:{2**48 - int(created * 1000):012x}:{identity}"


_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
