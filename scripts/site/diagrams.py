"""Diagrams from text: who tells whom what, one line each, drawn as an SVG in the page's colours.

```diagram
program, backend, worker
program -> backend: dispatch
worker -> worker: runs the job
note: the worker dies
```
"""

from __future__ import annotations

import re
from html import escape

_WIDTH, _ROW, _TOP = 250, 44, 52
_FENCE = re.compile(r"^```diagram\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TELLS = re.compile(r"(.+?) -> (.+?): (.+)")


def drawn(page: str) -> str:
    """Give a page with each block of the language `diagram` drawn."""
    return _FENCE.sub(lambda match: svg(match[1].strip().splitlines()), page)


def svg(lines: list[str]) -> str:
    """Draw one; the first line names those who take part.

    Raises:
        ValueError: A line is neither `a -> b: words` nor `note: words`.
    """
    actors = [each.strip() for each in lines[0].split(",")]
    places = {name: _WIDTH * number + _WIDTH // 2 for number, name in enumerate(actors)}
    width, height = _WIDTH * len(actors), _TOP + _ROW * len(lines)
    said = escape(". ".join(lines[1:]))
    style = f"width:100%;max-width:{width}px;font:14px sans-serif"
    box = f'viewBox="0 0 {width} {height}" style="{style}"'
    colours = 'fill="currentColor" stroke="currentColor"'
    parts = [f'<svg role="img" aria-label="{said}" {box} {colours}>']
    for name, x in places.items():
        parts.append(f'<rect x="{x - 75}" y="4" width="150" height="30" rx="4" fill="none"/>')
        parts.append(_words(x, 24, name, "middle"))
        parts.append(f'<path d="M{x} 34V{height - 8}" stroke-opacity=".35"/>')
    for number, line in enumerate(lines[1:]):
        y = _TOP + _ROW * number + 20
        if line.startswith("note: "):
            parts.append(
                f'<path d="M12 {y}H{width - 12}" stroke-dasharray="4" stroke-opacity=".5"/>'
            )
            parts.append(_words(width // 2, y - 6, line.removeprefix("note: "), "middle"))
            continue
        match = _TELLS.fullmatch(line)
        if match is None or not {match[1], match[2]} <= places.keys():
            raise ValueError(f"a diagram has no line as this: {line}")
        parts += _arrow(places[match[1]], places[match[2]], y, match[3])
    return "".join([*parts, "</svg>"])


def _arrow(start: int, end: int, y: int, words: str) -> list[str]:
    if start == end:
        side = 1 if start <= _WIDTH else -1
        anchor = "start" if side > 0 else "end"
        dot = f'<circle cx="{start}" cy="{y}" r="4"/>'
        return [dot, _words(start + 10 * side, y + 5, words, anchor)]
    head = 8 if end < start else -8
    path = f"M{start} {y}H{end}m{head} -5l{-head} 5l{head} 5"
    return [f'<path d="{path}" fill="none"/>', _words((start + end) // 2, y - 6, words, "middle")]


def _words(x: int, y: int, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" stroke="none">{escape(words)}</text>'
