"""Ends a process, as it seems, in the middle of a step that is made in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from qframe.contracts.backend import Backend
from qframe.contracts.step import Result, Step


class Killed(BaseException):
    """The process is at its end."""


class Breaking:
    """Ends a process at the n-th call of `apply` of the parts, in their common order.

    `after`: it was done, and nobody heard; else it did not arrive. `broke` says whether it came so
    far.
    """

    def __init__(self, parts: Iterable[Backend], place: int, *, after: bool) -> None:
        self.parts = tuple(parts)
        self.left = place
        self.after = after
        self.broke = False

    def __enter__(self) -> Self:
        for part in self.parts:
            self._wrap(part)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        for part in self.parts:
            del part.apply  # the one of the class again
        return kind is Killed

    def _wrap(self, part: Backend) -> None:
        apply = part.apply

        def applied(*steps: Step) -> list[Result]:
            if not steps:
                return []
            self.left -= 1
            self.broke = self.left < 0
            results = apply(*steps) if not self.broke or self.after else []
            if self.broke:
                raise Killed
            return results

        part.apply = applied  # type: ignore[method-assign]
