"""Ends a process, as it seems, in the middle of a step that is made in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NoReturn, Self

from qframe.contracts.backend import Backend
from qframe.contracts.step import Result, Step
from qframe.exceptions import BackendUnavailable


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
            if self.broke:
                raise Killed
            self.left -= 1
            self.broke = self.left < 0
            results = apply(*steps) if not self.broke or self.after else []
            if self.broke:
                raise Killed
            return results

        part.apply = applied  # type: ignore[method-assign]


class Fault(Enum):
    """What becomes of a call, and of those after it."""

    REFUSED = "refused"
    """It is not done, and raises; the calls after it are done."""
    UNHEARD = "unheard"
    """It is done, and raises; the calls after it are done."""
    DOWN = "down"
    """It is not done, and raises, and so do all calls of this part after it."""
    KILLED = "killed"
    """It is not done, and the process is at its end."""
    KILLED_UNHEARD = "killed, unheard"
    """It is done, and the process is at its end."""

    @property
    def is_deadly(self) -> bool:
        """Whether the process ends."""
        return self in {Fault.KILLED, Fault.KILLED_UNHEARD}


class Faulty:
    """Brings a fault about at the n-th call of `apply` or `read` of some parts.

    Nothing is raised out of the block where the process was killed, or its call was refused;
    `raised` says what was.
    """

    def __init__(self, parts: Iterable[Backend], place: int, fault: Fault) -> None:
        self.parts = tuple(parts)
        self.left = place
        self.fault = fault
        self.broken: Backend | None = None
        self.raised: BaseException | None = None

    def __enter__(self) -> Self:
        for part in self.parts:
            for name in ("apply", "read"):
                setattr(part, name, self._wrapped(part, getattr(part, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        for part in self.parts:
            del part.apply, part.read  # those of the class again
        self.raised = error
        return isinstance(error, Killed | BackendUnavailable)

    @property
    def was_killed(self) -> bool:
        """Whether the process was."""
        return isinstance(self.raised, Killed)

    def _wrapped(self, part: Backend, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if not arguments:
                return []
            if self.broken is not None:
                if self.fault.is_deadly:
                    self.die()
                if self.fault is Fault.DOWN and part is self.broken:
                    raise BackendUnavailable("down")
                return call(*arguments)
            self.left -= 1
            if self.left >= 0:
                return call(*arguments)
            self.broken = part
            if self.fault in {Fault.UNHEARD, Fault.KILLED_UNHEARD}:
                call(*arguments)
            if self.fault.is_deadly:
                self.die()
            raise BackendUnavailable(self.fault.value)

        return called

    def die(self) -> NoReturn:
        """End the process, as it seems."""
        raise Killed
