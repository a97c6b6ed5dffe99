"""ProcessUse: the memory and processor time of a process, read once a second; needs no right."""

from __future__ import annotations

import os
from contextlib import suppress

from qframe.contracts.recording import UsedPoint
from qframe.worker import memory

_MOST = 120
_FINE = 60
"""The latest points, which stay a second apart; of older ones, every other goes in the end."""
_WINDOW = 10.0
"""Seconds over which a rise is measured."""
_LEAST = 0.4
_UTIME = 11
"""The place of the processor time after the name in `/proc/PID/stat`."""


class ProcessUse:
    """What one process used. Without `/proc` (macOS) only its end is known."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._points: list[tuple[float, float, float]] = []
        """Moment, megabytes, processor seconds so far."""
        self.is_computing = False
        """Whether its main thread ran, rather than waited for the system, at the last look."""

    def look(self, now: float) -> None:
        with suppress(OSError, ValueError, IndexError):
            megabytes, seconds, self.is_computing = _read(self._pid)
            if megabytes:  # else it is dead, and not reaped yet
                self.add(now, megabytes, seconds)

    def add(self, now: float, megabytes: float, seconds: float) -> None:
        self._points.append((now, megabytes, seconds))
        if len(self._points) > _MOST:
            self._points[:-_FINE] = self._points[:-_FINE:2]

    def ended(self, now: float, most: float, seconds: float) -> None:
        """Adds the end, of which the peak of the memory is known, not the last size."""
        before = [megabytes for _, megabytes, _ in self._points]
        is_new = most > max(before, default=0.0)
        self.add(now, most if is_new else before[-1], seconds)

    def curve(self, since: float, end: float) -> tuple[UsedPoint, ...]:
        """Returns the points since a moment, with the ages they had at `end`."""
        found, before = [], None
        for point in self._points:
            moment, megabytes, seconds = point
            if moment >= since:
                used = 0.0
                if before is not None and moment > before[0]:
                    used = max(0.0, (seconds - before[2]) / (moment - before[0]))
                ago = round(max(0.0, end - moment), 1)
                found.append(UsedPoint(ago, round(megabytes, 1), round(used, 2)))
            before = point
        return tuple(found)

    def rise(self, since: float) -> float:
        """Returns by how many megabytes a second its memory rose in the last seconds."""
        points = [each for each in self._points if each[0] >= since]
        points = [each for each in points if each[0] >= points[-1][0] - _WINDOW]
        if len(points) < 2 or points[-1][0] - points[0][0] < _LEAST:  # noqa: PLR2004 (its ends)
            return 0.0
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _read(pid: int) -> tuple[float, float, bool]:
    """Returns megabytes, processor seconds, and whether it runs. Raises `OSError`."""
    megabytes = memory.resident_of(pid)
    used = memory.of_process(pid, "stat").rpartition(b")")[2].split()
    ticks = int(used[_UTIME]) + int(used[_UTIME + 1])
    return megabytes, ticks / os.sysconf("SC_CLK_TCK"), used[0] == b"R"
