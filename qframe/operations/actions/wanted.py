"""Wanted: what an action acts on, and what it did."""

from __future__ import annotations

from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from qframe.exceptions import ConfigurationError
from qframe.failed.filters import seconds_of_span
from qframe.operations.bin import BinAction
from qframe.payload.text import one_line
from qframe.retries.terms import MOST_FIRST
from qframe.schedules.options import Missed
from qframe.schedules.rows import Grace, Overlap, Spread
from qframe.worker.options import MOST_AT_ONCE

T = TypeVar("T")


_LONGEST = 500


class Wanted(BaseModel):
    """What an action acts on; each action says which fields it needs."""

    model_config = ConfigDict(extra="forbid")

    connection: str = Field("", max_length=_LONGEST)
    queue: str = Field("", max_length=_LONGEST)
    place: str = Field("", max_length=20)
    uuids: list[str] = Field([], max_length=1000)
    filter: str | None = Field(None, max_length=2000)
    """All jobs that this chooses; None: those of `uuids`."""
    cause: str = Field("", max_length=20)
    id: str = Field("", max_length=_LONGEST)
    seconds: float | None = Field(None, gt=0, lt=3e9)
    number: int | None = Field(None, ge=1, le=MOST_AT_ONCE)
    job: str = Field("", max_length=200)
    data: str = Field("", max_length=100_000)
    """The job's fields, as JSON."""
    when: str = Field("", max_length=200)
    timezone: str = Field("", max_length=60)
    first: int | None = Field(None, ge=0, le=MOST_FIRST)
    then: str = Field("", max_length=60)
    stop_if: str = Field("", max_length=60)
    missed: Missed | None = None
    grace: Grace | None = None
    spread: Spread | None = None
    overlap: Overlap | None = None
    reason: str = Field("", max_length=300)
    """Why, for others to read."""
    maintenance: bool | None = None
    foreign: bool | None = None
    _where: str = PrivateAttr("the page")

    def by_api(self) -> Self:
        """Notes that a program asks for it, by the API; returns itself."""
        self._where = "the API"
        return self

    @property
    def where(self) -> str:
        """From where it is asked for, in words."""
        return self._where

    @field_validator("seconds", mode="before")
    @classmethod
    def _may_be_a_span(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return seconds_of_span("seconds", value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    @field_validator("connection", "queue", "uuids", "filter", "id", "reason")
    @classmethod
    def _can_be_text(cls, value: T) -> T:
        if "\0" in "".join(value if isinstance(value, list) else [str(value)]):
            raise ValueError("NUL is in no text that a backend keeps")
        return value


class Done(BaseModel):
    """What an action did."""

    changed: int
    text: str
    bulk: str = ""
    """The id of the bulk action that goes on in the background."""
    undo: dict[str, str] = Field({}, exclude=True)
    """What undoes it, if only the action knows: `action`, and the fields it acts on."""


def what(wanted: Wanted) -> str:
    """Returns in words what an action acts on."""
    shown = {
        "connection": wanted.connection,
        "queue": wanted.queue,
        "place": wanted.place,
        "cause": wanted.cause,
        "id": wanted.id,
        "filter": wanted.filter or ("all" if wanted.filter is not None else ""),
        "jobs": ", ".join(wanted.uuids[:3]) + (", ..." if len(wanted.uuids) > 3 else ""),  # noqa: PLR2004 (a few)
    }
    return one_line(" ".join(f"{name} {value}" for name, value in shown.items() if value), 300)


def selected(wanted: Wanted) -> list[str]:
    if not wanted.uuids:
        raise ConfigurationError("no job is selected")
    return wanted.uuids


def into_bin(act: BinAction, count: int, text: str) -> Done:
    """Returns what an act has done, and that it can be taken back."""
    told = act.told()
    offered = {"action": "undo", "id": act.id} if act.kept else {}
    return Done(changed=count, text=f"{text}; {told}" if told else text, undo=offered)
