"""The lists of tests that `make test` and .ci/run leave out."""

from __future__ import annotations

import pytest

from tests.support.selection import Selection


@pytest.mark.parametrize(
    ("line", "test", "expected"),
    [
        ("a/test_b.py::test_c", "tests/a/test_b.py::test_c", True),
        ("a/test_b.py::test_c", "tests/a/test_b.py::test_cd", False),
        ("a/test_b.py::test_c", "tests/a/test_b.py::TestX::test_c[1]", True),
        ("a/test_b.py::test_*", "tests/a/test_b.py::test_c", True),
        ("a/*::test_c", "tests/a/test_b.py::test_c", True),
        ("a/*::test_c", "tests/b/test_b.py::test_c", False),
        ("a/test_b.py::* = redis*", "tests/a/test_b.py::test_c[redis-1]", False),
        ("a/test_b.py::* = redis*", "tests/a/test_b.py::test_c[sqlite-1]", True),
        ("a/test_b.py::* = redis* *-2", "tests/a/test_b.py::test_c[sqlite-2]", False),
        ("a/test_b.py::* = redis*", "tests/a/test_b.py::test_has_no_parameters", False),
        ("a/test_b.py::* = exit?3", "tests/a/test_b.py::test_c[exit 3]", False),
        ("# a/test_b.py::test_c", "tests/a/test_b.py::test_c", False),
    ],
)
def test_a_line_moves_what_it_names_but_what_stays(line: str, test: str, *, expected: bool) -> None:
    assert Selection(line).moves(test) is expected


def test_a_line_that_names_no_test_is_known() -> None:
    chosen = Selection("a/test_b.py::test_c = x\na/test_b.py::test_d\na/test_b.py::test_*")
    chosen.moves("tests/a/test_b.py::test_c[x]")
    assert chosen.stale() == ["a/test_b.py::test_d"]
