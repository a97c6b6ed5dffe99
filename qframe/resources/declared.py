"""Resource: marks a parameter that is given when the job starts, and says what makes its value."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, get_origin

from pydantic import PydanticUserError

from qframe.exceptions import JobDefinitionError
from qframe.payload.text import one_line

Factory = Callable[..., Any]


class Resource:
    """What a parameter of a job's handler is given: `pool: Annotated[Pool, Resource(make_pool)]`.

    The process makes it for the first job that needs it, all its jobs share it, and it is closed
    when the worker ends. It is no field of the job. The factory is a function, also an `async` one,
    or a generator, whose code behind `yield` closes it; with or without `@contextmanager` or
    `@asynccontextmanager`. Its own parameters are resources, too, or have defaults.

    Raises `JobDefinitionError` for what cannot be called, or has no hash.
    """

    __slots__ = ("factory",)

    def __init__(self, factory: Factory) -> None:
        given: Any = factory
        if not (callable(given) and isinstance(given, Hashable)):
            shown = one_line(repr(factory), 80)
            raise JobDefinitionError(
                f"Resource takes a function that makes the resource, not {shown}"
            )
        self.factory = factory

    def __repr__(self) -> str:
        return f"Resource({name_of(self.factory)})"

    def __get_pydantic_core_schema__(self, *_: object) -> NoReturn:
        """Refuse a field: it would be sent with the job."""
        raise PydanticUserError(
            "a Resource is no field: make it a parameter of handle", code="invalid-annotated-type"
        )


class _Injected:
    """The default of a parameter with a `Resource`; tells type checkers that a call may omit it.

    When the program runs, it makes no difference.
    """

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()


@dataclass(frozen=True, slots=True)
class Need:
    """A parameter that takes a resource."""

    name: str
    position: int
    """Its index among the arguments of a call; of one that is only given by name, a large one."""
    factory: Factory


def needs_of(where: str, function: Factory) -> tuple[Need, ...]:
    """Return the parameters that take resources. Raises `JobDefinitionError` for a wrong one."""
    found = []
    for at, parameter in enumerate(parameters_of(function)):
        resource = _resource_in(parameter.annotation, function)
        if resource is None or parameter.kind in MANY:
            continue
        name, factory = parameter.name, resource.factory
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise JobDefinitionError(f"{where}: {name} takes a resource: take out the / behind it")
        if isinstance(factory, _Unknown):
            raise JobDefinitionError(
                f"{where}: {name}: {factory} is not there: define it at the top level of a module, "
                "before the job, and import it outside of TYPE_CHECKING"
            )
        is_positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        found.append(Need(name, at if is_positional else sys.maxsize, factory))
    return tuple(found)


MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(function: Factory) -> Iterable[inspect.Parameter]:
    """Return the parameters of a function; none if they are not known."""
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()


def name_of(factory: Factory) -> str:
    """Return how to call a factory in a message."""
    plain = without_partial(factory)
    return one_line(str(getattr(plain, "__qualname__", None) or repr(factory)), 80)


def without_partial(function: Any) -> Any:  # noqa: ANN401 (a callable)
    """Return the function inside of a `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _resource_in(annotation: Any, function: Factory) -> Resource | None:  # noqa: ANN401 (any annotation)
    while isinstance(annotation, str):
        annotation = _evaluated(annotation, function)
    annotation = getattr(annotation, "__value__", annotation)  # of a `type` statement
    if get_origin(annotation) is not Annotated:
        return None
    marks = [each for each in annotation.__metadata__ if isinstance(each, Resource)]
    return marks[-1] if marks else None


# -- annotations that are texts -------------------------------------------------------------------


def _evaluated(text: str, function: Factory) -> Any:  # noqa: ANN401 (as above)
    """Evaluate an annotation, of whose types some may be known to type checkers only."""
    try:
        return eval(text, {}, _SpaceOfAnnotations(_space_of(function)))  # noqa: S307 (what the module says itself)
    except JobDefinitionError:
        raise
    except Exception:  # noqa: BLE001 (an annotation may be anything: then it is a field's)
        return None


def _space_of(function: Factory) -> Mapping[str, Any]:
    plain = inspect.unwrap(without_partial(function))
    module = sys.modules.get(getattr(plain, "__module__", ""), builtins)
    space: Mapping[str, Any] = getattr(plain, "__globals__", None) or vars(module)
    return space


class _SpaceOfAnnotations(dict[str, Any]):
    """The names of a module, and something in place of any other."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        super().__init__()
        self._space = space

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 (what has the name)
        if name in self._space:
            return self._space[name]
        return getattr(builtins, name, None) or _Unknown(name)


class _Unknown:
    """A name that is not there when the program runs, or an expression with it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def __getattr__(self, name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown(f"{self._name}.{name}")

    def _same(self, *_: object, **__: object) -> _Unknown:
        return self

    __call__ = __getitem__ = __or__ = __ror__ = _same
