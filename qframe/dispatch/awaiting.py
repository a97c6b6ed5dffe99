"""What calls give on a running event loop: something to be awaited, at once.

Elsewhere they block, and give what came of them. No type can tell the two apart. So those here say
both: each is what the call gives where it blocks, and can be awaited. None cannot: what gives it in
place of something has that and `Any` for its type, so that it may be None, and may be awaited.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from qframe import connection as connections
from qframe.connection import Connection
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import JobStatus
from qframe.dispatch import sender
from qframe.dispatch.calls import Call, run
from qframe.dispatch.handed import Handed, Lost

T = TypeVar("T")

if TYPE_CHECKING:

    class AwaitableIds(list[str], Coroutine[Any, Any, list[str]]):
        """Ids of jobs."""

    class AwaitableBool(bool, Coroutine[Any, Any, bool]):  # type: ignore[misc] # there is none
        """Whether something was done."""

    class AwaitableCancelling(Cancelling, Coroutine[Any, Any, Cancelling]):  # type: ignore[misc]
        """What became of a job that was to be cancelled."""

    class AwaitableStatus(JobStatus, Coroutine[Any, Any, JobStatus]):
        """The status of a job."""

    class AwaitableStatusOrNone(JobStatus, Coroutine[Any, Any, JobStatus | None]):
        """The status of a job, where there is one."""


class PendingCall(Coroutine[Any, Any, T]):
    """A call made on a running event loop: `await` gives what came of it, and never blocks.

    A call that does something is on its way to the backend already, awaited or not; an error that
    nobody hears is told as that of a dropped dispatch. A question is asked when it is awaited. Used
    without that, either blocks until the answer is there, and then does as the answer does.
    """

    __slots__ = ("__weakref__", "_ask", "_handed", "_is_long", "_steps", "_what")

    def __init__(
        self,
        what: str,
        handed: Handed[T] | None = None,
        ask: Callable[[], Call[T]] | None = None,
        *,
        is_long: bool = False,
    ) -> None:
        self._what = what
        self._handed = handed
        self._ask = ask
        """Makes the call, where it is a question."""
        self._is_long = is_long
        self._steps: Generator[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._outcome().__await__()

    async def _outcome(self) -> T:
        handed = self._handed
        if self._ask is not None and (handed is None or handed.is_left):
            made = Handed(self._ask())
            handed = self._handed = sender.send(made, is_long=self._is_long)
        assert handed is not None  # noqa: S101 (it is no question)
        return await handed.outcome()

    def __del__(self) -> None:
        handed = getattr(self, "_handed", None)
        if handed is not None:
            handed.dropped = True
        elif hasattr(self, "_steps"):
            warnings.warn(f"{self!r} was never awaited", RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        handed = self._handed
        state = "not asked" if handed is None else "done" if handed.is_done else "under way"
        return f"<{type(self).__name__} {self._what} {state}>"

    # -- as a coroutine, for `create_task` and the like -------------------------------------------

    def send(self, value: Any) -> Any:  # noqa: ANN401 (the loop's own)
        """Go on awaiting."""
        return self._awaited().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 (the loop's own)
        """Raise something where it is awaited."""
        return self._awaited().throw(*error)

    def close(self) -> None:
        """Stop awaiting."""
        self._awaited().close()

    def _awaited(self) -> Generator[Any, Any, T]:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps

    # -- used without being awaited ---------------------------------------------------------------

    def _used(self) -> Any:  # noqa: ANN401 (what the call gives)
        handed = self._handed
        if self._ask is not None and (handed is None or handed.is_left):
            handed = self._handed = sender.done(run(self._ask()))
        assert handed is not None  # noqa: S101 (as above)
        return handed.result()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (what the call gives)
        if name.startswith(("_", "cr_", "gi_", "ag_")):  # what is looked for in coroutines
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._used(), name)

    def __bool__(self) -> bool:
        return bool(self._used())

    def __len__(self) -> int:
        return len(self._used())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._used())

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 (what the call gives)
        return self._used()[place]

    def __contains__(self, each: object) -> bool:
        return each in self._used()

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self._used() == other)

    __hash__ = object.__hash__


class ChainId(str, Coroutine[Any, Any, str]):
    """The id of a chain that was dispatched on a running event loop; `await` waits for that."""

    __slots__ = ("_call",)
    _call: PendingCall[str]

    @classmethod
    def of(cls, identity: str, call: PendingCall[str]) -> ChainId:
        """Make one, whose chain is on its way."""
        made = cls(identity)
        made._call = call
        return made

    def __await__(self) -> Generator[Any, Any, str]:
        return self._call.__await__()

    def send(self, value: Any) -> Any:  # noqa: ANN401 (the loop's own)
        """Go on awaiting."""
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 (the loop's own)
        """Raise something where it is awaited."""
        return self._call.throw(*error)

    def close(self) -> None:
        """Stop awaiting."""
        self._call.close()


def handed_over(
    what: str,
    here: Callable[[], T],
    call: Callable[[], Call[T]],
    places: Iterable[Connection],
    lost: Lost,
    *,
    retries: int = 0,
    is_long: bool = False,
) -> PendingCall[T]:
    """Have something done on these connections, on a running event loop: `here`, or as a `call`.

    What a fake takes is done here and now; a connection that runs jobs at once has a thread for it.
    """
    if connections.stand_in is not None:
        return PendingCall(what, sender.done(here()))
    if any(each.context.at_once for each in places):
        return PendingCall(what, sender.send_from_thread(Handed(None, lost), here))
    handed = Handed(call(), lost, retries=retries)
    return PendingCall(what, sender.send(handed, is_long=is_long))
