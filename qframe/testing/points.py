"""Points: tells of what a job does that lasts, before each, by patching such calls while it runs.

Only calls in the job's own context count: what a server does that the test runs in another thread
is not the job's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from qframe.dispatch import draft
from qframe.exceptions import Interruption
from qframe.payload.text import one_line
from qframe.testing.calls import LastingCall, all_calls

reached: ContextVar[Callable[[str], None] | None] = ContextVar("reached", default=None)
"""What is told of the points of the running job, and may raise; None outside of one."""
_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether the call is a part of another one that counts."""
_EXITS = {"__exit__", "__aexit__"}


def listener() -> Callable[[str], None] | None:
    """Return what is told of a call made here; None outside of a job, and within such a call."""
    return None if _inside.get() else reached.get()


def patched() -> contextlib.ExitStack:
    """Patch the calls of all modules that are imported, until the stack is closed."""
    stack = contextlib.ExitStack()
    for each in all_calls():
        stack.enter_context(replaced(each.owner, each.name, _wrapped(each)))
    for owner, name in ((draft, "_push"), (draft.Draft, "send_in_open")):
        stack.enter_context(replaced(owner, name, _dropped(getattr(owner, name))))
    return stack


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:  # noqa: ANN401 (a class or module)
    """Set an attribute of a class or module, and put back what it was."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextlib.contextmanager
def _within() -> Iterator[None]:
    """Count no calls in the body."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class _Teller:
    """Tells of a call before it."""

    def __init__(self, call: LastingCall) -> None:
        self._call = call
        self.exits = call.name in _EXITS
        """Whether it ends a `with` block: it rolls back then, as a lost connection does."""

    def tell(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:  # noqa: ANN401 (a context manager)
        """Tell of a call, which may raise; returns what to make the call in."""
        tell = listener()
        if tell is None:
            return contextlib.nullcontext()
        what = self._call.namer(*args, **keywords)
        if what:
            tell(what)
        return _within() if self._call.is_whole else contextlib.nullcontext()


def _wrapped(of: LastingCall) -> Callable[..., Any]:
    """Return a call that is told of before."""
    call, teller = getattr(of.owner, of.name), _Teller(of)

    @functools.wraps(call)
    async def on_loop(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the call's)
        try:
            counting = teller.tell(args, keywords)
        except Interruption as killed:
            if teller.exits:
                await call(args[0], type(killed), killed, killed.__traceback__)
            raise
        with counting:
            return await call(*args, **keywords)

    @functools.wraps(call)
    def here(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the call's)
        try:
            counting = teller.tell(args, keywords)
        except Interruption as killed:
            if teller.exits:
                call(args[0], type(killed), killed, killed.__traceback__)
            raise
        with counting:
            return call(*args, **keywords)

    return on_loop if inspect.iscoroutinefunction(call) else here


def _dropped(push: Callable[[draft.Draft], Any]) -> Callable[[draft.Draft], Any]:
    """Return the push of a dropped dispatch: a finalizer calls it, from which nothing is raised.

    So a job that is killed there goes on to its next point.
    """

    @functools.wraps(push)
    def here(dropped: draft.Draft) -> Any:  # noqa: ANN401 (as the call's)
        tell = listener()
        if tell is None:
            return push(dropped)
        try:
            tell(f"the dispatch of {one_line(type(dropped.job).__name__, 60)}")
        except Interruption:
            return None
        with _within():
            return push(dropped)

    return here
