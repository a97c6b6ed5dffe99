"""Markup that no template writes by itself: states, bars, tables whose cells name their columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from qframe.payload.text import printable

_WIDTH, _HEIGHT = 240, 40
_LONG = 30
"""Characters of a name above which it is broken behind its dots."""

# Text of jobs is escaped, so what looks like a tag here comes from a template.
_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th scope=\"col\"[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(td|th scope=\"row\")(?=[ >])")
_TAG = re.compile(r"<[^>]*>")


def labelled(page: str) -> str:
    """Returns a page in which each cell of a table names its column, for the cards on phones."""
    return _TABLE.sub(lambda table: _labelled(table[0]), page)


def _labelled(table: str) -> str:
    head, body, rest = table.partition("<tbody>")
    names = [_TAG.sub("", each) for each in _HEADING.findall(head)]

    def row(found: re.Match[str]) -> str:
        columns = iter(names)
        return _CELL.sub(lambda cell: f'<{cell[1]} data-label="{next(columns, "")}"', found[0])

    return head + body + _ROW.sub(row, rest)


_TONES = {
    "good": ("done", "complete", "finished", "working", "planned"),
    "bad": ("failed", "gone", "late", "refused", "error", "timed out", "worker died", "problem",
            "alert", "new cause"),
    "warn": ("paused", "delayed", "buried", "released", "interrupted", "warning", "suspended"),
    "busy": ("running", "runs", "ready", "pushed", "dispatched", "started"),
}  # fmt: skip
_TONE_OF = {state: tone for tone, states in _TONES.items() for state in states}


def tone(state: str) -> str:
    """Returns the colour of a state, as a class of the sheet; "" for a plain one."""
    return _TONE_OF.get(state.lower(), "")


def badge(state: str, text: str = "") -> Markup:
    """Returns a state as a word in its colour."""
    return Markup('<span class="badge {}">{}</span>').format(
        tone(state), printable(text or state.lower().replace("_", " "), 60)
    )


def dotted(name: str) -> Markup | str:
    """Returns the name of a class; a long one may be broken behind its dots."""
    if len(name) <= _LONG:
        return name
    parts = [escape(printable(each, 10_000)) for each in name.split(".")]
    return Markup(".<wbr>").join(parts)


def bars(values: Sequence[float | None], label: str) -> Markup:
    """Draws numbers as bars, with their values in words for screen readers."""
    known = [each or 0.0 for each in values]
    most = max(known, default=0.0) or 1.0
    wide = _WIDTH / max(1, len(known))
    drawn = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            at * wide, _HEIGHT - _HEIGHT * each / most, wide * 0.8, _HEIGHT * each / most
        )
        for at, each in enumerate(known)
        if each
    )
    return Markup(
        '<svg class="bars" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'preserveAspectRatio="none">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, drawn)
