"""What `qframe check --payloads` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qframe.operations.payloads import PayloadCheck
from qframe.payload.text import count_of


def lines_of(found: PayloadCheck) -> Iterator[str]:
    """Yields what people read, a line each."""
    for each in found.troubles:
        yield f"FAIL     {each.sentence}: {_places(each.places)}"
    if found.others:
        yield f"FAIL     {found.others:,} more cannot be run for yet other reasons"
    for name, why in found.silent.items():
        yield f"FAIL     {name}: {why}"
    for name, count in sorted(found.left_out.items(), key=lambda each: -each[1])[:_SHOWN]:
        job, _, key = name.rpartition(".")
        yield f"note     {count:,} of {job} have `{key}`, which is left out: it has no such field"
    for note in found.notes:
        yield f"note     {note}"
    counted = [f"{count_of(found.read, 'payload', 'payloads')} read"]
    if found.upgraded:
        counted.append(f"{found.upgraded:,} to be carried over by upgrade")
    if found.unchecked:
        counted.append(f"{found.unchecked:,} carried over once they have results of other jobs")
    if found.foreign:
        counted.append(f"{found.foreign:,} of other programs passed over")
    yield f"payloads {', '.join(counted)}"


_SHOWN = 50


def _places(places: Mapping[str, int]) -> str:
    """Return where they are: `20 ready in database:mail, 11 failed in database:mail`."""
    most = sorted(places.items(), key=lambda each: -each[1])
    shown = [f"{count:,} {where}" for where, count in most[:3]]
    return ", ".join([*shown, *(["..."] if len(most) > len(shown) else [])])
