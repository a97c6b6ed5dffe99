"""Warm-up: the first use of pydantic's core, made while qframe is imported.

The core looks up some types of Python once, at their first use, under locks of its own. A child
that is forked meanwhile never gets them: its first dispatch would hang.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic.dataclasses
from pydantic import AnyUrl, BaseModel, TypeAdapter


class _Kind(Enum):
    ONE = "one"


class _Model(BaseModel):
    number: int


@pydantic.dataclasses.dataclass
class _Looked:
    """A value of each kind that the core looks up a type for."""

    moment: datetime
    day: date
    hour: time
    length: timedelta
    number: Decimal
    kind: _Kind
    path: Path
    uuid: UUID
    model: _Model
    address: AnyUrl
    raw: bytes
    numbers: set[int]
    pair: tuple[int, str]
    other: Any


def warm_up() -> None:
    """Write and read a value of each kind."""
    looked = _Looked(
        moment=datetime(2000, 1, 1, tzinfo=UTC),
        day=date(2000, 1, 1),
        hour=time(1),
        length=timedelta(1),
        number=Decimal(1),
        kind=_Kind.ONE,
        path=Path("a"),
        uuid=UUID(int=1),
        model=_Model(number=1),
        address=AnyUrl("http://localhost/"),
        raw=b"a",
        numbers={1},
        pair=(1, "a"),
        other=UUID(int=1),
    )
    adapter = TypeAdapter(_Looked)
    data = adapter.serializer.to_python(looked, mode="json", warnings=False)
    adapter.validator.validate_python(data, by_name=True)
    adapter.validator.validate_json(adapter.serializer.to_json(looked))
    anything = TypeAdapter(Any).serializer
    for field in fields(looked):
        anything.to_python(getattr(looked, field.name), mode="json")
