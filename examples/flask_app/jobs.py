"""The job: what is done to a text after the request has been answered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flask import current_app

from qframe import queueable


@queueable(queue="texts", tries=3, timeout=60)
def count_words(name: str) -> None:
    """Write how often each word is in a text. To run twice does no harm."""
    folder: Path = current_app.config["TEXTS"]
    counted = Counter((folder / f"{name}.txt").read_text().lower().split())
    lines = (f"{count} {word}\n" for word, count in counted.most_common())
    (folder / f"{name}.counts").write_text("".join(lines))
