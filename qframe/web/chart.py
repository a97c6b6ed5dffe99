"""Chart: how many jobs ended and failed, and how long they waited, over time, as SVG.

Widths are in percent and heights in pixels, so that it fits any screen without a script, and its
texts keep their size. A transparent layer has a part for each step, with its numbers on hover.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from qframe.operations.activity import Trend
from qframe.operations.deploys import DeployState
from qframe.payload.text import printable
from qframe.web.values import lasting, number, took

_HEIGHTS = (132, 46, 62)
_MINUTE, _DAY = 60, 86400
_SECONDS = (60, 120, 300, 600, 1800, 3600, 7200, 4 * 3600, 8 * 3600, _DAY, 2 * _DAY, 7 * _DAY)
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_APART = 0.13
"""Part of the width that the names of two deploys are apart."""

Scale = Callable[[float], str]


def chart(trend: Trend, deploys: Sequence[DeployState], *, runs: bool = False) -> Markup:
    """Draws the chart of a trend; with `runs`, also how long jobs ran."""
    steps = len(trend.done)
    minutes = trend.step_seconds / _MINUTE
    ended = [done + failed for done, failed in zip(trend.done, trend.failed, strict=True)]
    rates = [each / minutes for each in ended]
    marks = _marks(deploys, trend)
    each_step = "a minute" if minutes == 1 else f"in each {lasting(trend.step_seconds)}"
    panels = [
        _panel(
            "Throughput, jobs a minute",
            _legend({"pushed": trend.pushed, "ended": ended}),
            f"Jobs that ended, a minute: {_total(ended)} in all, at most {number(max(rates))}",
            _HEIGHTS[0],
            _bars(rates, "done", _HEIGHTS[0], _Top.of(rates, number)),
            marks,
            named=True,
        ),
        _panel(
            f"Failures {each_step}",
            _legend({"failed": trend.failed}),
            f"Jobs that failed {each_step}: {_total(trend.failed)} in all",
            _HEIGHTS[1],
            _bars(trend.failed, "failed", _HEIGHTS[1], _Top.of(trend.failed, number)),
            marks,
        ),
        _times("Wait", "95 of 100 jobs started within", trend.wait_p95, marks),
    ]
    if runs:
        panels.append(_times("Run time", "95 of 100 ran within", trend.run_p95, marks))
    return Markup(
        '<div class="chart" tabindex="0" role="group" aria-label="Throughput, failures and wait; '
        'arrow keys read the numbers">{}{}{}</div>'
    ).format(Markup("").join(panels), _axis(trend), _layer(trend, ended, deploys, steps))


def _times(
    title: str, says: str, values: Sequence[float | None], marks: Sequence[_DeployMark]
) -> Markup:
    known = [each for each in values if each is not None]
    last = took(known[-1]) if known else "no job started"
    label = f"{title}, {says}, over time; now {last}"
    drawn = _line(values, _HEIGHTS[2], _Top.of(known, took, _SECONDS))
    legend = Markup("{} <b>{}</b>").format(says, last)
    return _panel(title, legend, label, _HEIGHTS[2], drawn, marks)


class _DeployMark(NamedTuple):
    """A deploy, at a part of the width from 0 to 1."""

    at: float
    name: str


def _marks(deploys: Iterable[DeployState], trend: Trend) -> list[_DeployMark]:
    whole = trend.step_seconds * len(trend.done)
    found = [
        _DeployMark(
            1 - each.seconds_ago / whole, printable(each.version or each.text or "deploy", 14)
        )
        for each in deploys
        if each.seconds_ago < whole
    ]
    return sorted(found)


class _Top(NamedTuple):
    """A scale from 0 to a round number."""

    value: float
    name: Scale

    @classmethod
    def of(cls, values: Sequence[float], name: Scale, beyond: Sequence[int] = ()) -> _Top:
        most = max(values, default=0.0)
        if not most:
            return cls(1.0, name)
        if beyond and most > beyond[0]:
            return cls(float(next((each for each in beyond if each >= most), most)), name)
        power = 10.0 ** math.floor(math.log10(most))
        return cls(next(part * power for part in _ROUND if part * power >= most), name)


def _panel(
    title: str,
    legend: Markup,
    label: str,
    height: int,
    drawn: Markup,
    marks: Sequence[_DeployMark],
    *,
    named: bool = False,
) -> Markup:
    return Markup(
        "<figure><figcaption><h3>{}</h3><span>{}</span></figcaption>"
        '<svg height="{}" role="img" aria-label="{}">{}{}</svg></figure>'
    ).format(title, legend, height + 1, label, drawn, _drawn_marks(marks, height, named=named))


def _legend(totals: dict[str, Sequence[int]]) -> Markup:
    parts = (Markup("<b>{}</b> {}").format(_total(each), name) for name, each in totals.items())
    return Markup(", ").join(parts)


def _total(values: Iterable[int]) -> str:
    return f"{sum(values):,}"


def _grid(height: int, top: _Top, drawn: Markup) -> Markup:
    """Draws what is measured over the lines of the scale, and below their names."""
    lines = Markup("").join(
        Markup('<line class="{}" x1="0" x2="100%" y1="{}" y2="{}"/>').format(kind, y, y)
        for kind, y in (("grid", 0.5), ("grid", height / 2), ("base", height + 0.5))
    )
    names = Markup("").join(
        Markup('<text x="0" dx="-6" y="{:.0f}" text-anchor="end">{}</text>').format(
            y, top.name(value)
        )
        for value, y in ((top.value, 5), (top.value / 2, height / 2 + 4))
    )
    return lines + drawn + names


def _bars(values: Sequence[float], kind: str, height: int, top: _Top) -> Markup:
    wide, last = 100 / len(values), len(values) - 1
    drawn = Markup("").join(
        Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" y="{:.1f}" height="{:.1f}"/>').format(
            f"{kind} now" if at == last else kind,
            at * wide,
            wide * 0.82,
            height - max(1.5, height * value / top.value),
            max(1.5, height * value / top.value),
        )
        for at, value in enumerate(values)
        if value
    )
    return _grid(height, top, drawn)


def _line(values: Sequence[float | None], height: int, top: _Top) -> Markup:
    """Draws a line through the known values; it ends where some are unknown."""
    wide, drawn = 100 / len(values), Markup("")
    points = [
        None if each is None else ((at + 0.4) * wide, height - height * each / top.value)
        for at, each in enumerate(values)
    ]
    for at, point in enumerate(points):
        if point is None:
            continue
        before = points[at - 1] if at else None
        after = points[at + 1] if at + 1 < len(points) else None
        if before is not None:
            drawn += Markup(
                '<line class="wait" x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>'
            ).format(*before, *point)
        elif after is None:
            drawn += Markup('<circle class="wait" cx="{:.2f}%" cy="{:.1f}" r="2"/>').format(*point)
    return _grid(height, top, drawn)


def _drawn_marks(marks: Sequence[_DeployMark], height: int, *, named: bool) -> Markup:
    """Draws a line at each deploy, and names those that are not too close to the one before."""
    drawn, named_at = Markup(""), -1.0
    for mark in marks:
        drawn += Markup('<line class="mark" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>').format(
            100 * mark.at, height
        )
        if named and mark.at - named_at > _APART:
            named_at = mark.at
            is_late = mark.at > 1 - _APART
            drawn += Markup(
                '<text class="version" x="{:.2f}%" y="11" dx="{}" text-anchor="{}">{}</text>'
            ).format(100 * mark.at, -4 if is_late else 4, "end" if is_late else "start", mark.name)
    return drawn


def _axis(trend: Trend) -> Markup:
    """Names five moments, from the oldest to now."""
    whole = trend.step_seconds * len(trend.done)
    names = Markup("").join(
        Markup('<text{} x="{}%" y="12" text-anchor="{}">{}</text>').format(
            Markup(' class="between"') if at % 2 else "",
            25 * at,
            ("start", "middle", "middle", "middle", "end")[at],
            f"{lasting(whole * (4 - at) / 4)} ago" if at < 4 else "now",  # noqa: PLR2004 (the last)
        )
        for at in range(5)
    )
    return Markup('<svg height="16" aria-hidden="true">{}</svg>').format(names)


def _layer(
    trend: Trend, ended: Sequence[int], deploys: Sequence[DeployState], steps: int
) -> Markup:
    """Draws a transparent part for each step, with its numbers."""
    now = time.time()
    begun = now - now % _MINUTE + _MINUTE - steps * trend.step_seconds
    wide = 100 / steps
    parts = Markup("")
    for at in range(steps):
        first = begun + at * trend.step_seconds
        lines = [
            f"{ended[at]:,} ended, {trend.pushed[at]:,} pushed",
            f"{trend.failed[at]:,} failed",
            f"wait {took(trend.wait_p95[at]) or '-'}, run {took(trend.run_p95[at]) or '-'} (95 %)",
        ]
        oldest = trend.oldest_seconds[at]
        if oldest:
            lines.append(f"the oldest had waited {lasting(oldest)}")
        upto = first + trend.step_seconds
        lines += [
            f"deploy {printable(f'{each.version} {each.text}', 60)}"
            for each in deploys
            if first <= now - each.seconds_ago < upto
        ]
        moment = datetime.fromtimestamp(first, UTC)
        day = f"{moment:%b %d} " if trend.step_seconds > _MINUTE else ""
        lines.append(f"{day}{moment:%H:%M} UTC")
        parts += Markup(
            '<rect x="{:.2f}%" width="{:.2f}%" height="100%" data-at="{:.0f}">'
            "<title>{}</title></rect>"
        ).format(at * wide, wide, first, "\n".join(lines))
    return Markup('<svg class="over" aria-hidden="true">{}</svg>').format(parts)
