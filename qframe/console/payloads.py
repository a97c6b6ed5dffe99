"""What `qframe check --payloads` prints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from qframe.operations.payloads import PayloadCheck, places_in_words

_SHOWN = 50


def lines_of(found: PayloadCheck) -> Iterator[str]:
    """Yields what people read, a line each."""
    for each in found.troubles:
        yield f"FAIL     {each.sentence}: {places_in_words(each.places)}"
    if found.others:
        yield f"FAIL     {found.others:,} more cannot be run for yet other reasons"
    for name, why in found.silent.items():
        yield f"FAIL     {name}: {why}"
    for note in (*islice(found.left_out_said(), _SHOWN), *found.notes):
        yield f"note     {note}"
    yield f"payloads {found.counted()}"
