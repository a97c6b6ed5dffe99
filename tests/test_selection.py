"""The lists of tests that `make test` and .ci/run leave out."""

from __future__ import annotations

import pytest

from tests.support.selection import Selection

TEST = "tests/a/test_b.py::test_c"


@pytest.mark.parametrize(
    ("line", "test", "expected"),
    [
        ("a/test_b.py::test_c", TEST, True),
        ("a/test_b.py::test_c", f"{TEST}d", False),
        ("a/test_b.py::test_c", "tests/a/test_b.py::TestX::test_c[1]", True),
        ("a/test_b.py::test_*", TEST, True),
        ("a/*::test_c", TEST, True),
        ("a/*::test_c", "tests/b/test_b.py::test_c", False),
        ("# a/test_b.py::test_c", TEST, False),
    ],
)
@pytest.mark.parametrize("but_words", [False, True])
def test_a_line_names_tests(line: str, test: str, *, expected: bool, but_words: bool) -> None:
    assert (test in Selection(line, but_words=but_words)) is expected


@pytest.mark.parametrize(
    ("words", "test", "taken", "moved"),
    [
        ("redis*", f"{TEST}[redis-1]", True, False),
        ("redis*", f"{TEST}[sqlite-1]", False, True),
        ("redis* *-2", f"{TEST}[sqlite-2]", True, False),
        ("exit?3", f"{TEST}[exit 3]", True, False),
        ("redis*", TEST, True, False),
    ],
)
def test_words_are_parametrizations(words: str, test: str, *, taken: bool, moved: bool) -> None:
    assert (test in Selection(f"a/test_b.py::* = {words}")) is taken
    assert (test in Selection(f"a/test_b.py::* = {words}", but_words=True)) is moved


def test_lines_and_words_that_stand_for_no_test_are_known() -> None:
    stale = ["a/test_b.py::test_d", "a/test_b.py::test_* = x gone"]
    chosen = Selection("\n".join(["a/test_b.py::test_c = x", *stale]))
    assert f"{TEST}[x]" in chosen
    assert chosen.stale() == stale
