"""Chains: jobs that run one after the other, each pushed in the step that ends the one before.

`chain:ID` says where the chain is: `at` is the uuid of the link that waits or runs, `last` that of
the last; `delays` are the seconds that all links together wait, `added` how many links were added
since its dispatch, `gone` how many have ended. `chain:ID:UUID` is the link after that one, with its
payload; `chain:ID:catch` has the jobs to push when a link fails. With a signing key both are signed
for their keys: a link without a valid signature ends its chain like a failure. Every change of a
chain changes `chain:ID`, so a step that expects the value it was read with is refused if anything
has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json, to_json

from qframe import events
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.status import State
from qframe.contracts.step import (
    APPLIED,
    Expect,
    Operation,
    Outcome,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.drivers.claims import in_one
from qframe.drivers.store import Store
from qframe.exceptions import (
    BackendUnavailable,
    InvalidPayload,
    InvalidSignature,
    QframeError,
)
from qframe.features.base import DONE_BEFORE, End, Plan, Pushing, attempts, driven
from qframe.features.context import Context, Prepared
from qframe.features.refused import REFUSED, RefusedText, refuse
from qframe.features.reserved import Feature, ReservedJob
from qframe.features.status import as_json
from qframe.jobs.references import NODE_KEY
from qframe.payload import envelope, tracebacks
from qframe.payload.encryption import is_encrypted
from qframe.payload.signature import OVERHEAD, unsealed

log = logging.getLogger("qframe")

KEY = "chain"
"""Payload key: the chain that a job is a link of."""
PREVIOUS = "previous"
"""Key of a link's payload: the link before it, and what that returned."""
CAUSE = "cause"
"""Key of a callback's payload: the job that failed, and its error."""
KEPT = 30 * 86400.0
"""Seconds that a chain is kept after its last step, in addition to its delays."""
KEPT_IN_FLOW = 365 * 86400.0
"""The same for a chain that is a node of a flow: as long as the flow."""
_SHOWN = 50
"""The most following links that are listed by name."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ChainPlan(NamedTuple):
    """A chain before its dispatch; without `id` it is a single job."""

    id: str
    jobs: Sequence[Any]
    """The jobs of the links, for listeners; None if unknown."""
    links: Sequence[Prepared]
    catch: Sequence[Prepared] = ()
    """Jobs to push when a link fails."""

    def fields(self) -> dict[str, Any]:
        """Return everything except the jobs, as values that JSON can carry."""
        links, catch = ([each.fields() for each in jobs] for jobs in (self.links, self.catch))
        return {"chain": self.id, "links": links, "catch": catch}

    def batches(self) -> list[str]:
        """Return the ids of the batches among the links, which were just built."""
        links = ((each.message or {}).get(KEY) or {} for each in self.links)
        return [batch for each in links if (batch := named_id(each, "batch"))]

    @classmethod
    def of(cls, fields: Mapping[str, Any], *, vouched: bool = True) -> ChainPlan:
        links, catch = (
            [Prepared.of(each, vouched=vouched) for each in fields[key]]
            for key in ("links", "catch")
        )
        return cls(fields["chain"], [None] * len(links), links, catch)


class ChainFeature(Feature):
    """Pushes the next link in the step that ends one, or the callbacks of a failure."""

    key: ClassVar[str] = KEY
    passes_result: ClassVar[bool] = True
    asks = True

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        """Return the keys of the chain and of the links behind this one.

        Raises `InvalidPayload` if it has gone on, or a link cannot be read.
        """
        chain, uuid = named_id(job.message, KEY), envelope.uuid(job.message)
        (text,) = (None,) if chain is None else context.backend.read(_key(chain))
        if chain is None or text is None:
            return ()
        head = _head(text)
        if head is None or uuid is None or head["at"] != uuid:
            raise InvalidPayload("its chain has gone on, or cannot be read")
        keys = [_key(chain), _catch_key(chain)]
        while True:
            keys.append(_link_key(chain, uuid))
            (record,) = context.backend.read(keys[-1])
            if record is None:
                return keys
            try:
                uuid = Prepared.of(from_json(unsealed(record))).uuid
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InvalidPayload("a link of its chain cannot be read") from None

    def skip_reason(self, job: ReservedJob) -> str | None:
        """Skip a link that was done before, as shown by its chain, where steps are not atomic."""
        chain = _chain_of(job)
        if chain is None or (job.context.joint and not job.attempts()):
            return None
        (text,) = job.context.backend.read(_key(chain))
        head = None if text is None else _head(text)
        if head is None or head["at"] == job.own_uuid:
            return None
        return f"{DONE_BEFORE}its chain has gone on"

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Push the next link or the callbacks of a failure, or remove the chain."""
        chain = _chain_of(job)
        if chain is None or not end.state.is_final:
            return
        plan.waited_for = True
        context, uuid = job.context, job.own_uuid
        job.broken_chain = ""
        if end.state in {State.COMPLETE, State.SKIPPED}:
            try:
                goes_on = waits_for_batch(job) or plan_next(
                    context, chain, uuid, plan, _returned(job, end)
                )
            except LinkRefused as refused:
                job.broken_chain = plan_refused(context, chain, refused, job.queue, plan)
                return
            if goes_on is None:
                log.warning("%s %s: nothing is kept of its chain (any more)", job.name, uuid)
                plan.is_cut_off = True
            plan.continues = bool(goes_on)
            return
        (text,) = context.backend.read(_key(chain))
        head = None if text is None else _head(text)
        if head is not None and head["at"] != uuid:
            plan.continues = True  # without this step, which comes again
        elif text is not None and end.state is State.FAILED:
            plan_catch(context, chain, plan, (uuid, job.name, _words(end.error)), job.queue)
        elif text is not None:
            plan.add(Expect(_key(chain), text), *_forgetting(context, chain))


