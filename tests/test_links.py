"""Each link from one page of this repository to another leads somewhere, to a heading, too."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scripts.site.pages import GENERATED
from tests.support.pages import ROOT

_GENERATED = {ROOT / name for name in GENERATED}
_CODE = re.compile(r"^( *)(`{3,})[^`]*?$.*?^\1\2`*\s*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|(?:src|srcset|href)=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"[a-z]+:")


def _pages() -> list[str]:
    """Give the Markdown files of this repository, also those not added yet."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "*.md"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    names = ran.stdout.split() or [str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")]
    return sorted({name for name in names if (ROOT / name).exists()})


@cache
def _headings(page: Path) -> frozenset[str]:
    """Give the anchors of a page's headings, by GitHub's rules, which the site follows."""
    text = _CODE.sub("", page.read_text())
    seen: Counter[str] = Counter()
    anchors = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    anchors |= set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(anchors)


def test_the_links_of_all_pages_lead_somewhere() -> None:
    wrong = [said for name in _pages() for said in _wrong_links(ROOT / name)]
    assert not wrong, "\n".join(wrong)


def _wrong_links(page: Path) -> Iterator[str]:
    text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", _CODE.sub("", page.read_text()))
    for match in _LINK.finditer(text):
        link = match[1] or match[2]
        if _ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in _GENERATED:  # by `make docs`
            continue
        if not target.is_relative_to(ROOT) or not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in _headings(target):
            yield f"{page.relative_to(ROOT)}: {link}: no such heading"
