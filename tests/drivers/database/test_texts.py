"""Bytes in columns of text: as they are where the column takes them, else marked and in base64."""

from __future__ import annotations

import pytest

from qframe.drivers.database.sql import MARK, as_bytes, as_text


@pytest.mark.parametrize("raw", [b"", b'{"job": "\xc3\xa9"}', b"base65:", b" base64:AAAA"])
def test_text_stays_as_it_is(raw: bytes) -> None:
    assert as_text(raw, nul=False) == raw.decode()


@pytest.mark.parametrize("raw", [b"\xff\x00", b"a\x00b", MARK.encode(), b"base64:AAAA"])
def test_other_bytes_are_marked_and_come_back(raw: bytes) -> None:
    stored = as_text(raw, nul=False)
    assert stored.startswith(MARK)
    assert "\0" not in stored
    assert as_bytes(stored) == raw


def test_a_nul_stays_where_the_server_takes_it() -> None:
    assert as_text(b"a\x00b", nul=True) == "a\0b"


@pytest.mark.parametrize("text", ["base64:no", "base64:not of ours", "base64:\u00e9"])
def test_what_others_wrote_is_read_as_it_is(text: str) -> None:
    assert as_bytes(text) == text.encode()


def test_what_sqlite_gives_is_read_as_it_is() -> None:
    assert as_bytes(b"base64:AAAA") == b"base64:AAAA"
    assert as_bytes(None) == b""
