"""Secret: a field whose value is redacted wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, RootModel, SecretBytes, SecretStr
from pydantic import Secret as OtherSecret
from pydantic_core import CoreSchema, core_schema, to_jsonable_python

from qframe.payload.schemas import fields_with, parts_of

T = TypeVar("T")

SHOWN = "**********"
"""The text shown in place of a secret."""
TRAVELS: dict[str, bool] = {}
"""The context of pydantic's serialization that includes the value: that of a payload."""
KEY = "secrets"
"""Payload key: the fields of `data` that must not be shown."""
_MARK = "qframe_secret"
_KEEPERS = {
    "qframe.features.batch_jobs.StartBatch",
    "qframe.features.flow_jobs.ExpandFlowMap",
}
"""The jobs whose data has other payloads, each as the text `raw`."""


class Secret(Generic[T]):
    """A value that is redacted in every repr, text and log; `reveal()` returns it.

    ```python
    class SendToken(Queueable):
        token: Secret[str]
        encrypted = True

        def handle(self) -> None:
            send(self.token.reveal())
    ```

    A plain value for the field becomes a `Secret`. pydantic serializes it as `**********`, except
    in a job's own payload.
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({SHOWN!r})"

    def __str__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Validate and serialize as the type inside does."""
        inside = get_args(source)
        inner = handler.generate_schema(inside[0]) if inside else core_schema.any_schema()
        return core_schema.no_info_wrap_validator_function(
            cls._validated,
            inner,
            metadata={_MARK: True},
            serialization=core_schema.wrap_serializer_function_ser_schema(
                _serialized, schema=inner, info_arg=True
            ),
        )

    @classmethod
    def _validated(cls, value: object, validate: Callable[[object], T]) -> Secret[T]:
        return cls(validate(value.reveal() if isinstance(value, Secret) else value))


def _serialized(value: object, serialize: Callable[[object], object], info: Any) -> object:  # noqa: ANN401 (pydantic's)
    if info.context is TRAVELS and isinstance(value, Secret):
        return serialize(value.reveal())
    return SHOWN if info.mode_is_json() else value


def fields_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a dataclass, by its core schema, that are or hold a `Secret`."""
    return tuple(name for name, parts in fields_with(schema) if any(map(_is_secret, parts)))


def is_within(schema: object) -> bool:
    """Whether a value of this core schema is, or holds, a `Secret`."""
    return any(map(_is_secret, parts_of(schema)))


def _is_secret(part: Mapping[str, Any]) -> bool:
    """Whether it describes a `Secret`, or one of pydantic's own."""
    if (part.get("metadata") or {}).get(_MARK):
        return True
    written = part.get("serialization") or {}
    return getattr(written.get("function"), "__module__", "") == SecretStr.__module__ and (
        "secret" in getattr(written["function"], "__name__", "")
    )


def revealed(value: Any, written: Any) -> Any:  # noqa: ANN401 (any value)
    """Return pydantic's serialization of a value, with its own secrets in place of the stars.

    Its `SecretStr` never serializes its value, whatever the context.
    """
    if isinstance(value, _PYDANTICS):
        inside = value.get_secret_value()
        if isinstance(inside, bytes):
            return inside.decode()
        return revealed(inside, to_jsonable_python(inside, context=TRAVELS))
    if isinstance(value, Secret | RootModel):
        inside = value.reveal() if isinstance(value, Secret) else value.root
        return revealed(inside, written)
    if isinstance(written, dict):
        parts: Iterable[Any] = (getattr(value, key, None) for key in written)
        if isinstance(value, Mapping) and len(value) == len(written):
            parts = value.values()
        pairs = zip(written.items(), parts, strict=False)
        return {key: revealed(part, shown) for (key, shown), part in pairs}
    if isinstance(written, list) and isinstance(value, Collection) and len(value) == len(written):
        return [revealed(each, shown) for shown, each in zip(written, value, strict=False)]
    return written


_PYDANTICS = (SecretStr, SecretBytes, OtherSecret)
SECRETS = (Secret, *_PYDANTICS)


def opened(value: Any) -> Any:  # noqa: ANN401 (any value)
    """Return what is in a secret, ours or pydantic's; any other value as it is."""
    if isinstance(value, Secret):
        return value.reveal()
    return value.get_secret_value() if isinstance(value, _PYDANTICS) else value


def redacted(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a payload with its secrets as stars; None if there are none to hide."""
    names, data = payload.get(KEY), payload.get("data")
    if not isinstance(data, dict):
        return None
    if payload.get("job") in _KEEPERS:
        shown = _redacted_within(data)
        return None if shown == data else {**payload, "data": shown}
    if not isinstance(names, list):
        return None
    hidden = {name for name in names if isinstance(name, str)} & data.keys()
    if not hidden:
        return None
    shown = {key: SHOWN if key in hidden else value for key, value in data.items()}
    return {**payload, "data": shown}


def _redacted_within(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, list):
        return [_redacted_within(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _redacted_text(each) if key == "raw" else _redacted_within(each)
        for key, each in value.items()
    }


def _redacted_text(raw: object) -> object:
    try:
        payload = json.loads(raw) if isinstance(raw, str) else None
    except (ValueError, RecursionError):  # not a payload
        return raw
    hidden = redacted(payload) if isinstance(payload, dict) else None
    return raw if hidden is None else json.dumps(hidden, separators=(",", ":"))


def shown(value: object) -> str:
    """Return the JSON text of a secret. Raises `TypeError` for anything else."""
    if isinstance(value, Secret):
        return SHOWN
    raise TypeError(f"{type(value).__name__} is not JSON")
