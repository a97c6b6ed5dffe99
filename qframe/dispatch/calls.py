"""Calls: what is done for a caller, as a generator that says what it needs of a backend.

Who may block does one by itself, here and now. On an event loop a sender does it beside others, and
what many need goes in few exchanges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from qframe.contracts.backend import Backend
from qframe.contracts.step import Result, Step
from qframe.features.base import Plan, driven

T = TypeVar("T")


class Apply(NamedTuple):
    """Needs the results of steps."""

    backend: Backend
    parts: Sequence[Step]

    def ask(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Ask for this and the like, in one exchange."""
        return self.backend.apply(*parts)


class Read(NamedTuple):
    """Needs the values of facts."""

    backend: Backend
    parts: Sequence[str]

    def ask(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Ask for this and the like, in one exchange."""
        return self.backend.read(*parts)


class CallPause(NamedTuple):
    """Needs some time to pass; 0: lets others come first."""

    seconds: float


Need = Apply | Read | CallPause
Call = Generator[Need, Any, T]
"""Gives what comes of it, and raises what goes wrong. It may also ask a backend by itself."""


def run(call: Call[T]) -> T:
    """Do a call here and now."""
    return driven(call, _answer)


def _answer(need: Need) -> Sequence[Any] | None:
    if not isinstance(need, CallPause):
        return need.ask(need.parts)
    if need.seconds:
        time.sleep(need.seconds)
    return None


def applying(backend: Backend, steps: Generator[Plan, Result, T]) -> Call[T]:
    """Give the call of what gives plans to be applied, and is given their results."""
    step: Callable[[Any], Plan] = steps.send
    said: Any = None
    while True:
        try:
            plan = step(said)
        except StopIteration as ended:
            value: T = ended.value
            return value
        try:
            (result,) = yield Apply(backend, (plan,))
            if result.applied:
                plan.applied()
            step, said = steps.send, result
        except BaseException as error:  # noqa: BLE001 (it may have to clean up, and raises)
            step, said = steps.throw, error


def direct(act: Callable[[], T]) -> Call[T]:
    """Give the call of what asks the backend by itself."""
    yield from ()
    return act()
