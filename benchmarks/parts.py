"""The parts of a group, one after the other: those that the plan names, or all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks.plan import Plan
from benchmarks.rows import Row

T = TypeVar("T")


def measured_parts(
    plan: Plan, bench: T, parts: Mapping[str, Callable[[T], list[Row]]], where: str
) -> list[Row]:
    """Measure the parts by their names; say of each how long it took."""
    found: list[Row] = []
    for name, part in parts.items():
        if plan.parts and name not in plan.parts:
            continue
        began = time.monotonic()
        found += part(bench)
        print(f"{where} {name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found
