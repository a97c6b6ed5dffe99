"""Keys of models in a payload, as people see them: `app.User:7`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "models"
"""Payload key: the fields of `data` that are keys, each with its model; `app.User[]` if several."""


def named(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a payload to show, its keys with the names of their models."""
    names, data = payload.get(KEY), payload.get("data")
    if not isinstance(names, dict) or not isinstance(data, dict):
        return payload
    fields = {name: _named(data[name], model) for name, model in names.items() if name in data}
    return {**payload, "data": {**data, **fields}}


def _named(value: Any, model: object) -> Any:  # noqa: ANN401 (any JSON value)
    if not isinstance(model, str) or value is None:
        return value
    several = model.removesuffix("[]")
    if several != model and isinstance(value, list):
        return [_named(each, several) for each in value]
    if several != model and isinstance(value, dict):
        return {key: _named(each, several) for key, each in value.items()}
    using = ""
    if isinstance(value, dict) and value.keys() == {"key", "using"}:
        using, value = f"@{value['using']}", value["key"]
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int) for each in parts):
        return value
    return f"{several}{using}:{','.join(map(str, parts))}"
