"""What features speak of: a job to be pushed, the end of a reservation, a step in the making."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from qframe.contracts.status import State
from qframe.contracts.step import Operation, Reservation, Step, value

N = TypeVar("N")
T = TypeVar("T")


@value
class Pushing:
    """A job about to be pushed: its payload, decoded and as bytes, and where it goes."""

    message: dict[str, Any]
    raw: bytes
    uuid: str
    queue: str
    delay: float
    retried: bool = False
    """Whether it had failed and is pushed anew."""
    follows: str = ""
    """The uuid of the job in whose step it is pushed: the link before it in a chain."""


@value
class End:
    """How a reservation ends: `state` is what the job's status is from then on.

    Final ones (`COMPLETE`, `SKIPPED`, `FAILED`, `CANCELLED`) remove the job; `RELEASED` is another
    attempt after `delay` seconds, `WAITING` one that is given back uncounted, `BURIED` put aside.
    """

    state: State
    delay: float = 0.0
    remark: str = ""
    """Why, in a few words."""
    error: BaseException | str | None = None
    """What ended the attempt; as text `Type: message`."""
    how: str = ""
    """How the attempt ended, for the history: `error`, `released`, `timed out`, `interrupted`,
    `worker died`."""
    result: Any = None
    """What `handle` gave."""
    refused: bool = False
    """Whether it is given back because it is unknown here, which the history counts."""
    ran: bool = True
    """Whether this attempt ran: else a failure leaves it out of the record."""
    front: bool = False
    """Whether it is released to the head of its queue."""
    priority: int | None = None
    """Its new priority where it is released, on backends that have priorities."""


class Plan(Step):
    """A step in the making, and what is done once it has been applied."""

    operations: list[Operation]

    __slots__ = ("after", "continues", "waited_for")

    def __init__(self, reservation: Reservation | None = None, *operations: Operation) -> None:
        self.reservation = reservation
        self.operations = [*operations]
        self.after: Sequence[Callable[[], None]] = ()
        self.waited_for = False
        """Whether somebody has to wait for what becomes of the step: it may be refused."""
        self.continues = False
        """Whether the job's chain goes on with the step: its batch does not count it yet."""

    def add(self, *operations: Operation) -> None:
        """Add operations."""
        self.operations += operations

    def then(self, *actions: Callable[[], None]) -> None:
        """Add what follows it."""
        self.after = (*self.after, *actions)

    def applied(self) -> None:
        """Do what follows the step."""
        for action in self.after:
            action()


def driven(steps: Generator[N, Any, T], answer: Callable[[N], Any]) -> T:
    """Run what gives what it needs, and is given the answers, also the errors they end in."""
    step: Callable[[Any], N] = steps.send
    said: Any = None
    while True:
        try:
            need = step(said)
        except StopIteration as ended:
            value: T = ended.value
            return value
        try:
            step, said = steps.send, answer(need)
        except BaseException as error:  # noqa: BLE001 (it may have to clean up, and raises)
            step, said = steps.throw, error