def _chain_of(job: ReservedJob) -> str | None:
    """Return the id of the chain that a job may be a link of."""
    return job.read_once(KEY, lambda: named_id(job.payload, KEY) if is_id(job.own_uuid) else None)


def named_id(message: Mapping[str, Any], key: str) -> str | None:
    value = message.get(key)
    identity = value.get("id") if isinstance(value, dict) else None
    return identity if isinstance(identity, str) and is_id(identity) else None


def is_id(identity: str) -> bool:
    return _ID.fullmatch(identity) is not None


def waits_for_batch(job: ReservedJob) -> bool:
    """Whether the chain continues not at the end of this job but at that of its batch."""
    said = job.payload.get(KEY)
    batch = named_id(said, "batch") if isinstance(said, dict) else None
    if batch is None:
        return False
    (text,) = job.context.backend.read(f"batch:{batch}")
    return text is not None  # a skipped job began none


def _words(error: BaseException | str | None) -> str:
    return tracebacks.brief(error, 500) if isinstance(error, BaseException) else str(error or "")


# -- its beginning --------------------------------------------------------------------------------


def start(context: Context, chain: ChainPlan) -> None:
    """Store a chain and push its first link; leaves nothing behind if that certainly fails."""
    driven(starting(context, chain), context.apply)


def starting(context: Context, chain: ChainPlan) -> Generator[Plan, Result, None]:
    """As `start`, for a caller that applies the plans and sends their results."""
    if Capability.FACTS not in context.backend.capabilities:
        return  # the null backend stores nothing
    try:
        yield from _pushing_first(context, chain)
    except BaseException as error:
        # otherwise it may have been pushed
        if not (isinstance(error, BackendUnavailable) and error.in_doubt):
            with contextlib.suppress(QframeError):
                context.backend.apply(Step(None, *_forgetting(context, chain.id)))
        raise


def push_first(context: Context, chain: ChainPlan, apply: Callable[[Plan], Result]) -> bool:
    """Store a chain and push its first link whose lock is free. Returns whether there is one.

    Also for a single job. `apply` applies the plan of a step.
    """
    return driven(_pushing_first(context, chain), apply)


def _pushing_first(context: Context, chain: ChainPlan) -> Generator[Plan, Result, bool]:
    for place, job in enumerate(chain.jobs):
        left = chain._replace(links=chain.links[place:], jobs=chain.jobs[place:])
        pushing, plan = plan_first(context, left)
        result = yield plan
        while context.may_be_tried_again(result):
            pushing, plan = plan_first(context, left)
            result = yield plan
        holder = context.holder(pushing, result)
        if holder in {"", pushing.uuid}:
            return True
        context.fire_pushed(pushing, holder, job)
    return False


