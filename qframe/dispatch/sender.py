"""Senders: threads that run what coroutines await, many calls in one exchange.

A thousand concurrent awaits then need neither a thousand threads nor as many round trips.
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
from qframe.dispatch.calls import Apply, Call, CallPause, Need, Read, direct
from qframe.dispatch.handed import Handed, Lost, wake
from qframe.exceptions import BackendUnavailable
from qframe.hooks import Hooks

_MOST = 200
"""The most calls, steps and facts in one round."""
_GRID = 4
"""A pause may be longer by this fraction of it, so that many end together."""

T = TypeVar("T")
_Asking = tuple[Handed[Any], Apply | Read]
"""A call and its request to a backend."""
_Turn = tuple[Handed[Any], Any, BaseException | None]
"""A call that continues, with the answer to its request or the error."""


class _Sender:
    """The calls of one process, and their thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: SimpleQueue[Handed[Any]] = SimpleQueue()
        self._paused: list[tuple[float, int, Handed[Any]]] = []
        """When each paused call continues."""
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
            del turns, ended  # a caller may be the last to hold its result, so let go of it

    def _begun(self, *, waits: bool) -> list[_Asking]:
        """Return the requests of new calls, and of those whose pause is over."""
        new: list[Handed[Any]] = []
        now = time.monotonic()
        with contextlib.suppress(Empty):
            if waits:
                pause = max(0.0, self._paused[0][0] - now) if self._paused else None
                new.append(self._new.get(timeout=pause))
            while len(new) < _MOST:
                new.append(self._new.get_nowait())
        if new:
            pusher.wait_for_tasks()  # earlier dropped dispatches are pushed first
        turns: list[_Turn] = [(handed, None, None) for handed in new]
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            turns.append((heapq.heappop(self._paused)[2], None, None))
        needs, ended = self._stepped(turns)
        wake(ended)
        return needs

    def _stepped(self, turns: Iterable[_Turn]) -> tuple[list[_Asking], list[Handed[Any]]]:
        """Continue calls. Returns their next requests, and the calls that have ended."""
        needs, ended = list[_Asking](), list[Handed[Any]]()
        for handed, answer, error in turns:
            need = _step(handed, answer, error)
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
        """Send the requests, those of one kind together. Returns how the calls continue."""
        groups = defaultdict[tuple[type, int], list[_Asking]](list)
        for handed, need in needs:
            groups[type(need), id(need.backend)].append((handed, need))
        for group in groups.values():
            for some in _portions(group):
                pusher.beat()
                yield from self._asked(some)

    def _asked(self, group: Sequence[_Asking]) -> Iterator[_Turn]:
        try:
            answer = iter(group[0][1].ask([part for _, need in group for part in need.parts]))
        except BaseException as error:  # noqa: BLE001 (the awaiting callers get it)
            _forget_frame(error)
            if len(group) > 1 and not isinstance(error, BackendUnavailable):
                for each in group:  # one of them is refused: send each alone
                    yield from self._asked([each])
                return
            for handed, _ in group:
                yield handed, None, error if len(group) == 1 else copy.copy(error)
        else:
            for handed, need in group:
                yield handed, [*itertools.islice(answer, len(need.parts))], None


def _step(handed: Handed[Any], answer: Any, error: BaseException | None) -> Need | None:  # noqa: ANN401 (any answer)
    """Continue a call. Returns its next request; None if it has ended."""
    call = handed.call
    assert call is not None  # noqa: S101 (it has not ended)
    try:
        if handed.is_left and handed.lost is None:  # read-only, and no caller waits any more
            call.close()
            raise StopIteration  # as for a call that ends
        if error is not None:
            return handed.context.run(call.throw, error)
        return handed.context.run(call.send, answer)
    except StopIteration as ended:
        handed.end(ended.value, None)
    except BaseException as raised:  # noqa: BLE001 (as above)
        _forget_frame(raised)
        handed.end(None, raised)
    return None


def _forget_frame(error: BaseException) -> None:
    """Remove the frame that caught an error from it, because it refers to the call."""
    trace = error.__traceback__
    error.__traceback__ = trace and trace.tb_next


def _portions(
    group: Sequence[_Asking],
) -> Iterator[Sequence[_Asking]]:
    """Split a group, so that no exchange is larger than necessary."""
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
"""The senders of this process: one for calls that only yield requests, one for calls that block,
which would delay the others.
"""


def send(handed: Handed[T], *, is_long: bool = False) -> Handed[T]:
    if handed.lost is not None:
        pusher.note(handed)
    try:
        (_long if is_long else _quick).put(handed)
    except RuntimeError:  # no thread could be started
        pusher.over(handed)
        raise
    return handed


def send_from_thread(handed: Handed[T], act: Callable[[], T], hooks: Hooks) -> Handed[T]:
    """Run `act` in a thread, where it may take any time, and return `handed`.

    The threads are those of the running loop, or the framework's one for blocking code.
    """

    def ends() -> None:
        value, error = None, None
        try:
            value = handed.context.run(act)
        except BaseException as raised:  # noqa: BLE001 (the awaiting caller gets it)
            error = raised
        handed.end(value, error)
        wake([handed])

    pusher.note(handed)
    try:
        if hooks.submit is not None:
            hooks.submit(ends)
        else:
            asyncio.get_running_loop().run_in_executor(None, ends)
    except RuntimeError:  # as above
        pusher.over(handed)
        raise
    return handed


async def awaited(call: Call[T], *, is_long: bool = False) -> T:
    """Run a read-only call, and return its result."""
    return await send(Handed(call), is_long=is_long).outcome()


async def asked(ask: Callable[[], T]) -> T:
    """Call a function that only reads, in the thread that sends, and return its result."""
    return await awaited(direct(ask), is_long=True)


async def done(
    here: Callable[[], T],
    call: Callable[[], Call[T]],
    places: Iterable[Connection],
    lost: Lost,
    *,
    is_long: bool = False,
) -> T:
    """Run an operation on these connections: `here`, or as a `call`.

    For a fake it runs at once; for a connection that runs jobs in their push it runs in a thread.
    """
    if connections.stand_in is not None:
        return here()
    at_once = next((each for each in places if each.context.at_once), None)
    if at_once is not None:
        return await send_from_thread(Handed(None, lost), here, at_once.hooks).outcome()
    return await send(Handed(call(), lost), is_long=is_long).outcome()


def _anew() -> None:
    global _quick, _long  # a forked child has none of its parent's threads
    _quick, _long = _Sender("qframe-sender"), _Sender("qframe-long-sender")


forks.in_child(_anew)
