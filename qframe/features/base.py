"""What features work with: a job to push, the end of a reservation, a step being built."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from qframe.contracts.status import State
from qframe.contracts.step import Delete, Operation, Release, Reservation, Step, value
from qframe.exceptions import BackendUnavailable

DONE_BEFORE = "done before: "
"""How the remark begins with which a job is skipped whose end has been written."""

N = TypeVar("N")
T = TypeVar("T")

_TRIES = 100


@value
class Pushing:
    """A job before its push: its payload, decoded and as bytes, and its destination."""

    message: dict[str, Any]
    raw: bytes
    uuid: str
    queue: str
    delay: float
    retried: bool = False
    """Whether it had failed and is retried by hand."""
    follows: str = ""
    """The uuid of the job whose step pushes it: the link before it in a chain."""


@value
class End:
    """How a reservation ends; `state` becomes the job's status.

    Final states (`COMPLETE`, `SKIPPED`, `FAILED`, `CANCELLED`) remove the job. `RELEASED` is
    followed by another attempt after `delay` seconds, `WAITING` is released uncounted, `BURIED` is
    put aside.
    """

    state: State
    delay: float = 0.0
    remark: str = ""
    """The reason, in a few words."""
    error: BaseException | str | None = None
    """The error that ended the attempt, or the text `Type: message`."""
    how: str = ""
    """How the attempt ended, for the history: `error`, `released`, `timed out`, `interrupted` or
    `worker died`.
    """
    result: Any = None
    """The return value of `handle`."""
    refused: bool = False
    """Whether it is released because the worker does not know it, which the history counts."""
    ran: bool = True
    """Whether this attempt ran; if not, the record of a failure leaves it out."""
    front: bool = False
    """Whether it is released to the head of its queue."""
    priority: int | None = None
    """Its new priority if it is released, on backends that have priorities."""
    suspended: bool = False
    """Whether the job sleeps for `delay`, or waits for `event`."""
    event: str = ""
    """The name of the event that wakes it."""
    set_aside: bool = False
    """Whether it waits for the end of a hold."""

    @property
    def is_repeated(self) -> bool:
        """Whether the job ended before, in a step of which only its deletion is left."""
        return self.state is State.SKIPPED and self.remark.startswith(DONE_BEFORE)


class Plan(Step):
    """A step being built, and the actions to run after it was applied."""

    operations: list[Operation]

    __slots__ = (
        "after", "continues", "instead", "is_alone", "is_awaited", "is_cut_off", "waited_for",
    )  # fmt: skip

    def __init__(self, reservation: Reservation | None = None, *operations: Operation) -> None:
        self.reservation = reservation
        self.operations = [*operations]
        self.after: Sequence[Callable[[], None]] = ()
        self.waited_for = False
        """Whether a caller must wait for the result: the step may be refused."""
        self.continues = False
        """Whether the job's chain continues with the step: its batch does not count it yet."""
        self.is_cut_off = False
        """Whether nothing is kept (any more) of the job's chain, which cannot continue."""
        self.is_awaited = False
        """Whether what a suspended job waits for is there: it is released without its delay."""
        self.is_alone = False
        """Whether it only pushes a job, for a caller that plans it again if it is refused."""
        self.instead: Delete | Release | None = None
        """What becomes of a job that is given back, instead of its release to the front."""

    def add(self, *operations: Operation) -> None:
        self.operations += operations

    def then(self, *actions: Callable[[], None]) -> None:
        self.after = (*self.after, *actions)

    def applied(self) -> None:
        for action in self.after:
            action()


def attempts(what: str) -> Iterator[int]:
    """Count tries at a step that others may overtake, with pauses after the first two.

    Raises `BackendUnavailable`, which names `what` is in contention, after the last.
    """
    for number in range(_TRIES):
        if number > 1:
            time.sleep(random.uniform(0, 0.0005 * min(number, 40)))  # noqa: S311 (not a secret)
        yield number
    raise BackendUnavailable(f"{what} is changed again and again")


def driven(steps: Generator[N, Any, T], answer: Callable[[N], Any]) -> T:
    """Run a generator of requests: send each answer in, or throw its error."""
    step: Callable[[Any], N] = steps.send
    answer_given: Any = None
    while True:
        try:
            need = step(answer_given)
        except StopIteration as ended:
            value: T = ended.value
            return value
        try:
            step, answer_given = steps.send, answer(need)
        except BaseException as error:  # noqa: BLE001 (passed on to the generator, which raises it)
            step, answer_given = steps.throw, error
