"""Where a page of docs/ is: `docs_page("alerts.md")`, whichever section it is in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def docs_page(name: str) -> Path:
    """Give the one page of this name.

    Raises:
        LookupError: No page, or more than one, has this name.
    """
    found = sorted((ROOT / "docs").rglob(name))
    if len(found) != 1:
        raise LookupError(f"{len(found)} pages in docs/ are named {name}, not one")
    return found[0]
