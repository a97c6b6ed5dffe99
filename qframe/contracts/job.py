"""The contract of one reserved job (Laravel's `Contracts/Queue/Job`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qframe.contracts.history import History
    from qframe.contracts.status import State


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

    def data_for(self, job_class: Any) -> Any:  # noqa: ANN401 (a job class, which is above this)
        """Give the payload's data, decrypted where it is; raises `CannotDecrypt`.

        Also raises `InvalidPayload` where there is no payload.
        """
        del job_class  # who has no keys gives the data as it came
        return self.payload.get("data")

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
    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        """Make the job ready again after `delay` seconds; 0 is at once. Attempts are kept.

        `priority` is its new one, 0 first, for a backend that has priorities (beanstalkd); else it
        keeps the one it has.
        """

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

    # -- of a tracked job; of another one, nothing happens --------------------------------------

    def progress(self, done: float, text: str = "") -> None:  # noqa: B027 (most jobs are not tracked)
        """Note how far the job is, from 0 to 1, with a few words; about ten times a second."""

    def keep_result(self, result: Any) -> None:  # noqa: ANN401, B027 (whatever the job gave)
        """Keep what the job gave, for the note of its end."""

    def ends_as(self, state: State, remark: str) -> None:  # noqa: B027
        """Say that the deletion which follows is no success."""

    def note_start(self) -> None:  # noqa: B027
        """Note the start, where the queue has not (`Queue.noting`).

        Of a unique job, free the lock that lasts until then.
        """

    def note_end(self) -> None:  # noqa: B027
        """Note the deletion with another job's start, where the queue has not.

        Of a unique job, free the lock.
        """

    def catch_up(self) -> None:  # noqa: B027
        """Write a progress that was held back; from another thread, while the job runs.

        Prolong the lock of a unique job.
        """

    def is_replaced(self) -> bool:
        """Whether a later dispatch has taken the place of this debounced job."""
        return False

    def is_over(self) -> bool:
        """Whether the chain of this link has gone on from it: it was done, and comes again."""
        return False

    @property
    def defers(self) -> bool:
        """Whether its deletion may come with the start of the next job; else it is not put off."""
        return True

    def ticket(self) -> bytes | None:
        """Name this started reservation for `Queue.take_up`; None where that cannot be."""
        return None

    def recollect(self) -> None:  # noqa: B027 (most have nothing to look for)
        """Look for a moment whether it has become known how the last attempt ended.

        For a job that is only held, of a backend where that is kept apart from it.
        """

    def recover(self, how: str, error: str) -> None:
        """Retry at once the job of a dead worker: in its old place, or before the others."""
        self.retry(0, how, error)

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
