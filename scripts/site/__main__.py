"""Builds the site: python -m scripts.site [FOLDER]. Anything that is not right is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.site import pages

_ASSET = re.compile(
    r"<(?:script|img|iframe|source|video|link)\b[^>]*?\b(?:src|href|srcset)=\"((?:https?:)?//[^\"]+)\""
)
_STYLE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


def main(words: list[str]) -> int:
    """Write the sources, run Sphinx, and look for what a page would ask another host for."""
    target = Path(words[0]) if words else pages.ROOT / "build" / "site"
    shutil.rmtree(target, ignore_errors=True)
    source, site = target / "source", target / "html"
    source.mkdir(parents=True)
    pages.write(source)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run([*command, str(source), str(site)], check=False)
    if done.returncode:
        return done.returncode
    asked = sorted(set(third_parties(site)))
    if asked:
        print("the site asks other hosts:", *asked, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{site / 'index.html'}")
    return 0


def third_parties(site: Path) -> Iterator[str]:
    """Give what the built files would load from other hosts."""
    for file in site.rglob("*"):
        found = {".html": _ASSET, ".css": _STYLE}.get(file.suffix)
        if found is not None:
            for url in found.findall(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(site)}: {url}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
