"""Values of settings: numbers, seconds, names of queues, lists."""

from __future__ import annotations

import json
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qframe.contracts.queue import LARGEST_BOUND
from qframe.payload.text import nearest, one_line, queue_name, queue_pattern

YEAR = 365 * 86400


def _number(value: object) -> object:
    """Refuse True and False, which Python accepts as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")  # noqa: TRY004 (what pydantic makes an error of its own)
    return value


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{one_line(text, 60)!r} is not host:port")
    return text


Int = Annotated[int, BeforeValidator(_number)]
Float = Annotated[float, BeforeValidator(_number)]
Seconds = Annotated[Float, Field(ge=0, le=YEAR)]
Wait = Annotated[Float, Field(gt=0, le=3600)]
AtOnce = Annotated[Int, Field(ge=1, le=LARGEST_BOUND)]
QueueName = Annotated[str, AfterValidator(queue_name)]
QueuePattern = Annotated[str, AfterValidator(queue_pattern)]
Address = Annotated[str, AfterValidator(_host_and_port)]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an `Address`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listed(value: object) -> object:
    """Accept a list, or a text with commas or JSON, as in an environment variable."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith(("[", '"')):
        return [part.strip() for part in value.split(",") if part.strip()]
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # its message may show a key
        raise ValueError('is neither JSON, like ["a", "b"], nor a list like a,b') from None
    return [found] if isinstance(found, str) else found


def is_list(annotation: object) -> bool:
    """Whether a setting of this type is a list."""
    if get_origin(annotation) in {Annotated, UnionType, Union}:
        return any(map(is_list, get_args(annotation)))
    return annotation is list or get_origin(annotation) is list


def describe(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """Return the first error of a validation in one line with the key."""
    fault = error.errors(include_url=False, include_input=False)[0]
    *path, key = [str(part) for part in fault["loc"]] or [""]
    full = ".".join((*path, key))
    if fault["type"] == "extra_forbidden":
        for part in path:
            inner = model.model_fields[part].annotation if part in model.model_fields else None
            inner = next(iter(get_args(inner)[1:]), inner)  # the type of the table's values
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
        known = [field.alias or name for name, field in model.model_fields.items()]
        return f"{where}: unknown key {full!r}{nearest(key, known)}"
    problem = fault["msg"].removeprefix("Value error, ")  # a validator's own message is a sentence
    return ": ".join(filter(None, (where, full, one_line(problem))))


class Section(BaseModel):
    """A table of settings, which refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
