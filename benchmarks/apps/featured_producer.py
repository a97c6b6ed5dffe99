"""Dispatches our no-op jobs of the kind that `BENCH_JOB` in the environment names."""

from __future__ import annotations

import itertools
import os
import time

from benchmarks.apps.featured_jobs import KINDS
from benchmarks.apps.qframe_producer import QframeProducer
from qframe import batch, bulk, chain, dispatch


class FeaturedProducer(QframeProducer):
    """Dispatches jobs that are all different."""

    def __init__(self) -> None:
        self._kind = KINDS[os.environ["BENCH_JOB"]]
        self._numbers = itertools.count(time.time_ns())

    def dispatch(self) -> None:
        """Queue one no-op job."""
        dispatch(self._kind(number=next(self._numbers))).send()

    def bulk(self, count: int) -> float:
        """Queue no-op jobs at once, as a batch or a chain where that is the feature.

        Gives how many a second; one before them warms up.
        """
        self.dispatch()
        began = time.perf_counter()
        made = (self._kind(number=next(self._numbers)) for _ in range(count))
        if os.environ["BENCH_JOB"] == "batch":
            batch(made).dispatch()
        elif os.environ["BENCH_JOB"] == "chain":
            chain(list(made)).dispatch()
        else:
            bulk(made)
        return count / (time.perf_counter() - began)


PRODUCER = FeaturedProducer
