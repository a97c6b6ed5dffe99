"""Prefetch: how many jobs are reserved ahead: about as many as finish in 20 ms."""

from __future__ import annotations

_SPAN = 0.02
_MOST = 100
_WEIGHT = 0.2
_BRIEF = 0.001


class Prefetch:
    """One while jobs are slow or unknown, more while they are short."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self._seconds = _SPAN

    def ran(self, seconds: float) -> None:
        """Learns from a job that took `seconds`; a slow one counts at once and in full."""
        if seconds >= _SPAN:
            self._seconds = seconds
        else:
            before = min(self._seconds, _SPAN)
            self._seconds = before + _WEIGHT * (seconds - before)

    @property
    def are_brief(self) -> bool:
        """Whether the last jobs took about a millisecond or less."""
        return self._seconds < _BRIEF

    def limit(self) -> int:
        return max(1, min(_MOST, int(self.slots * _SPAN / max(self._seconds, 1e-6))))
