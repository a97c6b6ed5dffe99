"""Values: how numbers, times and texts are shown on a page."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from markupsafe import Markup, escape

from qframe.payload import timing
from qframe.payload.text import printable

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def text(value: str) -> Markup:
    return Markup("\n").join(escape(printable(each, 10_000)) for each in value.splitlines())


def lasting(seconds: float | None) -> str:
    """Formats a duration in its two largest units: `5 min 20 s`; "" for None."""
    if seconds is None:
        return ""
    parts = timing.lasting(seconds).split()
    return " ".join(f"{each[:-1]} {_UNITS.get(each[-1], each[-1])}" for each in parts)


_UNITS = {"m": "min"}


def took(seconds: float | None) -> str:
    """Formats a measured time, rounded by less than 1 %: `1.23 s`, `39 h 20 min`."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < _MINUTE:
        return f"{_three_digits(seconds)} s"
    if seconds < _HOUR:
        return lasting(seconds)
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 (has three)


def number(value: float | None) -> str:
    """Formats a number: one decimal below 100, and no 0.0 for what is more."""
    if value is None:
        return ""
    if value >= 100 or value == int(value):  # noqa: PLR2004 (digits enough)
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 0.1 else f"{value:.1g}"  # noqa: PLR2004 (or it is 0.0)


def sentence(value: str) -> str:
    """Returns a text that begins with a capital, unless it may begin with a name."""
    opener = value.partition(" ")[0]
    return f"{opener.capitalize()}{value[len(opener) :]}" if opener in _OPENERS else value


_OPENERS = {
    "a",
    "an",
    "it",
    "new",
    "no",
    "nothing",
    "one",
    "the",
    "there",
    "unknown",
    "version",
    "you",
}


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
