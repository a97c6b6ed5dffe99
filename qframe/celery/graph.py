"""A canvas as a flow of qframe: each task a node, which follows those whose results it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qframe.celery import jobs
from qframe.celery.apps import tasks
from qframe.celery.exceptions import NotSupported
from qframe.celery.result import Applied, AsyncResult, GroupResult
from qframe.dispatch.pending_flow import Flow, Node
from qframe.payload.envelope import new_uuid

_HANDED_DOWN = (
    "queue", "priority", "ignore_result", "expires", "soft_time_limit", "time_limit",
)  # fmt: skip
_ONCE = ("countdown", "eta")


@dataclass
class CanvasPart:
    """A part of a canvas in the flow: its last nodes, what they give, and its result."""

    nodes: list[Node] = field(default_factory=list)
    gives: Any = None
    """References to the results, as the next task gets them."""
    results: list[AsyncResult] = field(default_factory=list)
    result: Any = None


class CanvasFlow:
    """Makes a flow of a canvas."""

    def __init__(self, whole: Any) -> None:
        self.app = whole.app
        self.flow = Flow(_shown(whole))
        self.applied = Applied()

    def dispatch(self, whole: Any) -> Any:
        """Dispatch it. Returns the result of the canvas."""
        part = self._add(whole, None, {})
        if not self.flow.nodes:
            return part.result
        if self.app.connection_name is not None:
            self.flow.on_connection(self.app.connection_name)
        self.applied.id = self.flow.dispatch().id
        if isinstance(part.result, GroupResult):
            part.result.id = self.applied.id
        return part.result

    def _add(self, each: Any, before: CanvasPart | None, given: dict[str, Any]) -> CanvasPart:
        """Add a signature behind a part, with options of the canvas around it."""
        handed = {key: given[key] for key in (*_HANDED_DOWN, *_ONCE) if key in given}
        own = {**handed, **each.options}
        if each.kind == "chain":
            part = self._chain(each, before, own)
        elif each.kind == "group":
            part = self._group(each.tasks, before, own)
        elif each.kind == "chord":
            part = self._chord(each, before, own)
        else:
            part = self._task(each, before, own)
        for link in each.links("link"):
            self._add(link, part, {})
        for errback in each.links("link_error"):
            self._catch(errback)
        return part

    def _task(self, each: Any, before: CanvasPart | None, own: dict[str, Any]) -> CanvasPart:
        args = each.args
        if before is not None and not each.immutable:
            args = (before.gives, *args)
        if (task := tasks.get(each.task)) is not None:
            task.check_arguments(args, each.kwargs)
        identity: str = own["task_id"] if own.get("task_id") else new_uuid()
        told = {**own, "task_id": identity}
        job = jobs.job_of(self.app, each.task, args, each.kwargs, told)
        node = self.flow.add(job, after=[] if before is None else before.nodes, name=each.task)
        result = AsyncResult(
            identity,
            self.app,
            parent=None if before is None else before.result,
            before=[] if before is None else before.results,
            applied=self.applied,
        )
        return CanvasPart([node], node.result, [result], result)

    def _chain(self, each: Any, before: CanvasPart | None, own: dict[str, Any]) -> CanvasPart:
        last, part = len(each.tasks) - 1, before
        if last < 0:
            raise NotSupported("qframe.celery has no empty chain: use at least one task")
        for number, one in enumerate(each.tasks):
            given = {key: own[key] for key in _HANDED_DOWN if key in own}
            if number == 0:
                given |= {key: own[key] for key in _ONCE if key in own}
            if number == last and "task_id" in own:
                one = one.clone(task_id=own["task_id"])  # noqa: PLW2901 (the last one's)
            part = self._add(one, part, given)
        assert part is not None  # noqa: S101 (there is a task)
        return part

    def _group(
        self, each: Sequence[Any], before: CanvasPart | None, own: dict[str, Any]
    ) -> CanvasPart:
        if own.get("task_id"):
            raise NotSupported("qframe.celery has no option task_id of a group: use those of tasks")
        parts = [self._add(one, before, own) for one in each]
        result = GroupResult(
            new_uuid(), [one.result for one in parts], None if before is None else before.result
        )
        if not parts:
            return CanvasPart([] if before is None else before.nodes, [], [], result)
        return CanvasPart(
            [node for one in parts for node in one.nodes],
            [one.gives for one in parts],
            [found for one in parts for found in one.results],
            result,
        )

    def _chord(self, each: Any, before: CanvasPart | None, own: dict[str, Any]) -> CanvasPart:
        given = {key: own[key] for key in (*_HANDED_DOWN, *_ONCE) if key in own}
        header = self._add(each.tasks, before, given)
        body = each.body
        if "task_id" in own:
            body = body.clone(task_id=own["task_id"])
        return self._add(body, header, {key: own[key] for key in _HANDED_DOWN if key in own})

    def _catch(self, errback: Any) -> None:
        if errback.kind is not None:
            raise NotSupported("qframe.celery has no canvas as link_error: use one task")
        job = jobs.job_of(
            self.app,
            errback.task,
            errback.args,
            errback.kwargs,
            errback.options,
            errback=not errback.immutable,
        )
        self.flow.catch(job)


def _shown(whole: Any) -> str:
    """Return what the flow is called."""
    if whole.kind is None:
        return str(whole.task)
    return f"{whole.kind} of {len([*whole.leaves()])} tasks"
