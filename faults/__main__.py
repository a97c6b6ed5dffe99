"""`python -m faults [SCENARIO ...]`: break things while jobs run, and say what became of them."""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys

from faults import scenario
from faults.backends import BACKENDS
from faults.site import Site


def main() -> int:
    """Run the scenarios asked for; exit 1 where anything was violated."""
    table = scenario.table()
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(table))
    parser.add_argument("--driver", choices=BACKENDS, default="redis")
    parser.add_argument("--seed", type=int, help="repeat a run's choices")
    parser.add_argument("--rounds", type=int, default=1, help="run each so often, other seeds")
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--concurrency", type=int, default=1, help="jobs at once in each worker")
    parser.add_argument("--jobs", type=int, default=0, help="about so many jobs (D1)")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(table):
        parser.error(
            f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(table)}"
        )
    if options.list:
        print("\n".join(f"{each.name:4} {each.title}" for each in table.values()))
        return 0
    logging.getLogger("qframe").addHandler(logging.NullHandler())  # that of this process
    Site.concurrency = options.concurrency
    Site.wanted = options.jobs
    chosen = [table[name] for name in options.scenarios or table]
    violated = 0
    for each in chosen:
        if each.backend(options.driver) is None:
            print(f"{each.name} {each.title}: not run, {options.driver} is no {min(each.needs)}")
            continue
        for turn in range(options.rounds):
            seed = _seed(options.seed, turn)
            violated += not _run(each, options.driver, seed, quick=options.quick)
    if violated:
        print(f"{violated} violated")
    return int(bool(violated))


def _seed(given: int | None, turn: int) -> int:
    return random.SystemRandom().randrange(10**6) if given is None else given + turn


def _run(which: scenario.Scenario, driver: str, seed: int, *, quick: bool) -> bool:
    verdict, folder = scenario.run(which, driver, seed, quick=quick)
    print(verdict.line(), flush=True)
    for violation in verdict.violations:
        print(f"    {violation}", flush=True)
    if not verdict.ok:
        print(f"    the ledger and all output are in {folder}", flush=True)
    return verdict.ok


def _told_to_end(*_: object) -> None:
    sys.exit(1)  # by which every server and worker is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _told_to_end)
    sys.exit(main())
