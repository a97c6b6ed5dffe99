"""FailedStore: the records of failed jobs, over any backend that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Forget, Operation, Outcome, Record, Step
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable

_PAGE = 200
_TRIES = 50


class FailedStore:
    """Failed jobs by uuid. Every method raises `BackendUnavailable`."""

    def __init__(
        self, backend: Backend, on_forgotten: Callable[[FailedJob], None] | None = None
    ) -> None:
        self.backend = backend
        self._on_forgotten = on_forgotten
        """Removes what else is kept of a job whose record was removed."""
        self.forgetting: Callable[[FailedJob], Sequence[Operation]] = lambda _: ()
        """Returns the operations that go with the removal of a record."""

    @property
    def place(self) -> Backend:
        """The backend that keeps the records; several connections may share it."""
        return self.backend.failed if isinstance(self.backend, OrderedBackend) else self.backend

    def add(self, record: FailedJob) -> None:
        """Keep a failed job; replaces a record with the same uuid."""
        self.place.apply(Step(None, Record(record)))

    def find(self, uuid: str) -> FailedJob | None:
        return self.place.find_failed(uuid)

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        """List failed jobs, the latest first, starting behind the uuid `after`."""
        return self.place.list_failed(limit, after, queue)

    def all(self, queue: str | None = None) -> Iterator[FailedJob]:
        """Iterate over all failed jobs, the latest first, each once, even during removals."""
        seen: set[str] = set()
        after: str | None = None
        while True:
            page = self.page(_PAGE, after, queue)
            for record in page:
                if record.uuid not in seen:
                    seen.add(record.uuid)
                    yield record
            if page:
                after = page[-1].uuid
            elif after is None or self.find(after) is not None:
                return
            else:  # the last record of a page was removed, so the next page is empty: start again
                after = None

    def count(self) -> int:
        return self.place.count_failed()

    def forget(self, record: FailedJob) -> bool:
        """Remove one record, but not that of a later failure of the job.

        Returns whether it existed; of two concurrent callers one gets True.
        """
        forget = Forget(record.uuid, record.failed_at)
        for _ in range(_TRIES):
            (result,) = self.place.apply(Step(None, forget, *self.forgetting(record)))
            if result.outcome is not Outcome.REFUSED or result.key == record.uuid:
                break
        else:
            raise BackendUnavailable(f"what belongs to {record.uuid} is changed again and again")
        if result.applied and self._on_forgotten is not None:
            self._on_forgotten(record)
        return result.applied

    def flush(self, before: float | None = None) -> int:
        """Remove all records, or those that failed before an epoch time. Returns how many."""
        removed = 0
        for record in list(self.all()):
            if before is None or record.failed_at < before:
                removed += self.forget(record)
        return removed
