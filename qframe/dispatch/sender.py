"""Senders: threads that do what coroutines await, many calls in one exchange.

A thousand that are awaited at once need no thousand threads, nor as many round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import heapq
import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from qframe import connection as connections
from qframe import forks
from qframe.connection import Connection
from qframe.dispatch import pusher
from qframe.dispatch.calls import Apply, Call, CallPause, Need, Read
from qframe.dispatch.handed import Handed, Lost, wake
from qframe.exceptions import BackendUnavailable

_MOST = 200
"""How many calls are taken up, steps applied and facts read at once."""
_GRID = 4
"""A pause may last longer by this part of it, so that many end together."""

T = TypeVar("T")
_Asking = tuple[Handed[Any], Apply | Read]
"""A call, and what it needs of a backend."""
_Turn = tuple[Handed[Any], Any, BaseException | None]
"""A call that goes on, with what it asked for, or what went wrong with that."""


class _Sender:
    """Calls of one process, and the thread that does them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: SimpleQueue[Handed[Any]] = SimpleQueue()
        self._paused: list[tuple[float, int, Handed[Any]]] = []
        """When each goes on."""
        self._count = itertools.count()
        self._starting = forks.lock()
        self._started = False

    def put(self, handed: Handed[Any]) -> None:
        if not self._started:
            self._start()
        self._new.put(handed)

    def _start(self) -> None:
        with self._starting:
            if not self._started:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._started = True

    def _run(self) -> None:
        needs: list[_Asking] = []
        while True:
            needs += self._begun(waits=not needs)
            turns = [*self._answered(needs)]
            needs, ended = self._stepped(turns)
            wake(ended)
            del turns, ended  # who is told may be the last to hold what it is told

    def _begun(self, *, waits: bool) -> list[_Asking]:
        """Give what is needed by new calls, and by those whose pause is over."""
        new: list[Handed[Any]] = []
        now = time.monotonic()
        with contextlib.suppress(Empty):
            if waits:
                pause = max(0.0, self._paused[0][0] - now) if self._paused else None
                new.append(self._new.get(timeout=pause))
            while len(new) < _MOST:
                new.append(self._new.get_nowait())
        if new:
            pusher.wait_for_tasks()  # what was dropped before is pushed before
        turns: list[_Turn] = [(handed, None, None) for handed in new]
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            turns.append((heapq.heappop(self._paused)[2], None, None))
        needs, ended = self._stepped(turns)
        wake(ended)
        return needs

    def _stepped(self, turns: Iterable[_Turn]) -> tuple[list[_Asking], list[Handed[Any]]]:
        """Let calls go on; gives what they need then, and those that have ended."""
        needs, ended = list[_Asking](), list[Handed[Any]]()
        for handed, said, error in turns:
            need = _step(handed, said, error)
            if need is None:
                ended.append(handed)
            elif isinstance(need, CallPause):
                self._pause(need.seconds, handed)
            else:
                needs.append((handed, need))
        return needs, ended

    def _pause(self, seconds: float, handed: Handed[Any]) -> None:
        due = time.monotonic() + seconds
        if seconds:
            grid = seconds / _GRID
            due = math.ceil(due / grid) * grid
        heapq.heappush(self._paused, (due, next(self._count), handed))

    def _answered(self, needs: Sequence[_Asking]) -> Iterator[_Turn]:
        """Ask for what calls need, together what is of one kind; gives how they go on."""
        groups = defaultdict[tuple[type, int], list[_Asking]](list)
        for handed, need in needs:
            groups[type(need), id(need.backend)].append((handed, need))
        for group in groups.values():
            for some in _portions(group):
                pusher.beat()
                yield from self._asked(some)

    def _asked(self, group: Sequence[_Asking]) -> Iterator[_Turn]:
        """Ask for what some calls need in one exchange."""
        try:
            said = iter(group[0][1].ask([part for _, need in group for part in need.parts]))
        except BaseException as error:  # noqa: BLE001 (who awaits hears of it)
            _forget_frame(error)
            if len(group) > 1 and not isinstance(error, BackendUnavailable):
                for each in group:  # one of them is refused: each by itself
                    yield from self._asked([each])
                return
            for handed, _ in group:
                yield handed, None, error if len(group) == 1 else copy.copy(error)
        else:
            for handed, need in group:
                yield handed, [*itertools.islice(said, len(need.parts))], None


