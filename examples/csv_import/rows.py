"""The file: what Python's `unicodedata` knows of each character, as a careless export writes it."""

from __future__ import annotations

import csv
import io
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = ("code", "character", "name", "category", "width", "value")
LAST = 0x20000
DAMAGED = 1009
"""Each line of this number, counted through the file, is cut in half."""
FOREIGN = 0xE9
"""The line of this character is in another encoding."""
_LEFT_OUT = ("CJK ", "HANGUL SYLLABLE")


@dataclass(frozen=True, slots=True)
class Row:
    """One character."""

    code: int
    name: str
    category: str
    width: str
    value: float | None


@dataclass(slots=True)
class Slice:
    """What is in a part of the file: rows, and why others are none."""

    rows: list[Row]
    bad: Counter[str]


def write_file(file: Path, last: int = LAST) -> int:
    """Write all characters before `last`, and give how many lines there are, the header included.

    Ideographs and Hangul, whose names say nothing, are left out. Control characters have no name:
    these rows are bad by nature.
    """
    lines = [_line(HEADER)]
    foreign = 0
    for code in range(last):
        character = chr(code)
        category = unicodedata.category(character)
        name = unicodedata.name(character, "")
        if not (name or category == "Cc") or name.startswith(_LEFT_OUT):
            continue
        shown = "" if category == "Cc" else character
        width = unicodedata.east_asian_width(character)
        value = unicodedata.numeric(character, "")
        line = _line((f"{code:04X}", shown, name, category, width, str(value)))
        if len(lines) % DAMAGED == 0:
            line = f"{line[: len(line) // 2]}\n"
        if code == FOREIGN:
            foreign = len(lines)
        lines.append(line)
    made = [line.encode() for line in lines]
    made[foreign] = made[foreign].replace(chr(FOREIGN).encode(), _foreign())
    file.write_bytes(b"".join(made))
    return len(lines)


def repair(file: Path) -> None:
    """Put the line in another encoding right; all others stay where they are."""
    file.write_bytes(file.read_bytes().replace(_foreign(), chr(FOREIGN).encode()))


def slices(file: Path, lines: int) -> Iterator[tuple[int, int]]:
    """Cut a file into parts of so many lines: where each begins, and its length, in bytes."""
    with file.open("rb") as source:
        end = len(source.readline())  # the header
        while part := list(itertools.islice(source, lines)):
            start, end = end, end + sum(map(len, part))
            yield start, end - start


def read_slice(file: Path, start: int, length: int) -> Slice:
    """Read a part of the file; raises `UnicodeDecodeError` where it is not UTF-8."""
    with file.open("rb") as source:
        source.seek(start)
        text = source.read(length).decode()
    found = Slice([], Counter())
    for fields in csv.reader(io.StringIO(text, newline="")):
        try:
            found.rows.append(_row(fields))
        except ValueError as error:
            found.bad[str(error)] += 1
    return found


def _row(fields: list[str]) -> Row:
    """Check a row; raises `ValueError` that says what is wrong with it."""
    if len(fields) != len(HEADER):
        raise ValueError("cut off")
    code, _, name, category, width, value = fields
    if not name:
        raise ValueError("no name")
    return Row(int(code, 16), name, category, width, float(value) if value else None)


def _line(fields: tuple[str, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue()


def _foreign() -> bytes:
    """Give the character as Latin-1 has it, filled up to the same length."""
    return chr(FOREIGN).encode("latin-1") + b" "
