"""BrokerMessage: what is published. BrokerJob: what was delivered, leased by its worker's clock."""

from __future__ import annotations

import base64
import binascii
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from qframe.contracts.step import Push, Reservation, value
from qframe.drivers.attempt_log import AttemptEntry

_ID, _ATTEMPTS, _NOTES, _KEPT = "qframe-id", "qframe-attempts", "qframe-notes", "qframe-kept"
_LONGEST_ID = 100


@value
class BrokerMessage:
    """A message to publish. Its headers travel beside `raw`, which stays as it is."""

    id: str
    """Names this push, also when it is published again; a broker that deduplicates is told."""
    queue: str
    raw: bytes
    delay: float = 0.0
    """Seconds; at most the backend's `longest_delay`."""
    priority: int | None = None
    attempts: int = 0
    """How often the message was started before, as another one."""
    notes: bytes = b""
    kept: bool = False
    """Whether it waited as a fact: who pushes it may die, and the next push it again."""

    @classmethod
    def of(cls, push: Push) -> Self:
        return cls(
            push.id or new_id(), push.queue, push.raw, push.delay, push.priority, push.attempts,
            push.notes,
        )  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        """The headers to publish it with: short ASCII texts, except for long notes."""
        headers = {_ID: self.id}
        if self.attempts:
            headers[_ATTEMPTS] = str(self.attempts)
        if self.notes:
            headers[_NOTES] = base64.b64encode(self.notes).decode()
        if self.kept:
            headers[_KEPT] = "1"
        return headers

    @classmethod
    def received(cls, queue: str, raw: bytes, headers: Mapping[str, Any], default_id: str) -> Self:
        """Return the message with these headers; `default_id` for one that others published.

        Headers that qframe did not write are taken for none.
        """
        id_, attempts, notes = (str(headers.get(key, "")) for key in (_ID, _ATTEMPTS, _NOTES))
        is_number = attempts.isdecimal() and len(attempts) < 10  # noqa: PLR2004 (absurd)
        try:
            decoded = base64.b64decode(notes, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        return cls(
            (id_ or default_id)[:_LONGEST_ID],
            queue,
            raw,
            attempts=int(attempts) if is_number else 0,
            notes=decoded,
            kept=_KEPT in headers,
        )

    def copy(self, delay: float, attempts: int, notes: bytes, priority: int | None) -> Self:
        """Return a message of its own that takes the place of this one."""
        return replace(
            self,
            id=new_id(),
            delay=delay,
            attempts=attempts,
            notes=notes,
            priority=self.priority if priority is None else priority,
            kept=True,
        )


def new_id() -> str:
    """Return an id that no other push has."""
    return uuid.uuid4().hex


class BrokerJob(Reservation):
    """One delivery. Its lease ends by the worker's clock, since brokers take late acknowledgements.

    `until` is `math.inf` where the lease lasts as long as the connection: then call `end` when that
    is lost.
    """

    __slots__ = (
        "_mark",
        "deliveries",
        "delivery",
        "due",
        "ends_at",
        "is_deleted",
        "is_ending",
        "is_unsure",
        "known",
        "logged",
        "message",
        "until",
        "worker_died",
    )  # fmt: skip

    def __init__(
        self,
        message: BrokerMessage,
        deliveries: int,
        delivery: Any,  # noqa: ANN401 (whatever the driver acknowledges it by)
        until: float,
    ) -> None:
        super().__init__(
            message.queue,
            message.id,
            message.raw,
            message.attempts + max(0, deliveries - 1),
            message.notes,
        )
        self.message = message
        self.deliveries = deliveries
        """How often the broker has delivered it, this time included."""
        self.delivery = delivery
        """What the driver acknowledges it by."""
        self.until = until
        """When its lease ends, by `Backend.clock`; 0 if it has ended."""
        self.ends_at = math.inf
        """When its lease ends by `Backend.clock`, however it is extended."""
        self.due = 0.0
        """When it may start, by `Backend.clock`, if others delayed it; 0 for at once."""
        self.is_ending = False
        """Whether a thread is about to acknowledge it."""
        self.is_deleted = False
        """Whether the broker has removed it, in a request of which another part failed."""
        self.known: AttemptEntry | None = None
        """Its entry in the log of attempts, as it was last seen."""
        self.is_unsure = False
        """Whether the log may have another one than `known`, as it did not answer."""
        self.logged = deliveries > 1 or message.kept
        """Whether the log may have an entry."""
        self.worker_died = False
        self._mark = ""

    @property
    def fence(self) -> bytes:
        return f"{self.id}:{self.deliveries}".encode()

    @property
    def mark(self) -> str:
        """What this delivery writes its entries with, if its message may be published twice."""
        if self.message.kept and not self._mark:
            self._mark = new_id()[:12]
        return self._mark

    def comes_from_others(self, attempts: int, due: float) -> None:
        """Note what others say of their message: its starts, and when it is due, by the clock.

        `due` is by `Backend.clock`; 0 for at once. Until then it is not reserved, but released.
        """
        self.message = replace(self.message, attempts=attempts)
        self.attempts += attempts
        self.due = due

    def lasts(self, until: float, sure_until: float) -> None:
        """Note until when the lease lasts, and is certain."""
        self.until, self.sure_until = until, sure_until

    def end(self) -> None:
        """Note that the reservation has ended."""
        self.until = self.sure_until = 0.0
