"""Runs a fault scenario as a test: a short run of it, judged by its ledger."""

from __future__ import annotations

import random

from faults import scenario


def passes(name: str, driver: str, *, quick: bool = True) -> None:
    """Fail unless the scenario holds.

    One that lost, invented or settled a job twice fails at once. What a machine that is late can
    cause as well, such as a job that ran again, has to show itself in two runs, of which the second
    has the same seed; `make faults` takes none of it.
    """
    seed = random.SystemRandom().randrange(10**6)
    for last in (False, True):
        verdict, folder = scenario.run(scenario.table()[name], driver, seed, quick=quick)
        print(verdict.line())
        if verdict.ok:
            return
        found = f"{verdict.line()}\n{verdict.violations}\nthe ledger is in {folder}"
        if last or verdict.lost or verdict.ghosts or verdict.doubles:
            raise AssertionError(found)
