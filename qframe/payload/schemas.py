"""Walks through pydantic's core schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


def parts_of(
    schema: Any,  # noqa: ANN401 (what pydantic builds)
    known: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return every part of a core schema, including references to `known` ones.

    Skips what is below the keys `without`.
    """
    parts: list[dict[str, Any]] = []
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict | list | tuple) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            parts.append(part)
            if known and part.get("type") == "definition-ref":
                waiting.append(known.get(part["schema_ref"]))
            waiting.extend(value for key, value in part.items() if key not in without)
        else:
            waiting.extend(part)
    return parts


def fields_with(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Iterate over the fields of a dataclass, by its core schema, each with all its parts."""
    known = {each["ref"]: each for each in parts_of(schema) if "ref" in each}
    while schema["type"] != "dataclass-args":
        if schema["type"] == "definition-ref":
            schema = known[schema["schema_ref"]]
        else:
            schema = schema.get("python_schema") or schema["schema"]
    for field in schema["fields"]:
        yield field["name"], parts_of(field, known)
