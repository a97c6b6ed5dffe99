"""What became of the jobs: the report, and the same without the queue to compare it with."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.stdlib_index.results import Result
from examples.stdlib_index.source import Facts, facts_of, short
from qframe.contracts import FailedJob


@dataclass(frozen=True, slots=True)
class Index:
    """What is known in the end: the facts of each file, or why there are none."""

    facts: dict[str, Facts]
    errors: dict[str, str]

    def differences(self, other: Index) -> list[str]:
        """Name the files about which the two do not say the same."""
        paths = self.facts.keys() | self.errors.keys() | other.facts.keys() | other.errors.keys()
        return [
            f"{short(path)}: {self._about(path)} is not {other._about(path)}"
            for path in sorted(paths)
            if self._about(path) != other._about(path)
        ]

    def _about(self, path: str) -> Facts | str | None:
        return self.facts.get(path) or self.errors.get(path)


def from_queue(results: Sequence[Result], failed: Sequence[FailedJob]) -> Index:
    """Put together what the jobs left: rows, and records in the failed store."""
    return Index(
        facts={result.facts.path: result.facts for result in results},
        errors={_path_of(record): record.exception.splitlines()[-1] for record in failed},
    )


def without_queue(files: Iterable[Path]) -> Index:
    """Compute the same in a plain loop."""
    index = Index(facts={}, errors={})
    for path in files:
        try:
            index.facts[str(path)] = facts_of(path)
        except Exception as error:  # noqa: BLE001 (whatever makes the job fail)
            index.errors[str(path)] = traceback.format_exception_only(error)[-1].strip()
    return index


def show(
    index: Index, results: Sequence[Result], failed: Sequence[FailedJob], seconds: float
) -> None:
    """Print the report."""
    files = index.facts.values()
    jobs = len(results) + len(failed)
    starts = sum(each.attempt for each in results) + sum(each.attempts for each in failed)
    ran_in = Counter(result.pid for result in results)
    ran_in.update(attempt.pid for record in failed for attempt in record.history.attempts)
    lines = {
        "files indexed": f"{len(files):,}",
        "lines": f"{sum(file.lines for file in files):,}",
        "functions": f"{sum(file.functions for file in files):,}",
        "classes": f"{sum(file.classes for file in files):,}",
        "jobs per second": f"{jobs / seconds:,.0f}  ({jobs:,} jobs in {seconds:.1f} s)",
        "retries": f"{starts - jobs:,}",
        "attempts ran in": ", ".join(f"pid {pid}: {n:,}" for pid, n in sorted(ran_in.items())),
        "failed": f"{len(failed):,}",
    }
    for name, value in lines.items():
        print(f"{name:<17}{value}")
    for path, error in sorted(index.errors.items()):
        print(f"  {short(path):<40}  {_in_few_words(error)}")


def _in_few_words(error: str) -> str:
    return error if len(error) <= 80 else f"{error[:77]}..."


def _path_of(record: FailedJob) -> str:
    return str(json.loads(record.payload)["data"]["path"])
