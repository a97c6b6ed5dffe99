"""Our no-op job, tracked."""

from __future__ import annotations

from benchmarks.apps.qframe_jobs import Append


class Tracked(Append):
    """A no-op job whose status is kept."""

    track = True
