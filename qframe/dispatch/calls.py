"""Call: an operation as a generator of requests to a backend.

A caller that may block runs it directly. On an event loop a sender thread runs many together, and
combines their requests into few exchanges.
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
    """Requests the results of steps."""

    backend: Backend
    parts: Sequence[Step]

    def ask(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Send this and similar requests in one exchange."""
        return self.backend.apply(*parts)


class Read(NamedTuple):
    """Requests the values of facts."""

    backend: Backend
    parts: Sequence[str]

    def ask(self, parts: Sequence[Any]) -> Sequence[Any]:
        return self.backend.read(*parts)


class CallPause(NamedTuple):
    """Requests a pause in seconds; 0 lets other calls run first."""

    seconds: float


Need = Apply | Read | CallPause
Call = Generator[Need, Any, T]
"""Returns the result, or raises. It may also call a backend directly."""


def run(call: Call[T]) -> T:
    return driven(call, _answer)


def _answer(need: Need) -> Sequence[Any] | None:
    if not isinstance(need, CallPause):
        return need.ask(need.parts)
    if need.seconds:
        time.sleep(need.seconds)
    return None


def applying(backend: Backend, steps: Generator[Plan, Result, T]) -> Call[T]:
    """Return the call of a generator that yields plans and receives their results."""
    step: Callable[[Any], Plan] = steps.send
    answer_given: Any = None
    while True:
        try:
            plan = step(answer_given)
        except StopIteration as ended:
            value: T = ended.value
            return value
        try:
            (result,) = yield Apply(backend, (plan,))
            if result.applied:
                plan.applied()
            step, answer_given = steps.send, result
        except BaseException as error:  # noqa: BLE001 (passed on to the generator, which raises it)
            step, answer_given = steps.throw, error


def direct(act: Callable[[], T]) -> Call[T]:
    """Return the call of a function that calls the backend directly."""
    yield from ()
    return act()
