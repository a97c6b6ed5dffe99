"""Our no-op job with one thing more each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.apps import effects
from qframe import Queueable


class Plain(Queueable):
    """A no-op job with a field."""

    number: int

    def handle(self) -> None:
        """Append one byte."""
        effects.write_byte()


def _pass(job: Queueable, call_next: Callable[[Queueable], Any]) -> Any:  # noqa: ANN401 (as a job gives)
    return call_next(job)


class Passing(Plain):
    """One with a middleware that does nothing."""

    middleware = (_pass,)


class Unique(Plain):
    """One that is unique, and no other's duplicate."""

    unique = True


class UniqueTracked(Unique):
    """One whose status is kept besides."""

    track = True


class Encrypted(Plain):
    """One whose field is encrypted."""

    encrypted = True


KINDS: dict[str, type[Plain]] = {
    "plain": Plain,
    "middleware": Passing,
    "unique": Unique,
    "encrypted": Encrypted,
    "unique tracked": UniqueTracked,
    "batch": Plain,
    "chain": Plain,
}