def plan_first(context: Context, chain: ChainPlan) -> tuple[Pushing, Plan]:
    """Return a chain's first link, and the plan of the step that begins the chain."""
    plan, pushing = Plan(), context.pushing(chain.links[0])
    if chain.id:
        delays = sum(link.delay for link in chain.links)
        kept = KEPT_IN_FLOW if NODE_KEY in pushing.message else KEPT
        ttl = kept + delays
        for link, behind in itertools.pairwise(chain.links):
            plan.add(stored_jobs(context, _link_key(chain.id, link.uuid), [behind], ttl, one=True))
        if chain.catch:
            plan.add(stored_jobs(context, _catch_key(chain.id), chain.catch, ttl))
        head = {"at": pushing.uuid, "last": chain.links[-1].uuid, "delays": delays, "kept": kept}
        plan.add(Set(_key(chain.id), _json(head), ttl))
    context.plan_push(pushing, plan)
    if events.JobQueued.listeners:
        plan.then(partial(context.fire_pushed, pushing, "", chain.jobs[0]))
    return pushing, plan


def plan_beginning(context: Context, chain: ChainPlan, plan: Plan) -> bool:
    """Add the beginning of a chain, or a single job, to a plan.

    Links whose locks others have are passed over. Returns False if all are.
    """
    for place in range(len(chain.links)):
        left = chain._replace(links=chain.links[place:], jobs=chain.jobs[place:])
        pushing, own = plan_first(context, left)
        holder = _holder(context, pushing, own, plan)
        if not holder:
            plan.add(*own.operations)
            plan.then(*own.after)
            return True
        plan.then(partial(context.fire_pushed, pushing, holder))
    return False


def planned(context: Context, operations: Sequence[Operation], first: Pushing) -> ChainPlan:
    """Read a chain from the operations of `plan_first`; without `id` if they begin none.

    Raises `InvalidSignature`.
    """
    links, catch = [Prepared(first.uuid, first.raw, first.queue, first.delay)], list[Prepared]()
    identity = named_id(first.message, KEY) or ""
    facts = {each.key: each.value for each in operations if type(each) is Set}
    if identity and _key(identity) in facts:
        while (behind := facts.get(key := _link_key(identity, links[-1].uuid))) is not None:
            links += context.kept_jobs(key, behind)
        if (text := facts.get(key := _catch_key(identity))) is not None:
            catch = context.kept_jobs(key, text)
    return ChainPlan(identity, [None] * len(links), links, catch)


# -- its steps ------------------------------------------------------------------------------------


def _returned(job: ReservedJob, end: End) -> dict[str, Any] | None:
    """Return what the next link learns of a link that returned something."""
    if end.state is not State.COMPLETE or end.result is None:
        return None
    text, why_not = as_json(end.result)
    found: dict[str, Any] = {"uuid": job.own_uuid, "name": job.name}
    if not text:
        return {**found, "remark": why_not}
    if is_encrypted(job.payload):
        message = b'{"job":%s,"data":%s}' % (to_json(PREVIOUS), text.encode())
        return {**found, **job.context.keyring.sealed(PREVIOUS, message)}
    return {**found, "result": from_json(text)}


def plan_next(
    context: Context, chain: str, uuid: str, plan: Plan, returned: dict[str, Any] | None = None
) -> bool | None:
    """Add what follows a link to the plan of its end. Returns whether the chain continues.

    The next link gets what this one has `returned`. Also True if it has continued before; None if
    nothing is stored of it. Raises `LinkRefused`.
    """
    text, record = context.backend.read(_key(chain), _link_key(chain, uuid))
    if text is None:
        return None
    head = _head(text)
    if head is None:
        plan.add(Expect(_key(chain), text))
        head = {"at": uuid, "last": "", "delays": 0, "kept": KEPT}
        raise LinkRefused(_key(chain), text, head, InvalidPayload("what is kept of it is no chain"))
    if head["at"] != uuid:
        return True
    plan.add(Expect(_key(chain), text))
    while record is not None:
        link = _link(context, _link_key(chain, head["at"]), record, head)
        plan.add(Unset(_link_key(chain, head["at"])))
        head["at"], head["gone"] = link.uuid, head.get("gone", 0) + 1
        if returned is not None:
            link = _with_result(context, link, returned)
        if not plan_prepared(context, link, plan, follows=uuid):
            plan.add(Set(_key(chain), _json(head), head["kept"] + link.delay))
            return True
        (record,) = context.backend.read(_link_key(chain, link.uuid))
    if head["at"] != head["last"]:
        log.warning("the chain %s ends early: what is left of it is not kept any more", chain)
        plan.add(*_forgetting(context, chain))
    else:
        plan.add(Unset(_key(chain)), Unset(_catch_key(chain)))
    return False


