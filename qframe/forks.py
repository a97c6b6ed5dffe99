"""Fork safety: a fork waits for critical sections, and the child gets new locks.

A forked child has one thread, the one that forked. There, a lock of another thread is never
released, a module that it was importing is never ready, and a client library that it was connecting
with may stay locked. So code that does such things, seldom, runs `undisturbed`: a fork waits for
it. All other locks of qframe come from `lock` or `rlock`, and are free in a child; `in_child`
registers what else must start afresh there.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (it registers hooks, see below)
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

log = logging.getLogger("qframe")

_PATIENCE = 3.0
"""Seconds that a fork waits for threads with a request to a server, which may not answer."""
_LONG_PATIENCE = 30.0
"""Seconds that a fork waits for anything else, such as an import."""

T = TypeVar("T")
_numbers = itertools.count()
_locks: dict[int, weakref.ref[Any]] = {}
"""A dictionary, because a `WeakSet` cannot be read while another thread adds to it."""
_before: list[Callable[[], object]] = []
_in_parent: list[Callable[[], object]] = []
_in_child: dict[int, Callable[[], object]] = {}


def lock() -> threading.Lock:
    """Return a lock that is free in a forked child, whoever held it in the parent."""
    return _noted(threading.Lock())


def rlock() -> threading.RLock:
    """Return a reentrant lock; the forking thread keeps it if it holds it."""
    return _noted(threading.RLock())


def _noted(made: T) -> T:
    number = next(_numbers)
    _locks[number] = weakref.ref(made, lambda _: _locks.pop(number, None))
    return made


class cached_property(functools.cached_property[T]):  # noqa: N801 (as the one it stands for)
    """As in `functools`, with a lock (Python 3.11 has one) that is free in a child."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if (held := getattr(self, "lock", None)) is not None:
            _noted(held)


def in_child(act: Callable[[], object]) -> None:
    """Call `act` first in every forked child, in the order of registration."""
    _in_child[next(_numbers)] = act


def around(
    before: Callable[[], object], in_parent: Callable[[], object], child: Callable[[], object]
) -> None:
    """Call these around every fork; `before` after all `undisturbed` code has ended."""
    _before.append(before)
    _in_parent.append(in_parent)
    in_child(child)


def in_child_of(owner: T, act: Callable[[T], object]) -> None:
    """Call `act(owner)` in every forked child, as long as the owner exists.

    `act` must not hold a reference to the owner.
    """
    number = next(_numbers)
    there = weakref.ref(owner, lambda _: _in_child.pop(number, None))

    def done() -> None:
        found = there()
        if found is not None:
            act(found)

    _in_child[number] = done


class PerThread(threading.local):
    """State of each thread, as `begin` sets it. A forked child begins anew."""

    def __init__(self) -> None:
        _of_threads.add(self)
        self.begin()

    def begin(self) -> None:
        """Set the state of this thread; drops a parent's without a word to its server."""
        raise NotImplementedError


_of_threads = weakref.WeakSet[PerThread]()


class _Openings:
    """The threads in `undisturbed` code, and the fork in progress."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())  # a signal handler may dispatch
        self._inside: dict[int, int] = {}
        """The nesting depth of each thread."""
        self._asking = Counter[int]()
        """The number of requests to servers of each thread."""
        self._forking = 0
        """The thread that forks."""
        self.was_clean = True
        """Whether no thread was inside at the last fork."""

    def enter(self, asks: int) -> None:
        me = threading.get_ident()
        with self._changed:
            if me not in self._inside:
                self._changed.wait_for(lambda: self._forking in {0, me})
            self._inside[me] = self._inside.get(me, 0) + 1
            self._asking[me] += asks

    def leave(self, asks: int) -> None:
        me = threading.get_ident()
        with self._changed:
            self._asking[me] -= asks
            depth = self._inside.pop(me, 1) - 1
            if depth:
                self._inside[me] = depth
            else:
                del self._asking[me]
            self._changed.notify_all()

    def before(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking in {0, me}, _PATIENCE)
            self._forking = me
            self.was_clean = self._wait_for_others(me)

    def _wait_for_others(self, me: int) -> bool:
        """Wait until no other thread is inside. Returns whether none is."""
        began = time.monotonic()
        while others := self._inside.keys() - {me}:
            patience = _PATIENCE if all(map(self._asking.get, others)) else _LONG_PATIENCE
            left = began + patience - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(left)
        return True

    def in_parent(self) -> None:
        with self._changed:
            self._forking = 0
            self._changed.notify_all()

    def in_child(self) -> None:
        me = threading.get_ident()
        self._changed = threading.Condition(threading.RLock())
        self._inside = {me: self._inside[me]} if me in self._inside else {}
        self._asking = Counter({me: self._asking[me]})
        self._forking = 0


_openings = _Openings()


@contextlib.contextmanager
def undisturbed(*, asks: bool = False) -> Iterator[None]:
    """Let no fork happen during the body, which should take milliseconds and be rare.

    `asks`: the body waits for a server, which may not answer, so forks wait only shortly for it.
    """
    _openings.enter(asks)
    try:
        yield
    finally:
        _openings.leave(asks)


def was_clean() -> bool:
    """Whether no `undisturbed` code ran at the last fork."""
    return _openings.was_clean


def _prepare() -> None:
    _openings.before()
    _do(_before)


def _go_on() -> None:
    _do(_in_parent)
    _openings.in_parent()


def _renew() -> None:
    _openings.in_child()
    for reference in list(_locks.values()):
        found = reference()
        if found is not None and not _is_mine(found):
            found._at_fork_reinit()  # noqa: SLF001 (as the standard library does with its own)
    _do(list(_in_child.values()))
    _do([each.begin for each in _of_threads])


def _do(acts: Iterable[Callable[[], object]]) -> None:
    for act in acts:
        try:
            act()
        except Exception:
            log.exception("around a fork")


def _is_mine(lock: Any) -> bool:  # noqa: ANN401 (a Lock or an RLock)
    """Whether the forking thread holds the lock and will release it; only an RLock knows."""
    is_owned = getattr(lock, "_is_owned", None)
    return is_owned is not None and bool(is_owned())


# `concurrent.futures.thread` takes a lock before a fork and releases it after. A thread that
# imports it while `_prepare` waits would add the release alone, so it is imported by now.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_prepare, after_in_parent=_go_on, after_in_child=_renew)
