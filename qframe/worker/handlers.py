"""Our signal handlers in this process; giving one back restores the handler it replaced.

A forked child is no worker: in it the replaced handlers come back at once, without a watchdog.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # typeshed does not list it
import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from qframe.drivers import guard, heartbeat
from qframe.worker import watchdog

Handler = Any
"""What the signal module takes and returns: a function, `SIG_DFL`, `SIG_IGN`; None: a C handler."""

_STDERR = 2
_handler_of: Callable[[int], Handler] = _signal.getsignal
"""`signal.getsignal` without its search for an enum: it is called after each job."""

_stacks = 0
"""The signal that shows stacks, if any."""
_taken: dict[int, list[tuple[Handler, Handler]]] = {}
"""By signal, our handlers, the latest last, and the handler each replaced."""
_unblocked: set[int] = set()
"""Those of them that this thread had blocked: who starts a process may block signals in it."""
_held: AbstractSet[int] = frozenset()
"""Those that are blocked by `hold`."""


def take(number: int, handler: Handler) -> None:
    """Installs a handler, and unblocks the signal. Raises `ValueError` off the main thread."""
    before = signal.signal(number, handler)
    _taken.setdefault(number, []).append((handler, before))
    if number not in _held and number in signal.pthread_sigmask(signal.SIG_UNBLOCK, [number]):
        _unblocked.add(number)


def hold(numbers: AbstractSet[int]) -> Callable[[], None]:
    """Blocks signals in this thread until the result is called; `take` unblocks them only then."""
    global _held  # noqa: PLW0603 (the mask is this thread's, which alone takes signals)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    _held = numbers

    def let_go() -> None:
        global _held  # noqa: PLW0603 (as above)
        _held = frozenset()
        signal.pthread_sigmask(signal.SIG_SETMASK, before.difference(_taken, [_stacks]))

    return let_go


def show_stacks(number: int) -> None:
    """Makes a signal write the stacks of all threads. Raises what faulthandler raises."""
    global _stacks  # noqa: PLW0603 (faulthandler's are the process's)
    faulthandler.register(number, file=_STDERR)
    _stacks = number


def give_back(number: int) -> None:
    """Restores the handler from before the last `take`; with the first, what was blocked."""
    mine = _taken.get(number)
    if mine is None:  # this is a fork of the process that took it
        return
    if len(mine) == 1:
        del _taken[number]
        if number in _unblocked:
            _unblocked.remove(number)
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    _set(number, mine.pop()[1])


def taken() -> AbstractSet[int]:
    """Returns the signals that are ours."""
    return frozenset(_taken)


def lost() -> list[int]:
    """Returns our signals that somebody else handles now, or that this thread blocks."""
    blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())  # as `getsignal`, without the enum
    found = []
    for number, mine in _taken.items():  # a comprehension is one more call for each job
        if _handler_of(number) != mine[-1][0] or number in blocked:
            found.append(number)
    return found


def put_back(numbers: Iterable[int]) -> AbstractSet[int]:
    """Takes signals again; on the main thread. Returns those that were only blocked."""
    blocked = set[int]()
    for number in numbers:
        if signal.signal(number, handler := _taken[number][-1][0]) == handler:
            blocked.add(number)
    # What came meanwhile is handled at the end of this call, by our handlers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _taken.keys() | ({_stacks} - {0}))
    return blocked


def _set(number: int, handler: Handler) -> None:
    if handler is not None:
        signal.signal(number, handler)


# -- forks ----------------------------------------------------------------------------------------


class _Forking(threading.local):
    """What a forking thread had blocked before, and what its child is to block."""

    mask: AbstractSet[int] | None = None
    child_mask: AbstractSet[int] = frozenset()


_forking = _Forking()


def _before_fork() -> None:
    """Blocks signals until the fork is over: the child must not run the parent's handlers."""
    guard.hold()
    is_deaf = heartbeat.on_deaf_thread()
    if _taken or is_deaf:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _taken)
        _forking.child_mask = frozenset() if is_deaf else _forking.mask
    watchdog.pause()


def _after_fork_in_parent() -> None:
    watchdog.resume()
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        _forking.mask = None  # the next fork may block nothing
    guard.let_go()


def _after_fork_in_child() -> None:
    global _stacks  # noqa: PLW0603 (the process changed)
    guard.forget_interruption()  # it belongs to the parent's job
    guard.let_go()
    watchdog.forget()
    if _stacks:
        faulthandler.unregister(_stacks)
        _stacks = 0
    if _taken:
        signal.set_wakeup_fd(-1)
    for number, mine in _taken.items():
        if signal.getsignal(number) in [handler for handler, _ in mine]:  # or it is the job's
            _set(number, mine[0][1])
    _taken.clear()
    _unblocked.clear()  # they stay so: a child that nobody can stop helps no one
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.child_mask)
        _forking.mask = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
