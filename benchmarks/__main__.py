"""`python -m benchmarks [GROUP ...] [--quick] [--json FILE]`: measure, and print a table."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from benchmarks import groups, report
from benchmarks.groups import concurrency, web, workers, workloads
from benchmarks.places import BenchmarkError, NotHereError
from benchmarks.plan import Plan
from benchmarks.rows import Row
from benchmarks.said import said
from benchmarks.sql.measured import PARTS


class Group(Protocol):
    """What a module of `benchmarks/groups/` offers."""

    TITLE: str

    def facts(self) -> dict[str, str]:
        """Name the versions compared."""
        ...

    def rows(self, plan: Plan) -> list[Row]:
        """Measure everything there is in the group."""
        ...


def found() -> dict[str, Group]:
    """Give the groups there are, by the names of their modules."""
    names = [module.name for module in pkgutil.iter_modules(groups.__path__)]
    return {
        name: cast("Group", importlib.import_module(f"{groups.__name__}.{name}")) for name in names
    }


def _checkout(path: str) -> Path:
    found = Path(path).resolve()
    if not (found / "qframe" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"there is no qframe in {found}")
    return found


def _commit(checkout: Path) -> str:
    return said("git", "-C", str(checkout), "describe", "--always", "--dirty")


def main() -> int:
    """Run the groups asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended
    all_groups = found()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(all_groups))
    parser.add_argument("--quick", action="store_true", help="tiny numbers: does it run at all")
    parser.add_argument("--alone", action="store_true", help="install no peers")
    parser.add_argument(
        "--part", action="append", default=[], metavar="PART",
        choices=[*PARTS, *workloads.PARTS, *concurrency.PARTS, *web.PARTS, *workers.PARTS],
        help="measure this part alone; repeatable: of postgres and mariadb "
        f"{', '.join(PARTS)}; of workloads {', '.join(workloads.PARTS)}; "
        f"of concurrency {', '.join(concurrency.PARTS)}; of web {', '.join(web.PARTS)}; "
        f"of workers {', '.join(workers.PARTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--against",
        type=_checkout,
        metavar="PATH",
        help="a checkout to measure beside (workloads, concurrency)",
    )
    parser.add_argument(
        "--waiting", type=int, metavar="COUNT", help="so many jobs wait (web), a fifth have failed"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers there")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(all_groups):
        parser.error(
            f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(all_groups)}"
        )
    chosen = {name: all_groups[name] for name in options.groups or all_groups}
    plan = replace(
        Plan.quick() if options.quick else Plan(),
        alone=options.alone,
        against=options.against,
        parts=tuple(options.part),
    )
    if options.waiting is not None:
        plan = replace(plan, page_waiting=options.waiting, page_failed=options.waiting // 5)
    facts = report.machine()
    for group in chosen.values():
        facts |= group.facts()
    if plan.against is not None:
        facts["against"] = f"{plan.against}, {_commit(plan.against)}"
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    measured: dict[str, list[Row]] = {}
    try:
        for name, group in chosen.items():
            print(f"\n{group.TITLE}\n", flush=True)
            try:
                measured[name] = group.rows(plan)
                print(report.table(measured[name]), flush=True)
            except NotHereError as error:
                print(f"Not measured: {error}.", flush=True)
    except BenchmarkError as error:
        print(f"a measured process failed:\n{error}", file=sys.stderr)
        return 1
    if options.quick:
        print("\nThese are too few jobs to judge by: --quick only shows that everything runs.")
    if options.json:
        options.json.write_text(
            json.dumps(report.raw(facts, measured, quick=options.quick), indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
