"""Job: what a running job can see of itself and do (Laravel's `Contracts/Queue/Job`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from qframe.contracts.durable import Durable
from qframe.contracts.transaction import AsyncTransaction

if TYPE_CHECKING:
    from logging import LogRecord

    from qframe.contracts.history import History


class Job(Durable, ABC):
    """One job that this process has reserved.

    `ready -> reserved (held) -> started -> deleted | released | buried | failed`

    - A reserved job has a lease: about a second while it is held, `retry_after` seconds once it has
      started. `renew` extends it. When it runs out, the job is ready again.
    - Each reservation is settled once. A second settle raises `JobAlreadySettled`.
    - Settling and renewing are fenced: after another worker has taken the job they raise
      `LeaseLost` and change nothing.
    """

    id: str
    """The backend's own id of the job."""
    uuid: str
    """The payload's uuid; if the payload has none, a uuid made from the backend's id."""
    name: str
    """The display name in the payload."""
    queue: str
    connection_name: str
    raw_body: bytes
    """The payload as it was pushed, byte for byte."""
    failed_with: BaseException | None
    """The error that failed the job, after `fail`."""

    @property
    @abstractmethod
    def payload(self) -> dict[str, Any]:
        """The decoded payload. Raises `InvalidPayload`."""

    @abstractmethod
    def data_for(self, job_class: Any) -> Any:  # noqa: ANN401 (a job class, from a higher layer)
        """Return the payload's data, decrypted if the payload is encrypted.

        Raises `CannotDecrypt`.
        """

    @property
    @abstractmethod
    def history(self) -> History:
        """Where the attempts ran and how they ended; empty if the backend cannot keep it."""

    @abstractmethod
    def attempts(self) -> int:
        """Return how often the job was started, including the current attempt."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the job, which is done. Raises `JobAlreadySettled` or `LeaseLost`."""

    @overload
    def complete(self, within: AsyncTransaction) -> Awaitable[None]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def complete(self, within: object = None) -> None: ...

    @abstractmethod
    def complete(self, within: object = None) -> Awaitable[None] | None:
        """Remove the job, which is done: at once, or with the commit of the caller's transaction.

        `within` takes what `PendingDispatch.within` takes. The rows written in that transaction and
        the removal of the job are committed together or not at all. Commit before `handle` ends;
        otherwise the job counts as failed. After a rollback you may call it again in another
        transaction. With an asynchronous transaction, await the result.

        Raises `LeaseLost` (then commit nothing in the transaction), `InvalidTransaction`, or
        `Unsupported` if the job's queue is not in a database.
        """

    @abstractmethod
    def release(self, delay: float = 0, *, priority: int | None = None) -> None:
        """Make the job ready again after `delay` seconds, or at once. It keeps its attempts.

        `priority` sets a new priority, 0 first, where the backend has priorities.
        Raises `JobAlreadySettled` or `LeaseLost`.
        """

    @abstractmethod
    def bury(self) -> None:
        """Put the job aside until it is kicked. Raises `Unsupported` if the backend cannot."""

    @abstractmethod
    def fail(self, error: BaseException | None = None) -> None:
        """Record the job with `error` in the failed store and remove it from its queue."""

    @abstractmethod
    def renew(self) -> None:
        """Extend the lease of a started job to `retry_after` seconds from now.

        Raises `LeaseLost`.
        """

    @abstractmethod
    def progress(self, done: float, text: str = "") -> None:
        """Record the progress of a tracked job: a number from 0 to 1, and a short text.

        Raises `ValueError` or `TypeError` for any other number.
        """

    records: Callable[[LogRecord], None] | None = None
    """Keeps its log records for its supervisor, if that wants them."""

    @property
    def keeps_log(self) -> bool:
        """Whether the job's status keeps what the job logs."""
        return False

    def note_log(self, line: str) -> None:
        """Add a line to the log in the job's status."""

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned time (aware) of a job that a schedule dispatched; otherwise None."""
        return None

    @property
    @abstractmethod
    def is_deleted(self) -> bool:
        """Whether the job was removed (deleted or failed)."""

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether the job was released to its queue."""

    @property
    @abstractmethod
    def has_failed(self) -> bool:
        """Whether the job has failed."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether a call has found that another worker took the job."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether this reservation has ended, in whatever way."""
