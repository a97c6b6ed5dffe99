"""References: results of other jobs as fields of a job, which has them when it runs.

A reference stands for the result of a node of a flow. In a payload it is written as a template:
`["r", 3]` is the result of node 3, `["v", x]` a value, `["e", x]` an encrypted one, `["l", [...]]`
a list of templates and `["d", {...}]` a dict of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, NoReturn, TypeVar

from pydantic import ValidatorFunctionWrapHandler, field_validator

from qframe.exceptions import InvalidFlow
from qframe.jobs import definition
from qframe.jobs.definition import JobDefinition
from qframe.payload import envelope
from qframe.payload.text import one_line

J = TypeVar("J", bound=JobDefinition)
Template = list[Any]
Seal = Callable[[Any], dict[str, str]]
"""Encrypts a value for the payload of a job."""

PAYLOAD_KEY = "references"
"""Payload key: the templates of fields that are not in the data, by name."""
NODE_KEY = "flow"
"""Payload key: the flow and node that a job belongs to."""


class Reference:
    """The result of a node of a flow, before there is one."""

    __slots__ = ("node",)

    def __init__(self, node: Any) -> None:  # noqa: ANN401 (a class of a higher layer)
        self.node = node
        """The node (`qframe.dispatch.pending_flow.Node`)."""

    def __repr__(self) -> str:
        return f"<the result of {self.node.label}>"

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, _: object) -> Reference:
        return self

    def _unknown(self, *_: object) -> NoReturn:
        raise InvalidFlow(
            f"{self!r} is not known before the flow runs: a field of a later job takes it whole, "
            "alone or in a list or dict"
        )

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __int__ = __float__ = _unknown
    __str__ = __format__ = __getitem__ = __iter__ = __len__ = __bool__ = __hash__ = _unknown


def is_reference(value: object) -> bool:
    """Whether a value is a reference, or a list, tuple or dict with one in it."""
    try:
        return any(True for _ in references_in(value))
    except RecursionError:  # it holds itself, or is too deep for JSON: refused as such
        return False


def references_in(value: object) -> Iterator[Reference]:
    """Iterate over the references in a value."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from references_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from references_in(each)


def template_of(value: object, what: str) -> Template:
    """Return how a payload has a value with references. Raises `InvalidFlow`."""
    if isinstance(value, Reference):
        return ["r", value.node.number]
    if is_reference(value):
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise InvalidFlow(f"{what}: a dict of results has texts as keys")
            return ["d", {key: template_of(each, what) for key, each in value.items()}]
        assert isinstance(value, list | tuple)  # noqa: S101 (references are in nothing else)
        return ["l", [template_of(each, what) for each in value]]
    try:
        envelope.encode({"displayName": what, "value": value})
    except Exception:  # noqa: BLE001 (any error means the same)
        shown = one_line(repr(value), 60)
        raise InvalidFlow(
            f"{what}: beside a result only JSON values can stand, not {shown}"
        ) from None
    return ["v", value]


def sealed(template: Template, seal: Seal) -> Template:
    """Return a template with its values encrypted."""
    kind, inner = template
    if kind == "v":
        return ["e", seal(inner)]
    if kind == "l":
        return ["l", [sealed(each, seal) for each in inner]]
    if kind == "d":
        return ["d", {key: sealed(each, seal) for key, each in inner.items()}]
    return template


def nodes_of(template: Template) -> Iterator[int]:
    """Iterate over the numbers of the nodes in a template. Raises `ValueError` for no template."""
    kind, inner = template
    if kind == "r":
        if type(inner) is not int:
            raise ValueError("no number of a node")
        yield inner
    elif kind == "l":
        for each in inner:
            yield from nodes_of(each)
    elif kind == "d":
        for each in inner.values():
            yield from nodes_of(each)
    elif kind not in {"v", "e"}:
        raise ValueError("no template")


