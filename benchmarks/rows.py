"""Rows of the report: two sides' samples, their ratio and the target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Samples = Sequence[float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One measure. `met` is None where there is no target."""

    measure: str
    ours: str
    peer: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    samples: Mapping[str, Samples] = field(default_factory=dict)


def per_second(value: float) -> str:
    """Show a rate."""
    return f"{value:,.0f}/s"


def each_second(value: float) -> str:
    """Show a small rate."""
    return f"{value:.2f}/s"


def each_job(value: float) -> str:
    """Show how often something is done for a job."""
    return f"{value:.3f}"


def milliseconds(value: float) -> str:
    """Show seconds as milliseconds."""
    return f"{value * 1000:,.1f} ms"


def microseconds(value: float) -> str:
    """Show seconds as microseconds."""
    return f"{value * 1e6:,.0f} µs"


def megabytes(value: float) -> str:
    """Show megabytes."""
    return f"{value:.1f} MB"


def percent(value: float) -> str:
    """Show a share."""
    return f"{value * 100:.2f} %"


def compared(
    measure: str,
    ours: Samples,
    peer: Samples,
    shown: Callable[[float], str],
    *,
    at_least: float | None = None,
    below: float | None = None,
) -> Row:
    """Compare two sides, sampled in turn: their medians, and the median ratio of the pairs."""
    ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
    target, met = "", None
    if at_least is not None:
        target, met = f"at least {at_least:g}", ratio >= at_least
    elif below is not None:
        target, met = f"under {below:g}", ratio < below
    return Row(
        measure,
        shown(statistics.median(ours)),
        shown(statistics.median(peer)),
        ratio,
        target,
        met,
        {"ours": ours, "peer": peer},
    )


def limited(
    measure: str,
    ours: Samples,
    shown: Callable[[float], str],
    limit: float,
    *,
    peer: Samples = (),
) -> Row:
    """Hold our median to a limit; the peer's is shown beside it."""
    found = statistics.median(ours)
    theirs = statistics.median(peer) if peer else None
    return Row(
        measure,
        shown(found),
        "" if theirs is None else shown(theirs),
        None if theirs is None else found / theirs,
        f"under {shown(limit)}",
        found < limit,
        {"ours": ours, "peer": peer},
    )


def noted(measure: str, ours: Samples, shown: Callable[[float], str], *, peer: Samples = ()) -> Row:
    """Show a measure that has no target."""
    if peer:
        return compared(measure, ours, peer, shown)
    return Row(measure, shown(statistics.median(ours)), samples={"ours": ours})


def percentile(samples: Samples, share: float) -> float:
    """Give the sample that `share` of all are not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def alternated(sides: Sequence[T], rounds: int) -> Iterator[T]:
    """Give the sides in turn, `rounds` times, each round in the other direction than the last."""
    for number in range(rounds):
        yield from sides if number % 2 == 0 else reversed(sides)
