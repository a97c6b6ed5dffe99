"""@queueable: makes a function a job; called directly, it stays an ordinary function."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from qframe.contracts.identity import R_co
from qframe.dispatch.pending import PendingDispatch, dispatch
from qframe.dispatch.queueable import Queueable
from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.jobs.definition import made
from qframe.jobs.hooks import refuse_generator
from qframe.jobs.options import check_option
from qframe.payload.text import nearest, one_line
from qframe.resources.declared import name_of
from qframe.resources.giving import fault_of_given, with_resources

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from datetime import datetime, timedelta
    from typing import Literal, TypedDict

    from qframe.jobs.exponential import Exponential
    from qframe.jobs.options import Middleware
    from qframe.payload.timing import When

    class FunctionJob(Queueable, Generic[R_co]):
        """The job of one call of a function that returns an `R_co`; there are only such jobs."""

        def handle(self) -> R_co:
            """Call the function."""

    class FunctionOptions(TypedDict, total=False):
        """The options of a job, documented in `Queueable`."""

        connection: str
        queue: str
        delay: When
        priority: int
        tries: int
        max_exceptions: int
        backoff: float | Sequence[float] | Exponential
        timeout: float
        concurrency: int
        fail_on_timeout: bool
        retry_until: float | timedelta | datetime
        expires: float | timedelta | datetime
        track: bool | float | timedelta
        keep_log: int
        encrypted: bool
        give_back: bool
        missing: Literal["skip", "fail", "retry"]
        unique: bool
        unique_id: str | int
        unique_for: float | timedelta
        unique_until: Literal["handled", "started"]
        debounce: float | timedelta
        once: float | timedelta
        group: str
        version: int
        upgrade: Callable[[dict[str, Any], int], dict[str, Any]]
        job_name: str
        display_name: str
        tags: Sequence[str] | Callable[..., Sequence[str]]
        middleware: Sequence[Middleware]


_ELSEWHERE = {"delay", "apply_async", "send", "enqueue", "kiq", "s"}
"""What other queues call a dispatch."""
P = ParamSpec("P")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)
"""What a call returns: of an `async def` function, a coroutine."""


class QueueableFunction(Generic[P, C_co, R_co]):
    """A function that can also be dispatched: `add(1, 2)`, `add.dispatch(1, 2)`."""

    def __init__(self, function: Callable[P, C_co], options: dict[str, Any]) -> None:
        _check_function(function)
        functools.update_wrapper(self, function)
        self._function: Callable[P, C_co] = with_resources(name_of(function), function)
        self._signature = inspect.signature(self._function)
        self.job_class = _job_class(self._function, self._signature, options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Call the function directly; it is given the resources that the call leaves out."""
        return self._function(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> FunctionJob[R_co]:
        """Make the job of one call. Raises `InvalidJob` if the arguments do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            fault = fault_of_given(self._function, kwargs) or one_line(str(error))
            raise InvalidJob(f"{self.job_class.__qualname__}: {fault}") from None
        return cast("FunctionJob[R_co]", made(self.job_class, **bound.arguments))

    def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> PendingDispatch[R_co]:
        """Dispatch one call of the function."""
        return dispatch(self.job(*args, **kwargs))

    if not TYPE_CHECKING:  # a checker has to refuse what is not there

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (nothing)
            shown = getattr(self.__dict__.get("job_class"), "__name__", "function")
            hint = f": dispatch it by {shown}.dispatch(...)" if name in _ELSEWHERE else ""
            raise AttributeError(
                f"the @queueable {shown} has no {name!r}{hint}", name=name, obj=self
            )

    def __repr__(self) -> str:
        return f"<queueable {self.job_class.__module__}.{self.job_class.__qualname__}>"


class QueueableDecorator(Protocol):
    """What `queueable` with options returns: it makes a function a job."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> QueueableFunction[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> QueueableFunction[P, R, R]: ...


@overload
def queueable(
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> QueueableFunction[P, Coroutine[Any, Any, R], R]: ...


@overload
def queueable(function: Callable[P, R], /) -> QueueableFunction[P, R, R]: ...


@overload
def queueable(**options: Unpack[FunctionOptions]) -> QueueableDecorator: ...


def queueable(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a job; its parameters are the fields, the keywords the options.

    `@queueable` or `@queueable(queue="math", tries=3)`. Parameters need annotations to be
    validated; `*args` and `**kwargs` cannot be queued. Raises `JobDefinitionError`.
    """
    if function is not None:
        return QueueableFunction(function, {})
    return lambda function: QueueableFunction(function, options)


def _check_function(function: object) -> None:
    """Raise `JobDefinitionError` for what is no function with parameters that are known."""
    fault = ""
    if isinstance(function, type):
        fault = "it is a class: a job class derives from Queueable"
    elif not callable(function):
        fault = "it cannot be called, and options are given by name"
    else:
        try:
            inspect.signature(function)
        except (TypeError, ValueError) as error:
            fault = one_line(str(error), 100)
    if fault:
        shown = one_line(repr(function), 100)
        raise JobDefinitionError(f"@queueable takes a function, not {shown}: {fault}")


def _of_arguments(
    name: str, given: Callable[..., Sequence[str]], fields: dict[str, Any]
) -> Callable[[Queueable], Sequence[str]]:
    """Make a method of a function that takes some of the arguments by name."""
    wanted = list(inspect.signature(given).parameters)
    if wanted[:1] == ["self"]:
        return given
    for each in wanted:
        if each not in fields:
            raise JobDefinitionError(
                f"{name}.tags takes {each!r}, which is no argument{nearest(each, fields)}"
            )
    return lambda job: given(**{each: getattr(job, each) for each in wanted})


def _checked_options(
    name: str, given: dict[str, Any], signature: inspect.Signature
) -> dict[str, Any]:
    """Return the options of a function as a class has them."""
    options = {**given}
    upgrade = options.pop("upgrade", None)
    for option, value in options.items():
        check_option(name, option, value)
    if "version" in options and "version" in signature.parameters:
        raise JobDefinitionError(
            f"{name}.version: an argument has that name, so the option cannot; rename the argument"
        )
    if upgrade is None:
        return options
    if isinstance(upgrade, staticmethod | classmethod) or not callable(upgrade):
        shown = one_line(repr(upgrade), 60)
        raise JobDefinitionError(
            f"{name}.upgrade must be a function of (data, version), not {shown}"
        )
    return {**options, "upgrade": staticmethod(upgrade)}


def _job_class(
    function: Callable[..., Any], signature: inspect.Signature, options: dict[str, Any]
) -> type[Queueable]:
    name = getattr(function, "__qualname__", None) or options.get("job_name")
    shown = name if isinstance(name, str) else one_line(repr(function), 100)
    refuse_generator(shown, function)
    if not isinstance(name, str):
        raise JobDefinitionError(
            f"{shown} has no name by which a worker could find it: write a "
            "function that calls it, or give it a job_name"
        )
    options = _checked_options(name, options, signature)
    fields: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise JobDefinitionError(f"{name}: {parameter} cannot be queued; name each argument")
        annotation = parameter.annotation
        fields[parameter.name] = Any if annotation is parameter.empty else annotation
        if parameter.default is not parameter.empty:
            body[parameter.name] = parameter.default
    if isinstance(tags := options.get("tags"), types.FunctionType):
        options = {**options, "tags": _of_arguments(name, tags, fields)}
    positional = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]

    def handle(self: Queueable) -> Any:  # noqa: ANN401 (what the function returns)
        values = {field: getattr(self, field) for field in fields}
        arguments = [values.pop(field) for field in positional]
        return function(*arguments, **values)

    async def handle_on_loop(self: Queueable) -> Any:  # noqa: ANN401 (as above)
        return await handle(self)

    for each in (handle, handle_on_loop):
        vars(each)["__wrapped__"] = function  # as `functools.wraps` would

    body |= {
        **options,
        "handle": handle_on_loop if inspect.iscoroutinefunction(function) else handle,
        "__annotations__": fields,
        "__module__": function.__module__,
        "__qualname__": name,
        "__doc__": function.__doc__,
    }
    return types.new_class(name.rpartition(".")[2], (Queueable,), {}, lambda ns: ns.update(body))
