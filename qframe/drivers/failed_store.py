"""FailedStore: the records of failed jobs, over any backend that keeps them."""

from __future__ import annotations

from collections.abc import Iterator

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Forget, Record, Step
from qframe.drivers.ordered import OrderedBackend

_PAGE = 200


class FailedStore:
    """Failed jobs by uuid. Every method raises `BackendUnavailable`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

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

    def forget(self, uuid: str) -> bool:
        """Remove one record.

        Returns whether it existed; of two concurrent callers one gets True.
        """
        (result,) = self.place.apply(Step(None, Forget(uuid)))
        return result.applied

    def flush(self, before: float | None = None) -> int:
        """Remove all records, or those that failed before an epoch time. Returns how many."""
        removed = 0
        for record in list(self.all()):
            if before is None or record.failed_at < before:
                removed += self.forget(record.uuid)
        return removed
