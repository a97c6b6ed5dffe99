"""The producer's side of a measure: what is asked on the command line, and timed in here."""

from __future__ import annotations

import json
import random
import sys
import time
from abc import ABC, abstractmethod


class Producer(ABC):
    """Dispatches jobs as one of the sides does; prints what it measured as JSON."""

    @abstractmethod
    def dispatch(self) -> None:
        """Queue one no-op job."""

    @abstractmethod
    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`, ready after `delay`."""

    def many(self, count: int) -> float:
        """Queue no-op jobs one by one and give how many a second; one before them warms up."""
        self.dispatch()
        began = time.perf_counter()
        for _ in range(count):
            self.dispatch()
        return count / (time.perf_counter() - began)

    def spaced(self, count: int, seed: int) -> float:
        """Queue jobs at irregular intervals, each on a worker that is idle by then.

        One no-op job before them warms up.
        """
        self.dispatch()
        chance = random.Random(seed)  # noqa: S311 (the same intervals for both sides)
        for _ in range(count):
            time.sleep(chance.uniform(0.1, 0.3))
            self.dispatch_since(time.time(), 0)
        return 0

    def delayed(self, count: int, seed: int) -> float:
        """Queue delayed jobs, due one after the other at irregular intervals.

        One no-op job before them warms up.
        """
        self.dispatch()
        chance = random.Random(seed)  # noqa: S311 (the same intervals for both sides)
        delay = 1.0
        for _ in range(count):
            delay += chance.uniform(0.1, 0.5)
            self.dispatch_since(time.time() + delay, delay)
        return 0

    def main(self) -> None:
        """Do what the command line asks for: a method's name and its whole numbers."""
        name, *numbers = sys.argv[1:]
        print(json.dumps(getattr(self, name)(*map(int, numbers))))
