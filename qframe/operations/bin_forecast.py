"""BinForecast: what of the jobs that an act would remove could be taken back, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from qframe.connection import Connection
from qframe.contracts.browsing import Place
from qframe.contracts.failed import FailedJob
from qframe.features.binned import OF_CANCELLED
from qframe.features.flow import NodePlace
from qframe.features.flow_undo import is_over
from qframe.manager import QueueManager
from qframe.operations.bin import BinAction
from qframe.operations.binning import is_internal, why_not_waiting
from qframe.payload.text import count_of

_PAGE = 500


def room_in_words(manager: QueueManager, connections: Iterable[Connection], *, waits: bool) -> str:
    """Returns whether what is about to be removed can be taken back, and how much of it.

    `waits`: whether it is about jobs that wait, rather than failed ones.
    """
    act = BinAction(manager, "", "", "")
    room, refused = 0, dict[str, None]()
    for each in connections:
        at = act.at(each)
        why = at.refusal() or (why_not_waiting(each) if waits else "")
        if why:
            refused[why] = None
        else:
            room += at.room
    minutes = manager.settings.bin.seconds / 60
    parts = [f"within {minutes:g} min, up to {room:,} jobs"] if room else []
    return "; ".join([*parts, *(f"not possible: {why}" for why in refused)])


class BinForecast:
    """What of some jobs could be taken back: `add` each, then ask for the words."""

    def __init__(self, manager: QueueManager, *, is_on: bool = True) -> None:
        self._manager = manager
        self.is_on = is_on and manager.settings.bin.seconds > 0
        self._actions = BinAction(manager, "", "", "", is_on=is_on)
        self.kept = 0
        self.lost: Counter[str] = Counter()
        self._over: dict[tuple[str, str], bool] = {}
        """Whether a flow was cancelled."""

    def add(self, connection: Connection, raw: bytes, more: int = 0, *, waits: bool = True) -> None:
        """Adds a job that waits, or has failed."""
        at = self._actions.at(connection)
        size = len(raw) + more
        why = at.refusal(size)
        if not why and waits and b'"flow"' in raw and self._is_of_cancelled(connection, raw):
            why = OF_CANCELLED
        if not why:
            at.count(size)
            self.kept += 1
        else:
            self.lost[why] += 1

    def _is_of_cancelled(self, connection: Connection, raw: bytes) -> bool:
        context = connection.context
        place = NodePlace.of(context.as_it_is(raw, "").message)
        if place is None:
            return False
        flow = connection.name, place.flow
        if flow not in self._over:
            self._over[flow] = is_over(context, place)
        return self._over[flow]

    def add_failed(self, record: FailedJob) -> int:
        """Adds a failed job. Returns 1, for who counts them."""
        at = self._actions.of_failed(record)
        if at is None:
            self.add_lost(1, "its connection is not configured any more")
        else:
            self.add(at.connection, record.payload, len(record.exception), waits=False)
        return 1

    def add_lost(self, count: int, why: str) -> None:
        if count > 0:
            self.lost[why] += count

    def add_queue(self, connection: Connection, queue: str) -> None:
        """Adds the ready and delayed jobs of a queue, as far as they are read."""
        sizes = connection.sizes(queue)
        count = sizes.ready + sizes.delayed
        why = self._actions.at(connection).refusal() or why_not_waiting(connection)
        if why:
            self.add_lost(count, why)
            return
        seen = 0
        for place in (Place.READY, Place.DELAYED):
            after = ""
            while not self._actions.at(connection).refusal():
                page = connection.backend.browse(queue, place, _PAGE, after)
                for each in page.found:
                    if not is_internal(each.raw_body):  # what a flow needs to go on stays
                        self.add(connection, each.raw_body)
                seen, after = seen + len(page.found), page.after
                if not after:
                    break
        if why := self._actions.at(connection).refusal():
            self.add_lost(count - seen, why)

    def words(self) -> str:
        """Returns what a question says of them, in brackets; "" if there is no bin."""
        if not self.is_on:
            return " for good" if self.lost.total() else ""
        minutes = self._manager.settings.bin.seconds / 60
        parts = [
            f"{count_of(count, 'job', 'jobs')} for good: {why}" for why, count in self.lost.items()
        ]
        if self.kept:
            parts.insert(0, f"undo brings back {self.kept:,} within {minutes:g} min")
        return f" ({'; '.join(parts)})" if parts else ""