def filled(
    template: Template, result_of: Callable[[int], Any], opened: Callable[[Any], Any]
) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the value of a template: with results in it, and what is encrypted `opened`."""
    kind, inner = template
    if kind == "r":
        return result_of(inner)
    if kind == "l":
        return [filled(each, result_of, opened) for each in inner]
    if kind == "d":
        return {key: filled(each, result_of, opened) for key, each in inner.items()}
    return opened(inner) if kind == "e" else inner


# -- jobs that wait for results -------------------------------------------------------------------


def allow() -> None:
    """Let fields be references from now on, which costs a call for each job made from then on."""
    if "__new__" not in vars(JobDefinition):
        JobDefinition.__new__ = _made  # type: ignore[assignment, method-assign] # only once there are flows
        definition.new_instance = _made


_HOLD_NONE = {NoneType, bool, bytes, float, int, str}
"""The types of values that are looked at without a call."""


def _made(cls: type[J], /, *_: object, **fields: object) -> J:
    if not fields:  # perhaps of a copy, which gets its fields later
        return object.__new__(cls)
    names: frozenset[str] = frozenset()
    for name, value in fields.items():
        if type(value) not in _HOLD_NONE and is_reference(value):
            names |= {name}
    given: Any = cls
    own: Any = getattr(cls, "_of_class", cls)
    waiting: type[J] = _waiting_class(own, names) if names else own
    if own is given or waiting is cls:
        return object.__new__(waiting)
    return waiting(**fields)  # `dataclasses.replace` of one that had other references


@lru_cache(256)
def _waiting_class(cls: Any, names: frozenset[str]) -> Any:  # noqa: ANN401 (a subclass of `cls`)
    """Return the class for a job of which some fields are references.

    It is the same job on the wire, without these fields in its data.
    """
    unknown = sorted(names - cls.field_names())
    if not cls._aliases().isdisjoint(unknown):
        raise InvalidFlow(
            f"{cls.__name__} gets a result by the name of its field, not by an alias: "
            f"{', '.join(unknown)}"
        )
    if unknown:
        return cls  # pydantic refuses the field by its name
    if (cls.unique_rule or cls.once_rule) and cls.unique_id is None:
        raise InvalidFlow(
            f"{cls.__name__} is unique by its fields, and {', '.join(sorted(names))} is not known "
            "before it runs: give the class a unique_id"
        )
    body = {
        "__annotations__": dict.fromkeys(names, Any),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_references": names,
        "_of_class": cls,
        "_as_it_is": field_validator(*names, mode="wrap")(_as_it_is),
        "to_data": _known_data,
        "wire_besides": _templates,
    }
    return types.new_class(cls.__name__, (cls,), {"waits": True}, lambda ns: ns.update(body))


def _as_it_is(value: object, _handler: ValidatorFunctionWrapHandler) -> object:
    """Validate nothing: the class's own validators get the result, when the job runs."""
    return value


def _known_data(job: Any) -> dict[str, Any]:  # noqa: ANN401 (of a class made above)
    """Return the fields that are known before the job runs."""
    if job.besides is None or PAYLOAD_KEY not in job.besides:
        raise _alone(job)
    kept = {name: getattr(job, name) for name in job._references}  # noqa: SLF001 (made above)
    for name in kept:
        object.__setattr__(job, name, None)
    try:
        data: dict[str, Any] = job._of_class.to_data(job)  # noqa: SLF001 (made above)
    finally:
        for name, value in kept.items():
            object.__setattr__(job, name, value)
    return {name: value for name, value in data.items() if name not in kept}


def _templates(job: Any, more: Mapping[str, Any] | None, seal: Seal | None) -> dict[str, Any]:  # noqa: ANN401 (of a class made above)
    """Return what it has beside its data, with the templates; their values may be secret, too."""
    if more is None or NODE_KEY not in more:
        raise _alone(job)
    templates: dict[str, Template] = job.besides[PAYLOAD_KEY]
    if seal is not None:
        templates = {name: sealed(each, seal) for name, each in templates.items()}
    return {**job.besides, PAYLOAD_KEY: templates, **more}


def _alone(job: JobDefinition) -> InvalidFlow:
    return InvalidFlow(
        f"{type(job).__name__} takes the result of another job: add it to that one's flow, and "
        "dispatch the flow"
    )


def references_of(job: JobDefinition) -> dict[str, Any]:
    """Return the fields of a job that are, or hold, references."""
    return {name: getattr(job, name) for name in sorted(getattr(type(job), "_references", ()))}


def missing_fields(job_class: type[JobDefinition], given: Collection[str]) -> list[str]:
    """Return the required fields that are not given; if there are none, the only optional one."""
    fields: dict[str, Any] = job_class.__pydantic_fields__  # type: ignore[attr-defined] # pydantic's own name
    left = [name for name in fields if name not in given]
    required = [name for name in left if fields[name].is_required()]
    return required or (left if len(left) == 1 else [])


def class_of(job: JobDefinition) -> type[JobDefinition]:
    """Return the class of a job as its module has it."""
    own: type[JobDefinition] = getattr(type(job), "_of_class", type(job))
    return own
