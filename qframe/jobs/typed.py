"""Handles: what type checkers know of a job, so that they know its result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MYPY = False
"""Which mypy takes for true. pyright takes the last of two declarations, ty the one it reaches."""


class Handles(Protocol[R_co]):
    """A job whose `handle` returns an `R_co`, or a coroutine that does: every `Queueable`.

    Nothing is checked by it at run time.
    """

    if not MYPY:

        @property
        def _returns(self) -> R_co: ...

    else:

        def _returns(self) -> R_co: ...  # pyright: ignore[reportRedeclaration]


class _Called(Protocol[R_co]):
    @property
    def handle(self) -> Callable[..., R_co]: ...


class _Awaited(Protocol[R_co]):
    @property
    def handle(self) -> Callable[..., Coroutine[Any, Any, R_co]]: ...


class _Returned:
    @overload
    def __get__(self, job: _Awaited[R], owner: object) -> R: ...

    @overload
    def __get__(self, job: _Called[R], owner: object) -> R: ...

    def __get__(self, job: Any, owner: object) -> Any: ...


class Returns:
    """Tells type checkers that an `async def handle` returns what its coroutine does.

    Not in a union, `Awaitable[R] | R`: mypy finds no `R` for that, and ty takes the coroutine, too.
    mypy and pyright choose by the `self` of a method, ty by that of a descriptor.
    """

    if TYPE_CHECKING:
        if not MYPY:
            _returns = _Returned()  # pyright: ignore[reportAssignmentType]
        else:

            @overload
            def _returns(self: _Awaited[R]) -> R: ...

            @overload
            def _returns(self: _Called[R]) -> R: ...

            def _returns(self) -> Any: ...
