"""The canvas: signatures of tasks, and chains, groups and chords of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, NoReturn

from qframe.celery import jobs, missing, options
from qframe.celery.apps import apps, tasks
from qframe.celery.exceptions import NotSupported
from qframe.celery.result import AsyncResult, EagerResult, GroupResult
from qframe.celery.states import IGNORED
from qframe.payload.envelope import new_uuid

_CHAIN, _GROUP, _CHORD = "celery.chain", "celery.group", "celery.chord"
_INSTEAD = {
    "freeze": "apply_async(), whose result has the id",
    "replace": "a chain, or a dispatch of the other task",
    "skew": "countdown of each signature",
    "stamp": "tags of a Queueable",
    "stamp_links": "tags of a Queueable",
    "reprcall": "repr()",
    "unlink_error": "a signature without link_error",
}


class Signature(dict[str, Any]):
    """One call of a task, to be dispatched alone or in a canvas; a dict, so it may be JSON."""

    kind: ClassVar[str | None] = None

    def __init__(
        self,
        task: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        immutable: bool = False,
        **given: Any,
    ) -> None:
        if isinstance(task, Mapping):
            super().__init__(task)
            self["args"] = tuple(self.get("args") or ())
            return
        own = {**(options or {}), **given}
        immutable = bool(own.pop("immutable", immutable))
        name = task if isinstance(task, str) else task.name
        super().__init__(
            task=name,
            args=tuple(args or ()),
            kwargs=dict(kwargs or {}),
            options=own,
            subtask_type=self.kind,
            immutable=immutable,
        )
        self._check(own)

    def _check(self, given: Mapping[str, Any]) -> None:
        options.check_call(self.task, given)

    # -- its parts --------------------------------------------------------------------------------

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self["task"])

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task

    @property
    def args(self) -> tuple[Any, ...]:
        """Its arguments."""
        return tuple(self["args"])

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its keyword arguments."""
        found: dict[str, Any] = self["kwargs"]
        return found

    @property
    def options(self) -> dict[str, Any]:
        """The options of its dispatch."""
        found: dict[str, Any] = self["options"]
        return found

    @property
    def immutable(self) -> bool:
        """Whether it does not take the result before it."""
        return bool(self["immutable"])

    @property
    def type(self) -> Any:
        """The task. Raises `NotRegistered`."""
        return tasks[self.task]

    @property
    def app(self) -> Any:
        """The app of its task."""
        task = tasks.get(self.task)
        return apps.current() if task is None else task.app

    # -- changing ---------------------------------------------------------------------------------

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Return a copy, with these arguments before its own, and these options over its own."""
        made = deepcopy(self)
        if not self.immutable:
            made["args"] = (*(args or ()), *self.args)
            made["kwargs"] = {**self.kwargs, **(kwargs or {})}
        return made._with(given)  # noqa: SLF001 (its own)

    partial = clone

    def set(self, immutable: bool | None = None, **given: Any) -> Any:
        """Set options. Returns itself."""
        if immutable is not None:
            self["immutable"] = immutable
        return self._with(given)

    def _with(self, given: Mapping[str, Any]) -> Any:
        """Set options, checked. Returns itself."""
        self._check(given)
        self.options.update(given)
        return self

    def set_immutable(self, immutable: bool) -> None:
        """Say whether it takes the result before it."""
        self["immutable"] = immutable

    def link(self, callback: Signature) -> Signature:
        """Have another task called with the result. Returns that one."""
        self.options["link"] = [*listed(self.options.get("link")), callback]
        return callback

    def link_error(self, errback: Signature) -> Signature:
        """Have another task called once, at the first failure. Returns that one."""
        self.options["link_error"] = [*listed(self.options.get("link_error")), errback]
        return errback

    def on_error(self, errback: Signature) -> Any:
        """As `link_error`. Returns itself."""
        self.link_error(errback)
        return self

    def links(self, key: str) -> list[Any]:
        """Return the callbacks under `link`, or those under `link_error`."""
        return listed(self.options.get(key))

    def flatten_links(self) -> list[Any]:
        """Return itself and all its callbacks."""
        links = [each.flatten_links() for each in listed(self.options.get("link"))]
        return [self, *(each for found in links for each in found)]

    # -- calling ----------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now."""
        whole = self.clone(args, kwargs)
        return self.type(*whole.args, **whole.kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch it with these arguments before its own."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Dispatch it, with these arguments before its own and these options over its own."""
        return self.clone(args, kwargs)._send(given)  # noqa: SLF001 (its own)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Run it here and now."""
        whole = self.clone(args, kwargs)
        both = {**whole.options, **given}
        return self.type.apply(whole.args, whole.kwargs, **both)

    def _send(self, given: Mapping[str, Any]) -> Any:
        """Dispatch it as it is, with these options over its own."""
        self._check(given)
        whole = {**self.options, **{key: each for key, each in given.items() if each is not None}}
        task, app = tasks.get(self.task), self.app
        if task is not None:
            task.check_arguments(self.args, self.kwargs)
        if app.conf.task_always_eager and task is not None:
            return task.apply(self.args, self.kwargs, **whole)
        if whole.get("link") or whole.get("link_error"):
            return _through_flow(self.clone(**given))
        job = jobs.job_of(app, self.task, self.args, self.kwargs, whole)
        return AsyncResult(jobs.post(job, self.task), app)

    def __or__(self, other: object) -> Any:
        return _joined(self, other)

    def __ror__(self, other: object) -> Any:
        return _joined(other, self)

    def __invert__(self) -> Any:
        return self.apply_async().get()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = dict.__new__(type(self))
        dict.update(made, {key: _copied(value, memo) for key, value in self.items()})
        return made

    def __copy__(self) -> Any:
        return self.__deepcopy__({})

    def __getattr__(self, name: str) -> NoReturn:
        raise missing.of_object(type(self).__name__, name, _INSTEAD)

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={each!r}" for key, each in self.kwargs.items())]
        return f"{self.task}({', '.join(given)})"


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Signature):
        return value.__deepcopy__(memo)
    if isinstance(value, list):
        return [_copied(each, memo) for each in value]
    if isinstance(value, dict):
        return {key: _copied(each, memo) for key, each in value.items()}
    return value


