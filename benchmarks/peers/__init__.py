"""The peers: for each its jobs and producer, and the packages of its own environment.

`BENCH_REDIS` says where the Redis is. `BENCH_TUNED` is set while draining: then each is at its
best, where for everything else it is as it comes.
"""

from __future__ import annotations

import os

REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
TUNED = bool(os.environ.get("BENCH_TUNED"))
