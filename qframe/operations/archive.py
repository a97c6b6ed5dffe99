"""Archive: a doctor's report as a zip file with one page to read and the same as JSON."""

from __future__ import annotations

import html
import io
import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from qframe.operations.doctor import DoctorReport
from qframe.payload.text import printable

PAGE, DATA = "report.html", "report.json"
_LONGEST = 40_000
_MOST_ROWS = 1000
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;
color:#1f2430;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid #c9cdd6}
table{border-collapse:collapse;margin:.4rem 0}
th,td{text-align:left;vertical-align:top;padding:.2rem .6rem;border:1px solid #d9dce3}
th{background:#f3f4f7;font-weight:600}
pre{background:#f3f4f7;padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}
nav a{margin-right:.8rem}.none{color:#5b6270}div{overflow-x:auto}
"""


def file_name(moment: float) -> str:
    """Return the name of an archive that is made at a moment."""
    return f"qframe-doctor-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(moment))}.zip"


def packed(report: DoctorReport) -> bytes:
    """Return a report as a zip file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PAGE, page(report))
        archive.writestr(DATA, json.dumps(report.model_dump(mode="json"), indent=1))
    return made.getvalue()


def page(report: DoctorReport) -> str:
    """Return a report as a page that needs no script and nothing from elsewhere."""
    return "\n".join(_page(report)) + "\n"


def _page(report: DoctorReport) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    yield f"<title>qframe doctor</title><style>{_STYLE}</style></head><body><main>"
    yield f"<h1>qframe doctor</h1><p>Read at {_text(report.made_at)} UTC.</p>"
    names = [*report.sections]
    links = (f'<a href="#part{at}">{_text(name)}</a>' for at, name in enumerate(names))
    yield f'<nav aria-label="Parts">{" ".join(links)}</nav>'
    if report.unread:
        yield _part("unread", "not read", report.unread)
    for at, name in enumerate(names):
        yield _part(f"part{at}", name, report.sections[name])
    yield "</main></body></html>"


def _part(key: str, name: str, value: Any) -> str:  # noqa: ANN401 (any JSON value)
    """Return a section, which scrolls by itself, also by keyboard."""
    return (
        f'<h2 id="{key}">{_text(name[:1].upper() + name[1:])}</h2>'
        f'<div tabindex="0" role="region" aria-labelledby="{key}">{_shown(value)}</div>'
    )


def _shown(value: Any) -> str:  # noqa: ANN401 (any JSON value)
    if isinstance(value, Mapping):
        return _of_facts(value) if value else _none()
    if isinstance(value, list):
        return _of_rows(value) if value else _none()
    if value is None or value == "":
        return _none()
    if isinstance(value, str) and "\n" in value:
        return f"<pre>{_text(value)}</pre>"
    return _text(value)


def _none() -> str:
    return '<span class="none">none</span>'


def _of_facts(facts: Mapping[str, Any]) -> str:
    rows = (
        f'<tr><th scope="row">{_text(key)}</th><td>{_shown(each)}</td></tr>'
        for key, each in facts.items()
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _of_rows(rows: list[Any]) -> str:
    if not all(isinstance(each, Mapping) for each in rows):
        return f"<pre>{_text(json.dumps(rows[:_MOST_ROWS], ensure_ascii=False))}</pre>"
    columns = list(dict.fromkeys(key for each in rows for key in each))
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_shown(row.get(each))}</td>' for each in columns)}</tr>"
        for row in rows[:_MOST_ROWS]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    lines = str(value)[:_LONGEST].split("\n")
    return html.escape("\n".join(printable(each, _LONGEST) for each in lines))