class Canvas(Signature):
    """Several signatures as one."""

    @property
    def app(self) -> Any:
        """The app of its first task."""
        return next((each.app for each in self.leaves()), apps.current())

    @property
    def tasks(self) -> Any:
        """Its signatures: a list; the group of a chord."""
        return self["kwargs"]["tasks"]

    def leaves(self) -> Iterator[Signature]:
        """Iterate over the signatures of single tasks in it."""
        for each in self.tasks:
            yield from each.leaves() if isinstance(each, Canvas) else [each]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch it."""
        return self.apply_async(args, kwargs)

    def _send(self, given: Mapping[str, Any]) -> Any:
        self._check(given)
        leaves = [*self.leaves()]
        if leaves and all(each.app.conf.task_always_eager for each in leaves):
            return self.apply(**given)
        return _through_flow(self.clone(**given))


class chain(Canvas):  # noqa: N801 (Celery's name)
    """Tasks one after the other, each with the result of the one before it."""

    kind = "chain"

    def __init__(self, *given: Any, **options: Any) -> None:
        if len(given) == 1 and isinstance(given[0], dict) and not isinstance(given[0], Signature):
            super().__init__(given[0])
            self["kwargs"] = {"tasks": [maybe_signature(each) for each in self["kwargs"]["tasks"]]}
            return
        super().__init__(_CHAIN, (), {"tasks": []}, options)
        for each in _all(given):
            self._append(each)

    def _append(self, each: Signature) -> None:
        own = self.tasks
        if isinstance(each, chain) and not each.options and not each.args:
            for inner in each.tasks:
                self._append(inner)
        elif own and isinstance(own[-1], group) and not isinstance(each, group):
            own[-1] = chord(own[-1], each)
        else:
            own.append(each)

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Return a copy; the arguments go before those of its first task."""
        made = deepcopy(self)
        if (args or kwargs) and made.tasks:
            made.tasks[0] = made.tasks[0].clone(args, kwargs)
        return made._with(given)  # noqa: SLF001 (its own)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Run its tasks here and now, up to the first that fails. Returns its result."""
        last: Any = None
        for each in self.clone(args, kwargs).tasks:
            before = [] if last is None else [_handed_on(last)]
            result = each.apply(before, **({} if last is not None else _first(given)))
            result.parent = last
            last = result
            if last.failed():
                break
        return last

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))


