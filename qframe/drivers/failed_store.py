"""FailedStore: the records of failed jobs, over any backend that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Forget, Operation, Outcome, Record, Result, Step
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
        """Returns the operations that go with the removal of a record of this connection."""
        self.store_of: Callable[[FailedJob], FailedStore] = lambda _: self
        """Returns the store of a record's connection, which may share this place."""

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
        own = self.store_of(record)
        for _ in range(_TRIES):
            result = self._forgotten(record, own)
            if result.outcome is not Outcome.REFUSED or result.key == record.uuid:
                break
        else:
            raise BackendUnavailable(f"what belongs to {record.uuid} is changed again and again")
        if result.applied:
            own.forgotten(record)
        return result.applied

    def forgotten(self, record: FailedJob) -> None:
        """Remove what else is kept of a job of this connection whose record was removed."""
        if self._on_forgotten is not None:
            self._on_forgotten(record)

    def _forgotten(self, record: FailedJob, own: FailedStore) -> Result:
        """Try once to remove a record with what goes with it; `own`: its connection's store."""
        forget = Forget(record.uuid, record.failed_at)
        more = own.forgetting(record)
        if more and own.place is self.place:
            (result,) = own.backend.apply(Step(None, forget, *more))
            return result
        if more:
            (result,) = own.backend.apply(Step(None, *more))
            if not result.applied:
                return result
        (result,) = self.place.apply(Step(None, forget))
        return result

    def drop(self, record: FailedJob) -> bool:
        """Remove the record alone, of a job that goes on. Returns whether it existed."""
        (result,) = self.place.apply(Step(None, Forget(record.uuid, record.failed_at)))
        return result.applied

    def flush(self, before: float | None = None) -> int:
        """Remove all records, or those that failed before an epoch time. Returns how many."""
        removed = 0
        for record in list(self.all()):
            if before is None or record.failed_at < before:
                removed += self.forget(record)
        return removed


def each_place(stores: Iterable[FailedStore]) -> list[FailedStore]:
    """Return failed stores, each place once: connections may share one."""
    found: dict[int, FailedStore] = {}
    for store in stores:
        found.setdefault(id(store.place), store)
    return list(found.values())
