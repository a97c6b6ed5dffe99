"""The internal jobs of flows: what goes on where the end step of a node cannot."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic_core import to_json

from qframe.contracts.step import Close, Expect, Extend, Open, Push, Set
from qframe.exceptions import (
    BackendUnavailable,
    CannotDecrypt,
    ConfigurationError,
    InvalidArguments,
    InvalidJob,
    InvalidPayload,
    InvalidSignature,
    ResultMissing,
)
from qframe.features import chain, flow
from qframe.features.base import Plan
from qframe.features.context import Context, Prepared
from qframe.features.flow import AT_ONCE, KEPT, NodePlace
from qframe.features.flows import FlowStore
from qframe.features.reserved import running_job
from qframe.jobs.definition import JobDefinition
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.payload import encryption, envelope
from qframe.payload.signature import is_signed
from qframe.payload.text import one_line

_LASTING = (
    InvalidSignature,
    InvalidPayload,
    InvalidJob,
    CannotDecrypt,
    ConfigurationError,
    ResultMissing,
)
"""Errors that another attempt would meet again."""
_DIGITS = 12


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
        except _LASTING as error:
            self.fail(error)

    def _flows(self) -> FlowStore:
        return FlowStore(*running_job(self))


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
        vouched = is_signed(self.job.raw_body)
        template = Prepared.of(self.template, vouched=vouched)
        message = envelope.parse(template.raw)
        given = flow.value_of(context, self.of, self.over, str(message.get("job")))
        items, template = given.value, template._replace(vouched=vouched and given.vouched)
        if not isinstance(items, list):
            self.fail(InvalidArguments(f"map() takes a list, not {type(items).__name__}"))
            return
        encrypt = given.was_encrypted or encryption.is_encrypted(message)
        self._begin(flows, key, len(items), Prepared.of(self.end_job, vouched=vouched))

        def next_portion(plan: Plan) -> bool:
            text, first = self._pushed(context, key, len(items))
            some = items[first : first + AT_ONCE]
            written = context.sealed(key, str(first + len(some)))
            plan.add(Expect(key, text), Set(key, written, KEPT))
            for number, item in enumerate(some, first):
                job = self._job_of(context, template, message, number, item, encrypt=encrypt)
                if chain.plan_prepared(context, job, plan):
                    place = NodePlace(self.of, self.node, number)
                    flow.plan_passed_over(context, place, job.uuid, plan)
            return bool(some)

        while flows.repeated(self.of, next_portion):
            pass
        flows.apply(Plan(None, Close(key)))

    def _begin(self, flows: FlowStore, key: str, size: int, end_job: Prepared) -> None:
        """Make the latch that counts the jobs, unless a run before has made it."""
        context = flows.context
        if context.backend.read(key) == [None]:
            then = context.pushing(end_job)
            flows.apply(Plan(None, Open(key, Push(then.queue, then.raw), ttl=KEPT)))
            plan = Plan(None, Expect(key, None), Set(key, context.sealed(key, "0"), KEPT))
            if size:
                plan.add(Extend(key, size))
            flows.apply(plan)

    def _pushed(self, context: Context, key: str, size: int) -> tuple[str, int]:
        """Return what is kept of the map, and so how many of its jobs were pushed."""
        (text,) = context.backend.read(key)
        if text is None:
            raise BackendUnavailable(f"the map {self.node} of the flow {self.of} is gone again")
        count = context.opened(key, text).text
        if not (
            count.isascii() and count.isdigit() and len(count) < _DIGITS and int(count) <= size
        ):
            raise InvalidPayload(f"what is kept as {key} is no count: {one_line(count, 40)}")
        return text, int(count)

    def _job_of(
        self,
        context: Context,
        template: Prepared,
        message: dict[str, Any],
        number: int,
        item: Any,  # noqa: ANN401 (any JSON value)
        *,
        encrypt: bool,
    ) -> Prepared:
        identity = str(uuids.uuid5(uuids.NAMESPACE_OID, f"{self.of}:{self.node}:{number}"))
        fields = {self.into: item} if self.into or not isinstance(item, dict) else item
        name = str(message.get("job"))
        if encrypt:
            given = {key: ["e", sealed_value(context, name, each)] for key, each in fields.items()}
        else:
            given = {key: ["v", value] for key, value in fields.items()}
        more = {
            **NodePlace(self.of, self.node, number).keys(),
            REFERENCES: {**message.get(REFERENCES, {}), **given},
        }
        own = {**message, "uuid": identity, "id": identity}
        envelope.add(own, more)
        return template._replace(uuid=identity, raw=envelope.encode(own), message=own)


def sealed_value(context: Context, name: str, value: Any) -> dict[str, str]:  # noqa: ANN401 (any JSON value)
    return context.keyring.sealed(name, b'{"job":%s,"data":%s}' % (to_json(name), to_json(value)))
