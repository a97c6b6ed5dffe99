"""The internal jobs of flows: what goes on where the end step of a node cannot."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from pydantic_core import to_json

from qframe.contracts.step import Close, Expect, Extend, Open, Push, Set
from qframe.exceptions import (
    BackendUnavailable,
    CannotDecrypt,
    InvalidArguments,
    InvalidPayload,
    InvalidSignature,
    ResultMissing,
)
from qframe.features import chain, flow
from qframe.features.base import Plan
from qframe.features.context import Context, Prepared
from qframe.features.flow import AT_ONCE, KEPT, NodePlace
from qframe.features.flows import FlowStore
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.payload import encryption, envelope
from qframe.payload.signature import is_signed


class FlowJob(JobDefinition):
    """Base of these jobs: repeated until they succeed, and harmless when repeated."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)

    of: str
    """The id of the flow."""

    def _go_on(self, act: Callable[[FlowStore], None]) -> None:
        """Do it; the job fails at once if what is kept of the flow is refused."""
        try:
            act(self._flows())
        except (InvalidSignature, InvalidPayload, CannotDecrypt, ResultMissing) as error:
            self.fail(error)

    def _flows(self) -> FlowStore:
        running: Any = self.job
        is_own = isinstance(running, ReservedJob)
        context: Context = running.context if is_own else running._job.context  # noqa: SLF001 (in a process of its own, which settles nothing)
        return FlowStore(context, running if is_own else None)


class FollowFlowNode(FlowJob):
    """Goes on after a node with many behind it, or cancels these."""

    display_name: ClassVar[Any] = "flow: goes on"

    node: int

    def handle(self) -> None:
        """Push, or cancel, in portions."""
        self._go_on(lambda flows: flows.follow(self.of, self.node))


class JoinFlowNode(FlowJob):
    """Pushes a node when all before it have ended."""

    display_name: ClassVar[Any] = "flow: joins"

    node: int

    def handle(self) -> None:
        """Push it, unless it was pushed before."""
        self._go_on(lambda flows: flows.join(self.of, self.node))


class EndFlowMap(FlowJob):
    """Ends a map when its jobs have ended."""

    display_name: ClassVar[Any] = "flow: ends a map"

    node: int

    def handle(self) -> None:
        """End it as done, or as failed with its first failed job."""
        self._go_on(lambda flows: flows.end_map(self.of, self.node))


class RunFlowCallbacks(FlowJob):
    """Pushes what follows a failure, and notes the end of the flow."""

    display_name: ClassVar[Any] = "flow: what follows"

    def handle(self) -> None:
        """Do what is due, once each."""
        self._go_on(lambda flows: flows.callbacks(self.of, self.job.queue))


class ExpandFlowMap(FlowJob):
    """Pushes a job for each item of a list, in portions; it is the job of a map's node.

    If it dies, another run goes on where it stopped.
    """

    display_name: ClassVar[Any] = "flow: begins a map"

    node: int
    over: list[Any]
    """The template of the list."""
    into: str
    """The field that gets the item; "": items are mappings of fields."""
    template: dict[str, Any]
    """The job without its item, as `Prepared.fields` has it."""
    end_job: dict[str, Any]

    def handle(self) -> None:
        """Push the jobs."""
        self._go_on(self._expand)

    def _expand(self, flows: FlowStore) -> None:
        context, key = flows.context, flow.map_key(self.of, self.node)
        items = flow.value_of(context, self.of, self.over)
        if not isinstance(items, list):
            self.fail(InvalidArguments(f"map() takes a list, not {type(items).__name__}"))
            return
        vouched = is_signed(self.job.raw_body)
        template = Prepared.of(self.template, vouched=vouched)
        begun = self._begin(flows, key, len(items), Prepared.of(self.end_job, vouched=vouched))
        message = envelope.parse(template.raw)
        for first, jobs in self._portions(context, template, message, items, begun):
            plan = Plan()
            plan.add(Expect(key, str(first)), Set(key, str(first + len(jobs)), KEPT))
            for job in jobs:
                if chain.plan_prepared(context, job, plan):
                    place = NodePlace.of(job.message or {})
                    assert place is not None  # noqa: S101 (written below)
                    flow.plan_passed_over(context, place, job.uuid, plan)
            flows.apply(plan)  # refused if another run has pushed them
        flows.apply(Plan(None, Close(key)))

    def _begin(self, flows: FlowStore, key: str, size: int, end_job: Prepared) -> int:
        """Make the latch that counts the jobs. Returns how many were pushed before."""
        backend = flows.context.backend
        (text,) = backend.read(key)
        if text is None:
            then = flows.context.pushing(end_job)
            flows.apply(Plan(None, Open(key, Push(then.queue, then.raw), ttl=KEPT)))
            plan = Plan(None, Expect(key, None), Set(key, "0", KEPT))
            if size:
                plan.add(Extend(key, size))
            flows.apply(plan)
            (text,) = backend.read(key)
        if text is None:
            raise BackendUnavailable(f"the map {self.node} of the flow {self.of} is gone again")
        return int(text)

    def _portions(
        self,
        context: Context,
        template: Prepared,
        message: dict[str, Any],
        items: Sequence[Any],
        begin: int,
    ) -> Iterator[tuple[int, list[Prepared]]]:
        for first in range(begin, len(items), AT_ONCE):
            some = items[first : first + AT_ONCE]
            yield (
                first,
                [
                    self._job_of(context, template, message, number, item)
                    for number, item in enumerate(some, first)
                ],
            )

    def _job_of(
        self,
        context: Context,
        template: Prepared,
        message: dict[str, Any],
        number: int,
        item: Any,  # noqa: ANN401 (any JSON value)
    ) -> Prepared:
        identity = str(uuids.uuid5(uuids.NAMESPACE_OID, f"{self.of}:{self.node}:{number}"))
        fields = {self.into: item} if self.into or not isinstance(item, dict) else item
        name = str(message.get("job"))
        if encryption.is_encrypted(message):
            sealed = {key: ["e", _sealed(context, name, value)] for key, value in fields.items()}
        else:
            sealed = {key: ["v", value] for key, value in fields.items()}
        more = {
            **NodePlace(self.of, self.node, number).keys(),
            REFERENCES: {**message.get(REFERENCES, {}), **sealed},
        }
        own = {**message, "uuid": identity, "id": identity}
        envelope.add(own, more)
        return template._replace(uuid=identity, raw=envelope.encode(own), message=own)


def _sealed(context: Context, name: str, value: Any) -> dict[str, str]:  # noqa: ANN401 (any JSON value)
    return context.keyring.sealed(name, b'{"job":%s,"data":%s}' % (to_json(name), to_json(value)))
