"""The job as its own process sees it: what settles it there is noted, and done by the worker."""

from __future__ import annotations

from qframe.contracts.step import APPLIED
from qframe.drivers.guard import guarded
from qframe.features import status
from qframe.features.base import End, Plan
from qframe.features.reserved import ReservedJob
from qframe.jobs import tracking
from qframe.payload.text import printable
from qframe.worker.isolation.channel import ChildChannel
from qframe.worker.isolation.errors import packed_end


class IsolatedJob(ReservedJob):
    """A job whose lease is kept, and whose end is brought about, by the worker."""

    def __init__(self, job: ReservedJob, channel: ChildChannel) -> None:
        super().__init__(job.context, job.reservation)
        self._history = job.history
        self._channel = channel
        # The worker keeps the lease, and ends this process where it is lost.
        self.reservation.sure_until = float("inf")

    def settle(self, end: End) -> None:
        """Tell the worker, which settles it when the job has ended."""
        with guarded(), self._moving:
            self._check_open()
            self._channel.tell({"say": "intent", **packed_end(end)})
            self.was_settled(end)

    def was_settled(self, end: End) -> None:
        """Take over from the worker how it was settled."""
        self._conclude(end, Plan(), APPLIED)

    def renew(self) -> None:
        """Have the worker do it, which does so now and then by itself."""
        self._check_open()
        self._channel.tell({"say": "renew"})

    def progress(self, done: float, text: str = "") -> None:
        """Tell the worker."""
        tracking.checked_progress(done, text)
        if self.features:
            shown = printable(text, status.MAX_TEXT)
            self._channel.tell({"say": "progress", "done": done, "text": shown})
