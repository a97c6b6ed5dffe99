"""Job: what a running job sees of itself (Laravel's `Contracts/Queue/Job`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from qframe.contracts.transaction import AsyncTransaction

if TYPE_CHECKING:
    from qframe.contracts.history import History


class Job(ABC):
    """One job, reserved by this process.

    `ready -> reserved (held) -> started -> deleted | released | buried | failed`

    - A reserved job has a lease. Held, it lasts about a second; started, `retry_after` seconds,
      and `renew` prolongs it. When it runs out, the job is ready again.
    - Each reservation is settled once. A second settle raises `JobAlreadySettled`.
    - Settling and renewing are fenced: when the lease has passed to another worker they raise
      `LeaseLost` and change nothing.
    """

    id: str
    """The backend's own name for the job."""
    uuid: str
    """The payload's uuid; made from the backend's id where the payload has none."""
    name: str
    """What the payload calls the job, for people: its display name."""
    queue: str
    connection_name: str
    raw_body: bytes
    """The payload as it was sent, byte for byte."""
    failed_with: BaseException | None
    """The error the job was failed with, once it was."""

    @property
    @abstractmethod
    def payload(self) -> dict[str, Any]:
        """The decoded payload; raises `InvalidPayload` when it is none."""

    @abstractmethod
    def data_for(self, job_class: Any) -> Any:  # noqa: ANN401 (a job class, which is above this)
        """Give the payload's data, decrypted where it is; raises `CannotDecrypt`."""

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

    @overload
    def complete(self, within: AsyncTransaction) -> Awaitable[None]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def complete(self, within: object = None) -> None: ...

    @abstractmethod
    def complete(self, within: object = None) -> Awaitable[None] | None:
        """Remove the job, which is done: now, or with the commit of a transaction of its own.

        `within` is what `PendingDispatch.within` takes: the job is gone with the rows that it has
        written there, or neither. It has to be committed before `handle` ends; where it is not,
        the job counts as failed. May be said again in another transaction once the one before was
        rolled back. An asynchronous transaction is awaited. Raises `LeaseLost`: then nothing in
        the transaction is to be committed; `InvalidTransaction`, and `Unsupported` where the
        job's queue is in no database.
        """

    @abstractmethod
    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        """Make the job ready again after `delay` seconds; 0 is at once. Attempts are kept.

        `priority` is its new one, 0 first, where the backend has priorities (beanstalkd).
        """

    @abstractmethod
    def bury(self) -> None:
        """Put the job aside in the backend until it is kicked; else raises `Unsupported`."""

    @abstractmethod
    def fail(self, error: BaseException | None = None) -> None:
        """Record the job with `error` in the failed store and remove it."""

    @abstractmethod
    def renew(self) -> None:
        """Prolong the lease of a started job to `retry_after` seconds from now."""

    @abstractmethod
    def progress(self, done: float, text: str = "") -> None:
        """Note how far a tracked job is, from 0 to 1, with a few words.

        Raises `ValueError` or `TypeError` for what is no such number.
        """

    @property
    def keeps_log(self) -> bool:
        """Whether what is logged in the job is kept with its status."""
        return False

    def note_log(self, line: str) -> None:  # noqa: B027 (most keep none)
        """Keep a line that was logged in the job."""

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned time, aware, of a job that a schedule has dispatched; else None."""
        return None

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
