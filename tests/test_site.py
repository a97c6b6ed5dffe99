"""The site: its diagrams, its links out of docs/, and what it must not ask other hosts for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.site import diagrams, pages, reference
from scripts.site.__main__ import third_parties


def test_a_diagram_has_each_line_and_no_colour_of_its_own() -> None:
    page = "a\n\n```diagram\nb, c\nb -> c: <one>\nc -> c: two\nnote: three\n```\n\nd\n"
    drawn = diagrams.drawn(page)
    assert re.findall(r"<text[^>]*>([^<]*)<", drawn) == ["b", "c", "&lt;one&gt;", "two", "three"]
    assert drawn.startswith("a\n\n<svg ")
    assert "currentColor" in drawn
    assert "#" not in drawn


@pytest.mark.parametrize("line", ["b c", "b -> d: one"])
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=line):
        diagrams.svg(["b, c", line])


def test_the_sources_have_all_pages_and_no_link_out_of_them(tmp_path: Path) -> None:
    pages.write(tmp_path)
    for page in tmp_path.rglob("*.md"):
        for link in re.findall(r"\]\((\.[^)#\s]+)", page.read_text()):
            if not link.endswith(".md"):
                continue
            assert (page.parent / link).resolve().is_relative_to(tmp_path), f"{page}: {link}"
    assert (tmp_path / "start" / "five-minutes.md").read_text().startswith("# Five minutes")
    assert (tmp_path / "concepts" / "guarantees.md").exists()


def test_a_file_of_a_page_is_shown_with_its_name(tmp_path: Path) -> None:
    pages.write(tmp_path)
    page = (tmp_path / "features" / "jobs.md").read_text()
    assert "```{code-block} python\n:caption: mail.py\n" in page


def test_the_reference_is_made_from_the_code() -> None:
    made = {name: make() for name, make in reference.PAGES.items()}
    assert (
        "| `qframe_queue_jobs` | gauge | `connection`, `queue`, `state` |"
        in made["metric-names.md"]
    )
    assert (
        "| `qframe_jobs_pushed_total` | counter | `connection`, `queue`, `job` |"
        in made["metric-names.md"]
    )
    assert '## `[connections.NAME]` with `driver = "redis"`' in made["settings.md"]
    assert "| `queues` | `dict[str, QueueSettings]` | `{}` |" in made["settings.md"]
    assert "| `signing_keys` | `list[SecretStr]` | `[]` |" in made["settings.md"]
    assert "## `qframe work`" in made["commands.md"]
    assert "## `qframe schedule list`" in made["commands.md"]
    assert "autoclass:: qframe.events.JobFailed" in made["events.md"]
    assert "autofunction:: dispatch_if" in made["api.md"]


def test_what_other_hosts_are_asked_for_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://else.where/x">x</a><script src="https://else.where/y"></script>'
        '<link rel="stylesheet" href="_static/z.css"><img alt="" src="//else.where/i.png">'
    )
    (tmp_path / "b.css").write_text("@import 'https://else.where/c.css'; a { b: url(d.png) }")
    found = sorted(each.partition(": ")[2] for each in third_parties(tmp_path))
    assert found == ["//else.where/i.png", "https://else.where/c.css", "https://else.where/y"]
