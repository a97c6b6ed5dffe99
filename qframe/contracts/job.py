"""The contract of one reserved job (Laravel's `Contracts/Queue/Job`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qframe.contracts.history import History


class Job(ABC):
    """One job, reserved by this process.

    `ready -> reserved (held) -> started -> deleted | released | buried | failed`

    - A reserved job has a lease. Held, it lasts about a second; started, `retry_after` seconds,
      and `renew` prolongs it. When it runs out, the job is ready again.
    - An attempt is counted by the backend when the job *starts*, never while it is only held.
    - Each reservation is settled once. A second settle raises `JobAlreadySettled`.
    - Settling and renewing are fenced: when the lease has passed to another worker they raise
      `LeaseLost` and change nothing, even if the payload is byte for byte the same.
    """

    id: str
    """The backend's own name for the job."""
    uuid: str
    """The payload's uuid; made from the backend's id where the payload has none."""
    name: str
    """What the payload calls the job, for people: its display name."""
    queue: str
    connection_name: str
    failed_with: BaseException | None
    """The error the job was failed with, once it was."""
    raw_body: bytes
    """The payload as it was sent, byte for byte."""

    @property
    @abstractmethod
    def payload(self) -> dict[str, Any]:
        """The decoded payload; raises `InvalidPayload` when it is none."""

    @property
    @abstractmethod
    def history(self) -> History:
        """Where the attempts ran and how they ended; empty where the backend cannot keep it."""

    @abstractmethod
    def attempts(self) -> int:
        """How often the job was started, this attempt included once it has started."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the job: it is done."""

    @abstractmethod
    def release(self, delay: float = 0) -> None:
        """Make the job ready again after `delay` seconds; 0 is at once. Attempts are kept."""

    @abstractmethod
    def retry(self, delay: float, how: str, error: str) -> None:
        """Release after a failed attempt, keeping `how` it ended and its `error` in the history."""

    @abstractmethod
    def give_back(self, delay: float = 0, *, refused: bool = False) -> None:
        """Release with this reservation's start uncounted; without delay to the head of the queue.

        `refused` counts in the history that the job could not be run here. Raises `Unsupported`
        for a started job where the backend cannot uncount.
        """

    @abstractmethod
    def bury(self) -> None:
        """Put the job aside in the backend until it is kicked; else raises `Unsupported`."""

    @abstractmethod
    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        """Record the job with `error` in the failed store, then remove it.

        One atomic step where queue and failed store share a backend; elsewhere recorded first,
        idempotent by uuid. When recording fails, the job is not removed. Without `ran`, this
        reservation's start is left out of the record's attempts.
        """

    @abstractmethod
    def renew(self) -> None:
        """Prolong the lease of a started job to `retry_after` seconds from now."""

    @abstractmethod
    def confirm(self) -> None:
        """Make sure that a start which was not waited for has been counted; does it else."""

    @property
    @abstractmethod
    def is_deleted(self) -> bool:
        """Whether the job was removed (deleted or failed)."""

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether the job went back to its queue."""

    @property
    @abstractmethod
    def has_failed(self) -> bool:
        """Whether the job was failed."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the lease was found to have passed to another worker."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether this reservation has ended in any way."""
