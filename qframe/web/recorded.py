"""Recorded: the memory and the processor of a job's last seconds, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from qframe.operations.recordings import RecordingState

_HEIGHT = 46


def drawn(state: RecordingState) -> Markup:
    """Draws both curves; "" if fewer than two moments are known."""
    if len(state.curve) < 2:  # noqa: PLR2004 (a line has two ends)
        return Markup("")
    ago = [each.seconds_before_end for each in state.curve]
    sizes = [each.megabytes for each in state.curve]
    used = [100 * each.processor for each in state.curve]
    span = f"from {ago[0]:.0f} to {ago[-1]:.1f} s before its end"
    limit = f" of {state.limit_megabytes:,.0f}" if state.limit_megabytes else ""
    return Markup('<div class="recorded">{}{}</div>').format(
        _panel(
            "Memory",
            f"{sizes[-1]:,.0f}{limit} MB",
            f"at most {max(sizes):,.0f} MB, {span}",
            ago,
            sizes,
        ),
        _panel("Processor", f"{used[-1]:.0f} %", f"at most {max(used):.0f} %, {span}", ago, used),
    )


def _panel(
    title: str, last: str, says: str, ago: Sequence[float], values: Sequence[float]
) -> Markup:
    first, whole = ago[0], (ago[0] - ago[-1]) or 1.0
    most = max(*values, 1e-9)
    points = [
        (100 * (first - at) / whole, _HEIGHT - (_HEIGHT - 4) * max(0.0, value) / most)
        for at, value in zip(ago, values, strict=True)
    ]
    lines = Markup("").join(
        Markup('<line x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>').format(*start, *end)
        for start, end in pairwise(points)
    )
    return Markup(
        "<figure><figcaption>{} <b>{}</b></figcaption>"
        '<svg height="{}" role="img" aria-label="{}: {}">{}</svg></figure>'
    ).format(title, last, _HEIGHT + 1, title, says, lines)