class group(Canvas):  # noqa: N801 (Celery's name)
    """Tasks at once, each with the same arguments before its own."""

    kind = "group"

    def __init__(self, *given: Any, **options: Any) -> None:
        if len(given) == 1 and isinstance(given[0], dict) and not isinstance(given[0], Signature):
            super().__init__(given[0])
            self["kwargs"] = {"tasks": [maybe_signature(each) for each in self["kwargs"]["tasks"]]}
            return
        super().__init__(_GROUP, (), {"tasks": [*_all(given)]}, options)

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Return a copy; the arguments go before those of each task."""
        made = deepcopy(self)
        if args or kwargs:
            made["kwargs"] = {"tasks": [each.clone(args, kwargs) for each in made.tasks]}
        return made._with(given)  # noqa: SLF001 (its own)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> GroupResult:
        """Run its tasks here and now. Returns their results."""
        made = self.clone(args, kwargs)
        return GroupResult(new_uuid(), [each.apply(**_first(given)) for each in made.tasks])

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"group({self.tasks!r})"


class chord(Canvas):  # noqa: N801 (Celery's name)
    """A group, and a task that gets the list of its results: `chord(header)(body)`."""

    kind = "chord"

    def __init__(
        self,
        header: Any,
        body: Any = None,
        **given: Any,
    ) -> None:
        if isinstance(header, dict) and not isinstance(header, Signature):
            super().__init__(header)
            parts = self["kwargs"]
            self["kwargs"] = {key: maybe_signature(each) for key, each in parts.items()}
            return
        whole = header if isinstance(header, group) else group(*_all([header]))
        parts = {"header": whole, "body": maybe_signature(body)}
        super().__init__(_CHORD, (), parts, given)

    @property
    def tasks(self) -> Any:
        """The group."""
        return self["kwargs"]["header"]

    header = tasks

    @property
    def body(self) -> Any:
        """The task behind the group."""
        return self["kwargs"]["body"]

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Return a copy; the arguments go before those of each task of the group."""
        made = deepcopy(self)
        made["kwargs"]["header"] = made.tasks.clone(args, kwargs)
        return made._with(given)  # noqa: SLF001 (its own)

    def __call__(self, body: Any = None, **given: Any) -> Any:
        """Dispatch it, with this task behind the group."""
        made = deepcopy(self)
        if body is not None:
            made["kwargs"]["body"] = maybe_signature(body)
        return made._send(given)  # noqa: SLF001 (its own)

    def _send(self, given: Mapping[str, Any]) -> Any:
        if self.body is None:
            raise TypeError("a chord needs a body: chord(header)(body)")
        return super()._send(given)

    def leaves(self) -> Iterator[Signature]:
        """Iterate over the signatures of single tasks in it."""
        yield from self.tasks.leaves()
        if self.body is not None:
            yield from self.body.leaves() if isinstance(self.body, Canvas) else [self.body]

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Run its tasks here and now, and then the one behind them. Returns its result."""
        header = self.tasks.apply(args, kwargs)
        result = self.body.apply([header.get()], **_first(given))
        result.parent = header
        return result

    def __repr__(self) -> str:
        return f"chord({self.tasks!r}, {self.body!r})"


_KINDS: dict[str | None, Any] = {"chain": chain, "group": group, "chord": chord}


def signature(varies: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a signature: of a task or its name, or what a dict of one says."""
    if isinstance(varies, Signature):
        return varies.clone()
    if isinstance(varies, Mapping):
        return _KINDS.get(varies.get("subtask_type"), Signature)(dict(varies))
    return Signature(varies, *args, **kwargs)


subtask = signature


def maybe_signature(given: Any, app: object = None) -> Any:  # noqa: ARG001 (Celery's own)
    """Return a signature for a dict of one, a task, or itself."""
    if given is None or isinstance(given, Signature):
        return given
    if isinstance(given, Mapping):
        return signature(given)
    if hasattr(given, "job_class"):
        return Signature(given)
    raise NotSupported(f"a canvas takes signatures, such as add.s(2, 2), not {given!r:.60}")


def listed(given: Any) -> list[Any]:
    """Return one signature, several, or none, as a list."""
    if given is None:
        return []
    several = isinstance(given, list | tuple)
    return [maybe_signature(each) for each in (given if several else [given])]


def _all(given: Iterable[Any]) -> Iterator[Any]:
    """Iterate over signatures that are given one by one, or as an iterable."""
    parts = [*given]
    if len(parts) == 1 and not isinstance(parts[0], dict) and not hasattr(parts[0], "job_class"):
        parts = [*parts[0]]
    for each in parts:
        yield maybe_signature(each)


def _handed_on(result: Any) -> Any:
    """Return what the next task gets: None from one that was ignored."""
    return None if getattr(result, "state", "") == IGNORED else result.get()


def _first(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a canvas run here and now hands to its tasks."""
    return {key: each for key, each in given.items() if key == "throw"}


def _joined(left: Any, right: Any) -> Any:
    """Return two signatures one after the other."""
    if not (isinstance(left, Signature) and isinstance(right, Signature)):
        return NotImplemented
    left, right = left.clone(), right.clone()
    if isinstance(left, group) and isinstance(right, group):
        return chain(left, right)
    if isinstance(left, group):
        first, *rest = right.tasks if isinstance(right, chain) else [right]
        made = chord(left, first)
        return chain(made, *rest) if rest else made
    return chain(left, right)


def _through_flow(whole: Any) -> Any:
    from qframe.celery.graph import CanvasFlow  # noqa: PLC0415 (flows would cost every program time)

    return CanvasFlow(whole).dispatch(whole)


__all__ = [
    "EagerResult",
    "Signature",
    "chain",
    "chord",
    "group",
    "maybe_signature",
    "signature",
    "subtask",
]