def _step(handed: Handed[Any], said: Any, error: BaseException | None) -> Need | None:  # noqa: ANN401 (any answer)
    """Let a call go on; gives what it needs, None where it has ended."""
    call = handed.call
    assert call is not None  # noqa: S101 (it has not ended)
    try:
        if handed.is_left and handed.lost is None:  # a question whose answer nobody will hear
            call.close()
            raise StopIteration  # as a call that ends
        if error is not None:
            return handed.context.run(call.throw, error)
        return handed.context.run(call.send, said)
    except StopIteration as ended:
        handed.end(ended.value, None)
    except BaseException as raised:  # noqa: BLE001 (as above)
        _forget_frame(raised)
        handed.end(None, raised)
    return None


def _forget_frame(error: BaseException) -> None:
    """Take from an error the frame that has caught it, which holds the call."""
    trace = error.__traceback__
    error.__traceback__ = trace and trace.tb_next


def _portions(
    group: Sequence[_Asking],
) -> Iterator[Sequence[_Asking]]:
    """Divide a group: no exchange is larger than it has to be."""
    portion: list[_Asking] = []
    size = 0
    for each in group:
        more = len(each[1].parts)
        if portion and size + more > _MOST:
            yield portion
            portion, size = [], 0
        portion.append(each)
        size += more
    if portion:
        yield portion


_quick, _long = _Sender("qframe-sender"), _Sender("qframe-long-sender")
"""Those of this process: calls that only say what they need, and those that ask for long by
themselves, which would keep the others waiting."""


def send(handed: Handed[T], *, is_long: bool = False) -> Handed[T]:
    """Have a call done that was handed over, and give it."""
    if handed.lost is not None:
        pusher.note(handed)
    try:
        (_long if is_long else _quick).put(handed)
    except RuntimeError:  # no thread can be had
        pusher.over(handed)
        raise
    return handed


submit: Callable[[Callable[[], None]], None] | None = None
"""Has something done in the thread where a framework runs what blocks for the running loop."""


def send_from_thread(handed: Handed[T], act: Callable[[], T]) -> Handed[T]:
    """Have this done in a thread, where it may take any time, and give what is handed.

    The threads are those of the running loop, unless a framework has one for what blocks.
    """

    def ends() -> None:
        value, error = None, None
        try:
            value = handed.context.run(act)
        except BaseException as raised:  # noqa: BLE001 (who awaits hears of it)
            error = raised
        handed.end(value, error)
        wake([handed])

    pusher.note(handed)
    try:
        if submit is not None:
            submit(ends)
        else:
            asyncio.get_running_loop().run_in_executor(None, ends)
    except RuntimeError:  # as above
        pusher.over(handed)
        raise
    return handed


async def awaited(call: Call[T], *, is_long: bool = False) -> T:
    """Have a question asked, and give the answer."""
    return await send(Handed(call), is_long=is_long).outcome()


async def done(
    here: Callable[[], T],
    call: Callable[[], Call[T]],
    places: Iterable[Connection],
    lost: Lost,
    *,
    is_long: bool = False,
) -> T:
    """Have something done on these connections: `here`, or as a `call`.

    What a fake takes is done here and now; a connection that runs jobs at once has a thread for it.
    """
    if connections.stand_in is not None:
        return here()
    if any(each.context.at_once for each in places):
        return await send_from_thread(Handed(None, lost), here).outcome()
    return await send(Handed(call(), lost), is_long=is_long).outcome()


def _anew() -> None:
    global _quick, _long  # a forked child has none of its parent's threads
    _quick, _long = _Sender("qframe-sender"), _Sender("qframe-long-sender")


forks.in_child(_anew)
