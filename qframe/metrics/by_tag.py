"""Metrics by tag, for the tags that the configuration selects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from qframe.drivers.store import Store
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.payload import tags


def metrics_of(store: Store, connection: str) -> Metrics:
    """Return the metrics of a connection's tags; the tag takes the place of the class."""
    return Metrics(store, f"{connection}/tags")


class TagRecorder:
    """Counts jobs by those of their tags that match a pattern."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.recorder = Recorder()
        self._is_wanted = lru_cache(4096)(
            lambda tag: any(fnmatchcase(tag, each) for each in patterns)
        )

    def _of(self, payload: Mapping[str, Any]) -> Iterator[str]:
        return filter(self._is_wanted, dict.fromkeys(tags.read(payload)))

    def started(self, payload: Mapping[str, Any], queue: str, due: float | None) -> None:
        """Count a start for each tag."""
        for tag in self._of(payload):
            self.recorder.started(tag, queue, due)

    def ended(
        self,
        payload: Mapping[str, Any],
        queue: str,
        outcome: str,
        seconds: float | None,
        *,
        timed_out: bool,
        processor: float | None = None,
        memory: float = 0.0,
    ) -> None:
        """Count the end of a reservation for each tag."""
        for tag in self._of(payload):
            self.recorder.ended(
                tag,
                queue,
                outcome,
                seconds,
                timed_out=timed_out,
                processor=processor,
                memory=memory,
            )