class LinkRefused(QframeError):
    """The stored next link of a chain is not signed, was changed, or is not a job."""

    def __init__(self, key: str, text: str, head: dict[str, Any], error: QframeError) -> None:
        super().__init__(str(error))
        self.key = key
        self.text = text
        self.head = head
        self.error = error


def _link(context: Context, key: str, text: str, head: dict[str, Any]) -> Prepared:
    try:
        links = context.kept_jobs(key, text)
        if len(links) != 1:
            raise InvalidPayload(f"what is kept is no link: it is {len(links)} jobs")
    except (InvalidSignature, InvalidPayload) as error:
        raise LinkRefused(key, text, head, error) from None
    return links[0]


def plan_refused(context: Context, chain: str, refused: LinkRefused, queue: str, plan: Plan) -> str:
    """End, as failed, a chain whose next link is refused. Returns the id of the failed record.

    What is stored of the chain stays, and the callbacks of a failure are pushed.
    """
    what = f"the link behind {refused.head['at']} of the chain {chain}"
    recorded = refuse(
        context, plan, RefusedText(refused.key, refused.text, what, refused.error), queue
    )
    plan.add(Set(_key(chain), _json({**refused.head, "at": REFUSED}), refused.head["kept"]))
    plan_catch(context, chain, plan, (recorded, REFUSED, _words(refused.error)), queue)
    return recorded


class ChainStanding(NamedTuple):
    """Where a chain is, as seen from one of its links."""

    id: str
    at: str
    """The uuid of the link that waits, runs or has failed."""
    position: int
    """The position of that link, from 1."""
    following: Sequence[str]
    """The names of the following links, in order."""
    is_whole: bool
    """Whether `following` has all of them."""


def standing(backend: Backend, message: Mapping[str, Any]) -> ChainStanding | None:
    """Return where the chain of a payload is; None if there is no chain, or nothing is stored."""
    chain = named_id(message, KEY)
    (text,) = (None,) if chain is None else backend.read(_key(chain))
    head = None if text is None else _head(text)
    if chain is None or head is None:
        return None
    uuid, names = head["at"], list[str]()
    while len(names) < _SHOWN:
        (record,) = backend.read(_link_key(chain, uuid))
        if record is None:
            break
        try:
            link = Prepared.of(from_json(unsealed(record)))
        except (ValueError, KeyError, TypeError, AttributeError):
            names.append(REFUSED)
            break
        uuid = link.uuid
        names.append(_name_of(link.raw))
    return ChainStanding(chain, head["at"], head.get("gone", 0) + 1, names, uuid == head["last"])


def _name_of(raw: bytes) -> str:
    try:
        return envelope.display_name(envelope.parse(raw))
    except InvalidPayload:
        return "(no payload)"


def plan_catch(
    context: Context, chain: str, plan: Plan, cause: tuple[str, str, str], queue: str
) -> None:
    """Add the push of the callbacks; `cause` is uuid, name and error of the failed job."""
    key = _catch_key(chain)
    (text,) = context.backend.read(key)
    if text is not None:
        plan_kept_callbacks(context, key, text, f"the chain {chain}", plan, cause, queue)


def plan_kept_callbacks(
    context: Context,
    key: str,
    text: str,
    of: str,
    plan: Plan,
    cause: tuple[str, str, str],
    queue: str,
) -> None:
    """Add the push of the jobs, stored under a key, that a failure of a chain or flow is for."""
    try:
        jobs = context.kept_jobs(key, text)
    except (InvalidSignature, InvalidPayload) as error:
        what = f"what catches a failure of {of}"
        refuse(context, plan, RefusedText(key, text, what, error), queue)
        return
    for job in jobs:
        plan_prepared(context, caused(context, job, *cause), plan)


def plan_prepared(
    context: Context, job: Prepared, plan: Plan, *, follows: str | None = None
) -> str:
    """Add the push of a link or callback, unless another job has its lock; returns that job's uuid.

    Listeners get an event: for a link that `follows` another one when it is pushed, and for both
    kinds when they are not.
    """
    pushing, own = context.pushing(job, follows=follows or ""), Plan()
    context.plan_push(pushing, own)
    holder = _holder(context, pushing, own, plan)
    if holder or follows is not None:
        plan.then(partial(context.fire_pushed, pushing, holder))
    if holder:
        log.info("%s is passed over: %s has its lock or key", job.uuid, holder)
        return holder
    plan.add(*own.operations)
    plan.then(*own.after)
    return ""


