"""Transactions of the program's own: what asynchronous ones have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class AsyncTransaction(Protocol):
    """SQLAlchemy's `AsyncSession` or `AsyncConnection`: what is done in it is awaited."""

    def run_sync(self, fn: Callable[..., T], /) -> Awaitable[T]:
        """Call `fn` with the session or connection inside, where it may block."""


def is_async(transaction: object) -> TypeGuard[AsyncTransaction]:
    """Whether what is done in a transaction has to be awaited."""
    return isinstance(transaction, AsyncTransaction) and not isinstance(transaction, type)


async def run_in(transaction: AsyncTransaction, act: Callable[[Any], T]) -> T:
    """Call `act` with the transaction that is inside of an asynchronous one."""
    return await transaction.run_sync(act)
