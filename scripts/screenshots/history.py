"""History: what was measured in the hour before, and two deploys."""

from __future__ import annotations

import json
import math
import random
import time

from qframe.connection import Connection
from qframe.metrics.deploys import Deploys
from qframe.metrics.kept import PREFIX
from qframe.metrics.series import RUN, WAIT

_CLASSES = {
    ("mail", "shop.mail.SendReceipt"): (310, 0.02),
    ("payments", "shop.payments.ChargeCard"): (110, 0.01),
    ("webhooks", "shop.webhooks.Deliver"): (190, 0.04),
}
"""Jobs a minute, and the part of them that fails, of each queue and class."""
_STALL = range(38, 45)
"""The minutes ago in which little was done, and jobs waited."""


def write(connection: Connection) -> None:
    """Writes an hour of measurements, as its workers would have."""
    chance, now = random.Random(1), time.time()  # noqa: S311 (a picture)
    for ago in range(2, 62):
        rows = [
            [queue, job, _counts(chance, ago, rate, failing)]
            for (queue, job), (rate, failing) in _CLASSES.items()
        ]
        minute = int(now // 60) - ago
        key = f"{PREFIX}part:{connection.name}|{minute:010d}|history"
        connection.store.set(key, json.dumps(rows), 3600.0)
    deploys = Deploys(connection.store)
    deploys.mark("2.4.1", "new receipts", now - 46 * 60)
    deploys.mark("2.4.2", "", now - 20 * 60)


def _counts(chance: random.Random, ago: int, rate: float, failing: float) -> dict[str, int]:
    is_stalled = ago in _STALL
    ended = round(rate * chance.uniform(0.75, 1.2) * (0.15 if is_stalled else 1.0))
    failed = sum(chance.random() < failing * (1 if ago > 20 else 0.4) for _ in range(ended))  # noqa: PLR2004 (the deploy)
    wait, run = (2.5 if is_stalled else 0.06), 0.2
    found = {"pushed": round(rate), "started": ended, "done": ended - failed, "failed": failed}
    for histogram, middle in ((WAIT, wait), (RUN, run)):
        total = 0.0
        for _ in range(ended):
            seconds = middle * math.exp(chance.gauss(0, 0.6))
            total += seconds
            bucket = histogram.bucket(seconds)
            found[bucket] = found.get(bucket, 0) + 1
        found[histogram.total] = round(total * 1e6)
    return found
