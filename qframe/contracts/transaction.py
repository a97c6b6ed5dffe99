"""AsyncTransaction: what asynchronous transactions of the caller have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class AsyncTransaction(Protocol):
    """SQLAlchemy's `AsyncSession` or `AsyncConnection`, whose operations are awaited."""

    def run_sync(self, fn: Callable[..., T], /) -> Awaitable[T]:
        """Call `fn` with the synchronous session or connection inside; `fn` may block."""


def is_async(transaction: object) -> TypeGuard[AsyncTransaction]:
    """Whether the operations of a transaction must be awaited."""
    return isinstance(transaction, AsyncTransaction) and not isinstance(transaction, type)


async def run_in(transaction: AsyncTransaction, act: Callable[[Any], T]) -> T:
    """Call `act` with the synchronous transaction inside an asynchronous one."""
    return await transaction.run_sync(act)
