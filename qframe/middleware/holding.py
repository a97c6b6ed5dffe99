"""Holding: what a middleware says of a job that it would not let run now."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable


class HeldBack(NamedTuple):
    """Why a middleware would release a job now."""

    kind: str
    """In a word or two: `rate limit`, `lock`, `exceptions`, or what a middleware calls it."""
    why: str
    seconds: float | None = None
    """How long that lasts; None if nobody knows."""
    holder: str = ""
    """The uuid of the job that is in the way."""


@runtime_checkable
class HoldsBack(Protocol):
    """A middleware that can tell, without running or charging anything, what it would do."""

    def holding(self, job: Any, /) -> HeldBack | None:  # noqa: ANN401 (a `Queueable`)
        """Return why the job would not run now; None if it would. Raises `BackendUnavailable`."""
