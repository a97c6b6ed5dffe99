"""The pages as the site has them: docs/ itself, parts of the README, and what lies at the root."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from scripts.site import diagrams, reference

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)((?:#[^)\s]*)?)\)")
_FILE = re.compile(r"^```(\w+) file=(\S+)$", re.MULTILINE)
_FROM_README = {
    "Five minutes": "start/five-minutes.md",
}
GENERATED = {f"docs/reference/{name}" for name in reference.PAGES}
_PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}


def write(folder: Path) -> None:
    """Write all of the site's sources into an empty folder."""
    pages = {
        str(page.relative_to(ROOT / "docs")): page for page in sorted((ROOT / "docs").rglob("*.md"))
    }
    for name, page in pages.items():
        _put(folder / name, name, page.read_text(encoding="utf-8"), page.parent)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for title, name in _FROM_README.items():
        body = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", readme, re.DOTALL | re.MULTILINE)
        if body is None:
            raise LookupError(f"README.md has no section {title!r}")
        _put(folder / name, name, f"# {title}\n{body[1]}", ROOT)
    for source, name in _PROJECT.items():
        _put(folder / name, name, (ROOT / source).read_text(encoding="utf-8"), ROOT)
    for name, make in reference.PAGES.items():
        (folder / "reference" / name).write_text(make(), encoding="utf-8")
    for kept in ("grafana", "prometheus", "screenshots"):
        shutil.copytree(ROOT / "docs" / kept, folder / kept)
    shutil.copytree(ROOT / "docs" / "screenshots", folder / "extra" / "screenshots")
    shutil.copy(ROOT / "docs" / "conf.py", folder)


def _put(target: Path, name: str, text: str, source: Path) -> None:
    """Write a page with its links as they are on the site; `source` is the folder it was in."""
    here = Path(name).parent

    def linked(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        if not link or re.match(r"[a-z]+:", link):
            return match[0]
        path = os.path.relpath((source / link).resolve(), ROOT)
        if path == "README.md":
            title = anchor[1:].replace("-", " ")
            found = [page for t, page in _FROM_README.items() if t.lower() == title]
            to, anchor = (found[0] if found else "index.md"), ""
        elif path in _PROJECT:
            to = _PROJECT[path]
        elif path.startswith("docs/") and ((ROOT / path).is_file() or path in GENERATED):
            to = path.removeprefix("docs/")
        elif path == "docs/decisions":
            to = "decisions/README.md"
        else:  # in the repository, which the site is no part of
            return words if path in words else f"{words} (`{path}`)"
        return f"[{words}]({os.path.relpath(to, here)}{anchor})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts = [_FILE.sub(r"```{code-block} \1\n:caption: \2", part) for part in parts]
    text = "".join(p if p.lstrip().startswith("```") else _LINK.sub(linked, p) for p in parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(diagrams.drawn(text), encoding="utf-8")
