"""Values: how numbers, times and texts are shown on a page."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from markupsafe import Markup, escape

from qframe.payload.text import printable
from qframe.payload.timing import lasting

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def text(value: str) -> Markup:
    return Markup("\n").join(escape(printable(each, 10_000)) for each in value.splitlines())


def lasting_or_nothing(seconds: float | None) -> str:
    return "" if seconds is None else lasting(seconds)


def took(seconds: float | None) -> str:
    """Formats a time that may be short."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < _MINUTE else lasting(seconds)


def number(value: float | None) -> str:
    if value is None:
        return ""
    is_whole = value >= 100 or value == int(value)  # noqa: PLR2004 (digits enough)
    return f"{value:,.0f}" if is_whole else f"{value:,.1f}"


def counted(count: int | None, approximate: bool) -> str:
    """Shows how many jobs there are: `~5` if that is an estimate, nothing if it is unknown."""
    return "" if count is None else f"{'~' * approximate}{count:,}"


def ago(moment: str | None) -> Markup | str:
    """Shows a UTC time as one relative to now, with the exact one on hover.

    It changes once a minute at most, so that an open page need not be sent again; the page's
    script shows seconds.
    """
    if not moment:
        return ""
    try:
        at = datetime.fromisoformat(f"{moment}+00:00")
    except ValueError:  # beyond any year
        return moment
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), moment, _relative(at.timestamp())
    )


def _relative(at: float) -> str:
    seconds = time.time() - at
    size = abs(seconds)
    if size < _MINUTE:
        shown = "under a minute"
    elif size < _HOUR:
        shown = f"{size // _MINUTE:.0f} min"
    elif size < _DAY:
        shown = f"{size // _HOUR:.0f} h"
    else:
        shown = f"{size // _DAY:.0f} d"
    return f"{shown} ago" if seconds >= 0 else f"in {shown}"
