"""What is printed: the machine, a table per group, the raw numbers as JSON."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.rows import Row

_HEADS = ("measure", "ours", "peer", "ratio", "target", "")


def machine() -> dict[str, str]:
    """Say on what it is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **installed("qframe"),
    }


def installed(*packages: str) -> dict[str, str]:
    """Give the versions of packages."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def table(rows: Sequence[Row]) -> str:
    """Lay rows out as a Markdown table that reads well as it is."""
    lines = [_HEADS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    shown = ["| " + " | ".join(_aligned(line, widths)) + " |" for line in lines]
    rule = "|" + "|".join(
        "-" * (width + 1) + (":" if 0 < column < 4 else "-") for column, width in enumerate(widths)
    )
    return "\n".join((shown[0], rule + "|", *shown[1:]))


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.{2 if row.ratio >= 0.1 else 3}f}"
    verdict = {None: "", True: "ok", False: "MISSED"}[row.met]
    return row.measure, row.ours, row.peer, ratio, row.target, verdict


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if 0 < column < 4 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def raw(facts: dict[str, str], groups: dict[str, list[Row]], *, quick: bool) -> dict[str, Any]:
    """Give everything measured, for `--json`."""
    return {
        "machine": facts,
        "quick": quick,
        "groups": {name: [asdict(row) for row in rows] for name, rows in groups.items()},
    }
