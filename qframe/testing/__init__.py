"""qframe.testing: for an application's tests, to see what it dispatches and to run its jobs.

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
    from qframe.testing.batches import fake_batch as fake_batch
    from qframe.testing.draining import Drained as Drained
    from qframe.testing.draining import drain as drain
    from qframe.testing.embedding import embedded as embedded
    from qframe.testing.fakes import Fake as Fake
    from qframe.testing.fakes import fake as fake
    from qframe.testing.overriding import override_resource as override_resource
    from qframe.testing.recording import Dispatched as Dispatched
    from qframe.testing.recording import DispatchedBatch as DispatchedBatch
    from qframe.testing.recording import DispatchedChain as DispatchedChain
    from qframe.testing.recording import DispatchedFlow as DispatchedFlow
    from qframe.testing.running import Ran as Ran
    from qframe.testing.running import run as run
    from qframe.testing.traveling import travel as travel
else:  # or type checkers would accept any name as one of these
    _PLACES = {
        "Dispatched": "recording",
        "DispatchedBatch": "recording",
        "DispatchedChain": "recording",
        "DispatchedFlow": "recording",
        "Drained": "draining",
        "Fake": "fakes",
        "Ran": "running",
        "drain": "draining",
        "embedded": "embedding",
        "fake": "fakes",
        "fake_batch": "batches",
        "override_resource": "overriding",
        "run": "running",
        "travel": "traveling",
    }
    __all__ = list(_PLACES)

    def __getattr__(name: str) -> object:
        """Imports lazily: pytest loads this package wherever qframe is installed."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 (not before it is needed)

        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
