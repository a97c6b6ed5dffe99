"""What commands and workers print when a text is not one that stdout can carry."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable

import pytest

from qframe.console import text
from qframe.console.output import Output

Stdout = Callable[[str], io.BytesIO]


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Stdout:
    """Give what makes stdout one of an encoding, and the bytes written to it."""

    def of(encoding: str) -> io.BytesIO:
        written = io.BytesIO()
        stream = io.TextIOWrapper(written, encoding, errors="strict", write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        return written

    return of


def output(*, as_json: bool) -> Output:
    return Output(as_json=as_json, quiet=False, verbose=False)


AWKWARD = ["\ud800", "é😀", "a\x9b2J\u202e", "\x00\n\x7f", "plain"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_json_line_that_cannot_be_encoded_is_escaped_and_silences_nothing(
    stdout: Stdout, encoding: str
) -> None:
    written = stdout(encoding)
    said = output(as_json=True)
    for words in AWKWARD:
        said.notice("gone", words, "red", uuid=words)
    lines = written.getvalue().decode(encoding).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["message"], row["uuid"]) for row in rows] == [(w, w) for w in AWKWARD]
    assert all(line.isprintable() for line in lines)
    assert not said.quiet


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_line_for_people_is_escaped_too(stdout: Stdout, encoding: str) -> None:
    written = stdout(encoding)
    said = output(as_json=False)
    for words in ("\ud800", "é😀", "plain"):
        said.notice("gone", words, "red")
    lines = written.getvalue().decode(encoding).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(r"\ud800")
    assert lines[1].endswith(
        {"utf-8": "é😀", "latin-1": r"é\U0001f600"}.get(encoding, r"\U0001f600")
    )
    assert not said.quiet


def test_a_stream_that_is_closed_is_no_error(stdout: Stdout) -> None:
    written = stdout("utf-8")
    said = output(as_json=True)
    written.close()
    said.notice("gone", "x", "red")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_listing_is_one_json_document_whatever_is_in_it(stdout: Stdout, encoding: str) -> None:
    written = stdout(encoding)
    text.print_json([{"uuid": words} for words in AWKWARD])
    printed = written.getvalue().decode(encoding)
    assert [row["uuid"] for row in json.loads(printed)] == AWKWARD
    assert printed.replace("\n", "").isprintable()


def test_a_line_and_a_table_take_any_text(stdout: Stdout) -> None:
    written = stdout("ascii")
    text.say("é\ud800")
    text.print_rows([{"job": "é\ud800"}], ["job"], empty="")
    assert written.getvalue().decode("ascii").split() == [r"\xe9\ud800", "job", r"\xe9\ud800"]


class _Slow(io.StringIO):
    """A stream whose writer others overtake."""

    def write(self, text: str) -> int:
        for character in text:
            super().write(character)
            if not self.tell() % 7:
                time.sleep(0.0001)
        return len(text)


def test_the_lines_of_several_threads_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Slow()
    monkeypatch.setattr(sys, "stdout", stream)
    said = output(as_json=True)
    words = [f"{number}" * 40 for number in range(4)]

    def say(word: str) -> None:
        for _ in range(5):
            said.notice("told", word, "")

    threads = [threading.Thread(target=say, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sorted(row["message"] for row in rows) == sorted(words * 5)
