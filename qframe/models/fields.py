"""Fields that are models: finds them in annotations, and tells pydantic how they travel."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from qframe.exceptions import JobDefinitionError
from qframe.models import kinds
from qframe.models.keys import ModelKey, rows_in
from qframe.payload.schemas import fields_with

_MARK = "qframe_model"
_HOLDERS = (list, tuple, dict)


class ModelField:
    """What stands in an annotation beside a model, and makes its rows travel as keys."""

    def __init__(self, model: type) -> None:
        self._model = model

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Accept a row, its key, or what JSON has of that."""
        return core_schema.no_info_plain_validator_function(
            self._validated,
            metadata={_MARK: kinds.of(self._model).name(self._model)},
            serialization=core_schema.plain_serializer_function_ser_schema(
                self._written, when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe a key: a number, a text, or a list of them."""
        return {"title": kinds.of(self._model).name(self._model), "description": "its primary key"}

    def _validated(self, given: Any) -> Any:  # noqa: ANN401 (a row, its key, or JSON)
        if isinstance(given, self._model):
            return given
        if isinstance(given, ModelKey):
            if issubclass(given.model, self._model):
                return given
            raise self._no_key(f"{given.name} is another model")
        key, using = given, ""
        if isinstance(given, dict) and given.keys() == {"key", "using"}:
            key, using = given["key"], given["using"]
        try:
            return ModelKey(self._model, kinds.of(self._model).pk(self._model, key), str(using))
        except ValueError as error:
            raise self._no_key(str(error)) from None

    def _no_key(self, why: str) -> PydanticCustomError:
        name = kinds.of(self._model).name(self._model)
        known: Any = {"name": name, "why": f": {why}" if why else ""}
        return PydanticCustomError(
            "model_key", "should be a saved {name}, or its primary key{why}", known
        )

    def _written(self, value: Any) -> Any:  # noqa: ANN401 (a row, or its key)
        return ModelKey.of(self._model, value).written()


def mark_models(
    owner: str, annotations: Mapping[str, Any], space: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the annotations that hold models, each marked with a `ModelField`.

    Those written as texts are evaluated in `space`; one that cannot be yet is left out. Raises
    `JobDefinitionError` for a place in which a model cannot travel.
    """
    if not kinds.has_any():
        return {}
    found = {}
    for name, annotation in annotations.items():
        try:
            type_ = eval(annotation, dict(space)) if isinstance(annotation, str) else annotation  # noqa: S307 (what the class says itself)
        except Exception:  # noqa: BLE001, S112 (defined later, or wrong, which pydantic will say)
            continue
        marked = _marked(f"{owner}.{name}", type_)
        if marked is not type_:
            found[name] = marked
    return found


def _marked(where: str, type_: Any) -> Any:  # noqa: ANN401 (an annotation)
    """Return an annotation with its models marked, or the same object if there are none."""
    if kinds.is_model(type_):
        if problem := kinds.of(type_).problem(type_):
            raise JobDefinitionError(f"{where}: {problem}")
        return Annotated[type_, ModelField(type_)]
    if type(type_).__name__ == "TypeAliasType":  # Python 3.12's, or that of `typing_extensions`
        marked = _marked(where, type_.__value__)
        return type_ if marked is type_.__value__ else marked
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in {type, typing.ClassVar, typing.Literal}:
        return type_
    if origin is Annotated:
        inner, *more = arguments
        is_marked = any(isinstance(each, ModelField) for each in more)
        marked = inner if is_marked else _marked(where, inner)
        return type_ if marked is inner else Annotated[(marked, *more)]
    changed = [_marked(where, each) for each in arguments]
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return type_
    return _rebuilt(where, origin, changed)


def _rebuilt(where: str, origin: Any, arguments: list[Any]) -> Any:  # noqa: ANN401 (an annotation)
    """Return a generic type with models in it. Raises `JobDefinitionError`."""
    if origin in {Union, types.UnionType}:
        if len(arguments) > 2 or types.NoneType not in arguments:  # noqa: PLR2004 (it, or None)
            raise JobDefinitionError(
                f"{where}: a model can be optional, but not one of several types: its key does not "
                "say which one it is"
            )
        return Union[tuple(arguments)]  # noqa: UP007 (made while running)
    if origin not in _HOLDERS:
        raise JobDefinitionError(
            f"{where}: a model can be a field, also optional, or in a list, tuple or dict"
        )
    return origin[tuple(arguments)]


def with_marks(annotation: Any) -> Any:  # noqa: ANN401 (an annotation)
    """Return an annotation whose models pydantic reads as keys.

    Raises `JobDefinitionError` for a place in which a model cannot travel.
    """
    return _marked("it", annotation)


def without_marks(annotation: Any) -> Any:  # noqa: ANN401 (an annotation)
    """Return an annotation as it was written, without what `mark_models` has put into it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and any(isinstance(each, ModelField) for each in arguments[1:]):
        return arguments[0]
    changed = [without_marks(each) for each in arguments]
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    if origin in {Union, types.UnionType}:
        return reduce(or_, changed)
    return origin[tuple(changed)]


def models_in(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a dataclass, by its core schema, that hold models, each with its name.

    The name of a field that holds several ends in `[]`.
    """
    found = {}
    for field, parts in fields_with(schema):
        named = [part["metadata"][_MARK] for part in parts if _MARK in (part.get("metadata") or {})]
        if named:
            several = any(part.get("type") in {"list", "tuple", "dict"} for part in parts)
            found[field] = f"{named[0]}[]" if several else named[0]
    return found


def keys_in(value: Any) -> Iterator[ModelKey]:  # noqa: ANN401 (a field's value)
    """Iterate over the keys of the rows in a field. Raises `ValueError` for one not saved."""
    for row in rows_in(value):
        yield ModelKey.of(type(row), row)


def same_keys(sent: Any, arrived: Any) -> bool:  # noqa: ANN401 (a field's value)
    """Whether a field arrives with the keys that were sent."""
    keys = [[(key.pk, key.using) for key in keys_in(each)] for each in (sent, arrived)]
    return keys[0] == keys[1]


def key_problem(job: Any, names: Mapping[str, str]) -> str:  # noqa: ANN401 (a job)
    """Return why a job cannot be sent for one of its rows; "" if that is not the reason."""
    for name in names:
        try:
            for key in keys_in(getattr(job, name)):
                key.written()
        except Exception as error:  # noqa: BLE001 (a key may be of any type)
            return f"{type(job).__name__}.{name}: {error}"
    return ""