def _holder(context: Context, job: Pushing, own: Plan, plan: Plan) -> str:
    """Return the uuid of the job that would block the push after the plan; "" if none."""
    before = {each.key: each.value for each in in_one(plan.operations) if type(each) is Set}
    for each in in_one(own.operations):
        if isinstance(each, Expect):
            written = [before[each.key]] if each.key in before else []
            refusal = _refusal(context, each, *written)
            if not refusal.applied:
                return context.holder(job, refusal)
    return ""


def _refusal(context: Context, expected: Expect, *written: str) -> Result:
    """Return the result of one expectation, after something was written."""
    while True:
        holds = written[0] if written else context.backend.read(expected.key)[0]
        if holds == expected.value:
            return APPLIED
        result = Result(Outcome.REFUSED, expected.key, holds)
        if written or not context.may_be_tried_again(result):
            return result


def _with_result(context: Context, link: Prepared, returned: dict[str, Any]) -> Prepared:
    """Return a link with what the one before it returned, or why that is missing."""
    changed = context.changed(link, {PREVIOUS: returned})
    if len(changed.raw) + context.overhead <= context.max_payload:
        return changed
    remark = "with it, the payload of the next job would be larger than max_payload"
    kept = {key: returned[key] for key in ("uuid", "name")}
    return context.changed(link, {PREVIOUS: {**kept, "remark": remark}})


def caused(context: Context, job: Prepared, uuid: str, name: str, error: str) -> Prepared:
    """Return a callback with the failed job and its error in the payload.

    If it became too large to push, it gets less of the error, or nothing.
    """
    for words in (error, ""):
        changed = context.changed(job, {CAUSE: {"uuid": uuid, "name": name, "error": words}})
        if len(changed.raw) + (0 if context.signer is None else OVERHEAD) <= context.max_payload:
            return changed
    return job


def extend(context: Context, chain: str, uuid: str, link: Prepared, *, first: bool) -> bool:
    """Add a link at the end of a chain, or right behind the running one, which is `uuid`.

    Returns whether it was added: not if the chain is gone or has continued. Raises
    `InvalidSignature` if the next link is not signed.
    """
    for _ in attempts(f"the chain {chain}"):
        text, behind = context.backend.read(_key(chain), _link_key(chain, uuid))
        head = None if text is None else _head(text)
        if head is None or head["at"] != uuid:
            return False
        head["delays"] += link.delay
        head["added"] = head.get("added", 0) + 1
        kept = head["kept"] + head["delays"]
        place = uuid if first else head["last"]
        plan = Plan()
        plan.add(
            Expect(_key(chain), text),
            stored_jobs(context, _link_key(chain, place), [link], kept, one=True),
        )
        if place == head["last"]:
            head["last"] = link.uuid
        elif behind is not None:
            after = context.kept_jobs(_link_key(chain, uuid), behind)
            plan.add(stored_jobs(context, _link_key(chain, link.uuid), after, kept, one=True))
        plan.add(Set(_key(chain), _json(head), kept))
        if context.apply(plan).applied:
            return True
    return False


# -- its facts ------------------------------------------------------------------------------------


def _forgetting(context: Context, chain: str) -> Iterable[Operation]:
    """Return the operations that remove everything stored of a chain."""
    kept = Store(context.backend).keys(f"{_key(chain)}:")
    return [Unset(_key(chain)), *map(Unset, kept)]


def _head(text: str) -> dict[str, Any] | None:
    """Read where a chain is; None if the text is not valid."""
    try:
        head = from_json(text)
        head.setdefault("kept", KEPT)
        counts = head["delays"], head.get("gone", 0), head.get("added", 0), head["kept"]
        if all(isinstance(head[each], str) for each in ("at", "last")) and min(counts) >= 0:
            found: dict[str, Any] = head
            return found
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def stored_jobs(
    context: Context, key: str, jobs: Sequence[Prepared], ttl: float, *, one: bool = False
) -> Set:
    """Return the fact that stores jobs, or one; signed unless a job is not vouched for."""
    fields = [each.fields() for each in jobs]
    text = _json(fields[0] if one else fields)
    vouched = all(each.vouched for each in jobs)
    return Set(key, context.sealed(key, text) if vouched else text, ttl)


def _key(chain: str) -> str:
    return f"chain:{chain}"


def _link_key(chain: str, uuid: str) -> str:
    return f"chain:{chain}:{uuid}"


def _catch_key(chain: str) -> str:
    return f"chain:{chain}:catch"


def _json(fields: object) -> str:
    return to_json(fields).decode()
