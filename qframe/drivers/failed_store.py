"""FailedStore: where jobs that ran out of tries are kept, over any backend with failed records."""

from __future__ import annotations

from collections.abc import Iterator

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Forget, Record, Step
from qframe.drivers.ordered import OrderedBackend

_PAGE = 200


class FailedStore:
    """Failed jobs by uuid. Raises `BackendUnavailable`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @property
    def place(self) -> Backend:
        """The backend that keeps them, which connections may share."""
        return self.backend.failed if isinstance(self.backend, OrderedBackend) else self.backend

    def add(self, record: FailedJob) -> None:
        """Keep a failed job; one with the same uuid is replaced."""
        self.place.apply(Step(None, Record(record)))

    def find(self, uuid: str) -> FailedJob | None:
        """Give one failed job."""
        return self.place.find_failed(uuid)

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        """List failed jobs, latest first, those that follow the uuid `after`."""
        return self.place.list_failed(limit, after, queue)

    def all(self, queue: str | None = None) -> Iterator[FailedJob]:
        """List all failed jobs, latest first, each once, also when some are removed meanwhile."""
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
            else:  # the last of a page was removed: nothing follows it, so begin again
                after = None

    def count(self) -> int:
        """Count the failed jobs."""
        return self.place.count_failed()

    def forget(self, uuid: str) -> bool:
        """Remove one; says whether it was there. Of two callers at once, one is told true."""
        (result,) = self.place.apply(Step(None, Forget(uuid)))
        return result.applied

    def flush(self, before: float | None = None) -> int:
        """Remove all, or those that failed before an epoch time; gives how many."""
        removed = 0
        for record in list(self.all()):
            if before is None or record.failed_at < before:
                removed += self.forget(record.uuid)
        return removed
