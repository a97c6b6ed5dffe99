"""Flow: a graph of jobs that get each other's results, before its dispatch."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar, overload

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.identity import R_co
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import lost, sender
from qframe.dispatch.after_commit import joined_or_committed
from qframe.dispatch.calls import Call, CallPause
from qframe.dispatch.chain import (
    Pending,
    PendingChain,
    callbacks,
    dispatchable,
    own_job,
)
from qframe.dispatch.flow import FlowRun
from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.pending_batch import PendingBatch
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidFlow
from qframe.features.chain import ChainPlan
from qframe.features.context import Prepared
from qframe.features.flow import BLOCK, CANCEL, CONTINUE, Edges, NodePlace
from qframe.features.flows import FlowPlan, NodePlan
from qframe.hooks import OpenTransaction
from qframe.jobs import fits, references
from qframe.jobs.definition import JobDefinition, made
from qframe.jobs.execution import refuse_on_loop
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.options import seconds
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.jobs.references import Reference
from qframe.jobs.tracing import sending
from qframe.jobs.typed import Handles
from qframe.payload.text import one_line, queue_name

OnFailure = Literal["block", "continue", "cancel"]
"""What the final failure of a node does to those behind it."""

R = TypeVar("R")

_LONGEST_NAME = 200
_MOST = 100_000


class Node(Generic[R_co]):
    """A node of a flow before its dispatch; `result` stands for what its job returns."""

    def __init__(self, flow: Flow, number: int, label: str, on_failure: str) -> None:
        self.flow = flow
        self.number = number
        """From 0, in the order in which nodes were added."""
        self.label = label
        self.on_failure = on_failure
        self.before: set[Node] = set()
        """The nodes that it follows."""

    @property
    def result(self) -> R_co:
        """The result of its job, as a field of a later job of the flow, which follows it.

        To a type checker it is what the job returns; until the flow runs it only stands for that.
        It may be in a list or a dict. Of a chain it is that of the last link, of a map the list of
        its jobs' results; a batch has none. If the node is skipped, cancelled, or fails and its
        `on_failure` is "continue", the later job gets None.
        """
        stands_for: Any = Reference(self)
        result: R_co = stands_for
        return result

    def after(self, *nodes: Node) -> Self:
        """Let it follow these nodes. Raises `InvalidFlow` for anything else."""
        for node in nodes:
            if not isinstance(node, Node):
                raise InvalidFlow(f"after takes nodes of the flow, not {type(node).__name__}")
            if node.flow is not self.flow:
                raise InvalidFlow(f"{self.label} follows {node.label}, which is of another flow")
            self.before.add(node)
        return self

    def __repr__(self) -> str:
        return f"<node {self.number} of {self.flow.label or 'a flow'}: {self.label}>"

    # -- its jobs ---------------------------------------------------------------------------------

    @property
    def returns(self) -> Any:  # noqa: ANN401 (any annotation)
        """The annotation of what its job returns. Raises `InvalidFlow` for a batch."""
        raise NotImplementedError

    def plan(self, connection: Connection, queue: str | None, identity: str) -> ChainPlan:
        """Build the payloads of its jobs."""
        raise NotImplementedError


class _JobsNode(Node):
    """A node of a job or a chain; a batch is a chain of one link."""

    def __init__(
        self,
        flow: Flow,
        number: int,
        label: str,
        on_failure: str,
        jobs: JobDefinition | PendingChain,
    ) -> None:
        super().__init__(flow, number, label, on_failure)
        self._jobs = jobs
        for job in jobs.jobs if isinstance(jobs, PendingChain) else [jobs]:
            if isinstance(job, JobDefinition):
                _refer(self, job)

    @property
    def returns(self) -> Any:  # noqa: ANN401 (any annotation)
        jobs = self._jobs
        last = jobs.jobs[-1] if isinstance(jobs, PendingChain) else jobs
        if isinstance(last, Pending):
            raise InvalidFlow(f"{self.label} is a batch, which has no result")
        return fits.returns_of(references.class_of(last))

    def plan(self, connection: Connection, queue: str | None, identity: str) -> ChainPlan:
        keys, jobs = NodePlace(identity, self.number).keys(), self._jobs
        if isinstance(jobs, PendingChain):
            return jobs.plan(connection, queue, keys)
        job = own_job(jobs, connection, "a flow")
        prepared = connection.prepare(job, job.queue or queue, seconds(job.delay), keys)
        return ChainPlan("", [job], [prepared])


class _MapNode(Node):
    """A node of a job for each item of a list."""

    def __init__(
        self,
        flow: Flow,
        number: int,
        label: str,
        on_failure: str,
        job: JobDefinition,
        over: object,
        into: Sequence[str],
    ) -> None:
        super().__init__(flow, number, label, on_failure)
        self.mapped = job
        self._over = over
        self._into = into
        """The fields that get an item: the item itself if it is one."""
        _refer(self, job, apart=into)
        self.after(*(each.node for each in references.references_in(over)))
        self._check(references.class_of(job))

    def _check(self, job_class: type[JobDefinition]) -> None:
        for reference in references.references_in(self._over):
            wrong = fits.misfit(reference.node.returns, list) if reference is self._over else ""
            if wrong:
                raise InvalidFlow(f"{self.label} maps over {reference.node.label}: {wrong}")
        if isinstance(self._over, Reference) and len(self._into) == 1:
            returns = fits.items_of(self._over.node.returns)
            wrong = fits.misfit(returns, fits.field_type(job_class, self._into[0]))
            if wrong:
                raise InvalidFlow(f"{self.label}.{self._into[0]}: {wrong}")

    @property
    def returns(self) -> Any:  # noqa: ANN401 (any annotation)
        return list[fits.returns_of(references.class_of(self.mapped))]  # type: ignore[misc] # made at run time

    def plan(self, connection: Connection, queue: str | None, identity: str) -> ChainPlan:
        with forks.undisturbed():
            from qframe.features.flow_jobs import (  # noqa: PLC0415 (its jobs would cost every program time)
                EndFlowMap,
                ExpandFlowMap,
                sealed_value,
            )

        job = own_job(self.mapped, connection, "a flow")
        place = NodePlace(identity, self.number)
        template = connection.prepare(job, job.queue or queue, seconds(job.delay), place.keys())
        end = connection.prepare(EndFlowMap(of=identity, node=self.number), queue, 0, {})
        over = references.template_of(self._over, self.label)
        if job.encrypted:
            over = references.sealed(
                over, partial(sealed_value, connection.context, _name(template))
            )
        expand = ExpandFlowMap(
            of=identity,
            node=self.number,
            over=over,
            into=self._into[0] if len(self._into) == 1 else "",
            template=template.fields(),
            end_job=end.fields(),
        )
        prepared = connection.prepare(expand, queue, 0, place._replace(expands=True).keys())
        return ChainPlan("", [expand], [prepared])


class Flow(Pending):
    """Jobs in a graph: each runs when those before it are done, and may get their results.

    ```python
    flow = Flow("order 7")
    price, stock = flow.add(Price(order=7)), flow.add(Stock(order=7))
    flow.add(Invoice(price=price.result, stock=stock.result))
    flow.catch(Undo(order=7)).dispatch()
    ```
    """

    def __init__(self, name: str = "") -> None:
        if not isinstance(name, str):
            raise InvalidFlow(f"the name of a flow is a text, not {type(name).__name__}")
        references.allow()
        self.label = one_line(name, _LONGEST_NAME)
        self.nodes: list[Node] = []
        self.jobs: list[Any] = []
        self._callbacks: list[Dispatchable] = []

    # -- building ---------------------------------------------------------------------------------

    @overload
    def add(
        self,
        jobs: Handles[R],
        *,
        after: Iterable[Node] = (),
        on_failure: Literal["block", "cancel"] = ...,
        name: str = "",
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        jobs: Handles[R],
        *,
        after: Iterable[Node] = (),
        on_failure: Literal["continue"],
        name: str = "",
    ) -> Node[R | None]: ...

    @overload
    def add(
        self,
        jobs: PendingChain | PendingBatch | Sequence[JobDefinition],
        *,
        after: Iterable[Node] = (),
        on_failure: OnFailure = ...,
        name: str = "",
    ) -> Node[Any]: ...

    def add(
        self,
        jobs: Any,
        *,
        after: Iterable[Node] = (),
        on_failure: str = BLOCK,
        name: str = "",
    ) -> Node[Any]:
        """Add a job, a chain or a batch. Returns its node.

        It runs when the nodes of `after` are done, and those whose results it gets. `on_failure`
        says what its final failure does to the nodes behind it: "block" lets them wait for a
        retry, "continue" runs them all the same, "cancel" cancels them. `name` is shown to people;
        default: that of the job. Raises `InvalidFlow` or `InvalidJob`.
        """
        if isinstance(jobs, PendingBatch):
            single: JobDefinition | PendingChain = PendingChain([jobs])
            label = jobs.label or "a batch"
        elif isinstance(jobs, PendingChain):
            single, label = jobs, "a chain"
        elif isinstance(jobs, list | tuple):
            single, label = PendingChain(jobs), "a chain"
        else:
            given: object = jobs
            if not isinstance(given, JobDefinition):
                shown = given.__name__ if isinstance(given, type) else type(given).__name__
                raise InvalidFlow(f"a flow takes jobs, chains and batches, not {shown}")
            single, label = given, type(given).__name__
        number, label = len(self.nodes), self._checked(name or label, on_failure)
        return self._added(_JobsNode(self, number, label, on_failure, single), after, [jobs])

    @overload
    def map(
        self,
        job: QueueableFunction[..., Any, R],
        *,
        over: Iterable[Any],
        after: Iterable[Node] = (),
        on_failure: Literal["block", "cancel"] = ...,
        name: str = "",
        **fields: Any,  # noqa: ANN401 (the fields)
    ) -> Node[list[R]]: ...

    @overload
    def map(
        self,
        job: QueueableFunction[..., Any, R],
        *,
        over: Iterable[Any],
        after: Iterable[Node] = (),
        on_failure: Literal["continue"],
        name: str = "",
        **fields: Any,  # noqa: ANN401 (the fields)
    ) -> Node[list[R | None]]: ...

    @overload
    def map(
        self,
        job: Callable[..., Handles[R]],
        *,
        over: Iterable[Any],
        after: Iterable[Node] = (),
        on_failure: Literal["block", "cancel"] = ...,
        name: str = "",
        **fields: Any,  # noqa: ANN401 (the fields)
    ) -> Node[list[R]]: ...

    @overload
    def map(
        self,
        job: Callable[..., Handles[R]],
        *,
        over: Iterable[Any],
        after: Iterable[Node] = (),
        on_failure: Literal["continue"],
        name: str = "",
        **fields: Any,  # noqa: ANN401 (the fields)
    ) -> Node[list[R | None]]: ...

    def map(
        self,
        job: Any,
        *,
        over: Any,
        after: Iterable[Node] = (),
        on_failure: str = BLOCK,
        name: str = "",
        **fields: Any,
    ) -> Node[Any]:
        """Add a job for each item of a list, known when the flow runs. Returns the node of all.

        `over` is the `result` of a node, or a list with results in it; `fields` are the same for
        all jobs. The item becomes the one required field that is not given, or, if there are
        several, is a mapping of them. The node is done when all its jobs are. Raises `InvalidFlow`
        or `InvalidJob`.
        """
        job_class: Any = job.job_class if isinstance(job, QueueableFunction) else job
        if not (isinstance(job_class, type) and issubclass(job_class, JobDefinition)):
            raise InvalidFlow(f"map takes a job class or function, not {type(job).__name__}")
        if not references.is_reference(over):
            raise InvalidFlow("map goes over the result of a node: over=node.result")
        number, label = len(self.nodes), self._checked(name or job_class.__name__, on_failure)
        into = references.missing_fields(job_class, fields)
        if not into:
            raise InvalidFlow(f"{job_class.__name__} has no field left for the item of the list")
        item = Reference(Node(self, number, label, on_failure))
        template = made(job_class, **fields, **dict.fromkeys(into, item))
        node = _MapNode(self, number, label, on_failure, template, over, into)
        return self._added(node, after, [template])

    def catch(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs at the first final failure, unless its node's is "continue".

        `self.caught` in them tells why.
        """
        self._callbacks += [dispatchable(job, "catch") for job in jobs]
        return self

    def _checked(self, label: str, on_failure: str) -> str:
        if on_failure not in {BLOCK, CONTINUE, CANCEL}:
            shown = one_line(repr(on_failure), 40)
            raise InvalidFlow(f'on_failure is "block", "continue" or "cancel", not {shown}')
        if len(self.nodes) >= _MOST:
            raise InvalidFlow(f"a flow has at most {_MOST:,} nodes")
        return one_line(label, _LONGEST_NAME)

    def _added(self, node: Node, after: Iterable[Node], jobs: Sequence[Any]) -> Node:
        node.after(*([after] if isinstance(after, Node) else after))
        self.nodes.append(node)
        self.jobs += jobs
        return node

    def _check(self) -> None:
        """Raise `InvalidFlow` for a flow that could not run to its end."""
        if not self.nodes:
            raise InvalidFlow("a flow needs a job: flow.add(Work(...))")
        left = {node: len(node.before) for node in self.nodes}
        behind: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for each in node.before:
                behind[each].append(node)
        ready = [node for node, count in left.items() if not count]
        while ready:
            node = ready.pop()
            del left[node]
            for follower in behind[node]:
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        if left:
            names = ", ".join(sorted(node.label for node in left)[:5])
            raise InvalidFlow(f"these nodes wait for each other: {names}")

    # -- dispatching ------------------------------------------------------------------------------

    def dispatch(self) -> FlowRun:
        """Dispatch the flow. Returns it as it has begun.

        All its jobs are built before anything is pushed. Raises `InvalidFlow`, `InvalidJob` or
        `BackendUnavailable`; then nothing runs. Raises `SynchronousOnly` on a running event loop:
        await the flow itself there, or `adispatch`.
        """
        refuse_on_loop("dispatch() of a flow", "adispatch()")
        connection = self._chosen(self.jobs)
        return self._dispatch_joined(connection) or self._dispatch_here(connection)

    async def adispatch(self) -> FlowRun:
        """As `dispatch`, without blocking the event loop.

        Once begun it completes even if the awaiting task is cancelled; an error is then reported
        like that of a dropped dispatch.
        """
        connection = self._chosen(self.jobs)
        if (done := self._dispatch_joined(connection)) is not None:
            return done
        return await sender.done(
            lambda: self._dispatch_here(connection),
            lambda: self._dispatching(connection),
            [connection],
            lambda error: self._report(connection, error),
            is_long=True,
        )

    def __await__(self) -> Generator[Any, Any, FlowRun]:
        """Dispatch the flow without blocking the event loop."""
        return self.adispatch().__await__()

    def _report(self, connection: Connection, error: BaseException) -> None:
        what = f"the flow {self.label}" if self.label else "a flow"
        lost.report(what, [Unpushed.unbuilt(connection, self, self._queue)], error)

    def _dispatch_joined(self, connection: Connection) -> FlowRun | None:
        """Dispatch it in the open transaction or at its commit; None if there is none."""
        committed = partial(self._dispatch_committed, connection)
        return joined_or_committed(connection, self.within, committed)

    def _dispatch_here(self, connection: Connection) -> FlowRun:
        return self._started(connection, connection, self._planned(connection))

    def _dispatch_committed(self, connection: Connection, opened: OpenTransaction) -> FlowRun:
        """Build it now and push it at the commit. The returned flow has its id already."""
        plan = self._planned(connection)

        def push() -> None:
            try:
                connection.start_flow(plan)
            except Exception as error:  # noqa: BLE001 (after the commit nobody can handle it)
                self._report(connection, error)

        opened.on_commit(push)
        return FlowRun(connection, plan.id, None)

    def _dispatching(self, connection: Connection) -> Call[FlowRun]:
        plan = self._planned(connection)
        with sending(connection, many=True):
            for _ in connection.starting_flow(plan):
                yield CallPause(0)
        return FlowRun(connection, plan.id, None)

    @overload
    def within(self, transaction: AsyncTransaction) -> Awaitable[FlowRun]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def within(self, transaction: object) -> FlowRun: ...

    def within(self, transaction: object) -> FlowRun | Awaitable[FlowRun]:
        """Dispatch the flow in a transaction of the program. Returns what `dispatch` returns.

        See `PendingDispatch.within`; with an asynchronous transaction, await the result.
        """
        connection = self._chosen(self.jobs)
        plan = self._planned(connection)

        def start(inside: object) -> FlowRun:
            return self._started(connection, joined(connection, inside), plan)

        return run_in(transaction, start) if is_async(transaction) else start(transaction)

    def _started(self, connection: Connection, through: Connection, plan: FlowPlan) -> FlowRun:
        with sending(connection, many=True):
            through.start_flow(plan)
        return FlowRun(connection, plan.id, None)

    def _planned(self, connection: Connection) -> FlowPlan:
        self._check()
        with forks.undisturbed(), sending(connection, many=True):
            return self._plan(connection, str(uuid.uuid4()))

    def _plan(self, connection: Connection, identity: str) -> FlowPlan:
        from qframe.features.flow_jobs import (  # noqa: PLC0415 (its jobs would cost every program time)
            FollowFlowNode,
            JoinFlowNode,
            RunFlowCallbacks,
        )

        queue = self._queue
        to: dict[int, list[tuple[int, int]]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            befores = sorted(each.number for each in node.before)
            for slot, number in enumerate(befores):
                to[number].append((node.number, slot if len(befores) > 1 else -1))
        planned: list[NodePlan] = []
        for node in self.nodes:
            jobs = node.plan(connection, queue, identity)
            after = sorted(each.number for each in node.before)
            is_map = isinstance(node, _MapNode)
            uuid_ = "" if is_map else jobs.links[0].uuid
            edges = Edges(
                node.label, uuid_, node.on_failure, after, to[node.number], is_map, jobs.batches()
            )
            join = None
            if len(after) > 1:
                job = JoinFlowNode(of=identity, node=node.number)
                join = connection.prepare(job, queue, 0, {})
            mapped = node.mapped if isinstance(node, _MapNode) else None
            planned.append(NodePlan(edges, jobs, join, mapped))
        return FlowPlan(
            id=identity,
            name=self.label,
            queue=queue or queue_name(connection.default_queue),
            nodes=planned,
            catch=callbacks(connection, self._callbacks, queue, {}),
            callbacks=connection.prepare(RunFlowCallbacks(of=identity), queue, 0, {}),
            follow=connection.prepare(FollowFlowNode(of=identity, node=-1), queue, 0, {}),
        )


def _name(prepared: Prepared) -> str:
    assert prepared.message is not None  # noqa: S101 (just built)
    return str(prepared.message["job"])


def _refer(node: Node, job: JobDefinition, apart: Sequence[str] = ()) -> None:
    """Let a node follow those whose results its job gets, and put the templates into its payload.

    Raises `InvalidFlow` if a result cannot fit its field.
    """
    given = references.references_of(job)
    if not given:
        return
    job_class, templates = references.class_of(job), {}
    for field, value in given.items():
        if field in apart:
            continue
        what = f"{job_class.__name__}.{field}"
        for reference in references.references_in(value):
            node.after(reference.node)
        if isinstance(value, Reference):
            wanted = fits.field_type(job_class, field)
            wrong = fits.misfit(value.node.returns, wanted)
            if wrong:
                raise InvalidFlow(f"{what} gets the result of {value.node.label}: {wrong}")
            if value.node.on_failure == CONTINUE and not fits.accepts_none(wanted):
                raise InvalidFlow(
                    f"{what} gets None if {value.node.label} fails, whose on_failure is "
                    f'"continue": let the field take None'
                )
        templates[field] = references.template_of(value, what)
    object.__setattr__(job, "besides", {**(job.besides or {}), REFERENCES: templates})
