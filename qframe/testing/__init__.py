"""qframe.testing: what an application's tests need to see what it dispatches and to run its jobs.

```python
from qframe.testing import drain, fake, run

with fake() as queued:
    sign_up("ann@example.com")
    queued.assert_dispatched(SendWelcome, times=1, where=lambda job: job.user_id == 7)

run(SendWelcome(user_id=7)).assert_done()
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.testing.batches import fake_batch
    from qframe.testing.draining import Drained, drain
    from qframe.testing.embedding import embedded
    from qframe.testing.fakes import Fake, fake
    from qframe.testing.recording import Dispatched, DispatchedBatch, DispatchedChain
    from qframe.testing.running import Ran, run

__all__ = [
    "Dispatched",
    "DispatchedBatch",
    "DispatchedChain",
    "Drained",
    "Fake",
    "Ran",
    "drain",
    "embedded",
    "fake",
    "fake_batch",
    "run",
]


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    _PLACES = {
        "batches": ["fake_batch"],
        "draining": ["Drained", "drain"],
        "embedding": ["embedded"],
        "fakes": ["Fake", "fake"],
        "recording": ["Dispatched", "DispatchedBatch", "DispatchedChain"],
        "running": ["Ran", "run"],
    }

    def __getattr__(name: str) -> object:
        """Import it when it is asked for: pytest loads this package where qframe is installed."""
        place = next((place for place, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 (not before it is needed)

        return getattr(importlib.import_module(f"{__name__}.{place}"), name)
