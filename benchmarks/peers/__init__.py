"""The peers: for each its jobs and producer, and the packages of its own environment.

`BENCH_REDIS` says where the Redis is, `BENCH_SQL` where the database is, `BENCH_RABBITMQ` where the
RabbitMQ is, `BENCH_SQS` where the SQS is, `BENCH_MANY` how many jobs a worker may have at once,
where that is not as it comes. `BENCH_TUNED` is set while draining: then each is at its best, where
for everything else it is as it comes. With `BENCH_THREADS` the no-op job of those that have both is
an ordinary function, which they run in a thread. With `BENCH_SAFE` pushes on RabbitMQ are
confirmed, and jobs acknowledged when they have ended. With `BENCH_QUORUM` the queues of one that
has a choice are quorum queues, as ours are.
"""

from __future__ import annotations

import os

REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
SQL = os.environ.get("BENCH_SQL", "")
SQS = os.environ.get("BENCH_SQS", "")
MANY = int(os.environ.get("BENCH_MANY", "0"))
RABBITMQ = os.environ.get("BENCH_RABBITMQ", "")
SAFE = bool(os.environ.get("BENCH_SAFE"))
QUORUM = bool(os.environ.get("BENCH_QUORUM"))
TUNED = bool(os.environ.get("BENCH_TUNED"))
THREADS = bool(os.environ.get("BENCH_THREADS"))
