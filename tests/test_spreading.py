"""Tests that start programs are spread over the shares of pytest's processes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.support.spreading import spread


def _programs(items: Sequence[Any]) -> list[bool]:
    return ["project" in each.fixturenames for each in items]


def _items(count: int, *fixtures: str, timeout: int | None = None) -> list[Any]:
    marker = timeout and SimpleNamespace(args=[timeout])
    return [
        SimpleNamespace(fixturenames=fixtures, number=each, get_closest_marker=lambda _: marker)
        for each in range(count)
    ]


def test_each_share_has_as_many_of_both_and_ends_with_those_that_compute() -> None:
    items = [*_items(80, "tmp_path"), *_items(40, "project", "tmp_path")]
    found = spread(items, 4)
    assert sorted(map(id, found)) == sorted(map(id, items))
    for share in (found[first : first + 30] for first in range(0, 120, 30)):
        programs = _programs(share)
        assert sum(programs) == 10
        assert sum(programs[:15]) in range(5, 8)
        assert not any(programs[-3:])


def test_the_order_of_each_kind_is_kept() -> None:
    computing, waiting = _items(7), _items(3, "project")
    found = spread([*waiting, *computing], 2)
    assert [each for each in found if each in computing] == computing
    assert [each for each in found if each in waiting] == waiting


def test_one_kind_alone_and_nothing_are_left_as_they_are() -> None:
    items = _items(5)
    assert spread(items, 3) == items
    assert spread([], 3) == []


def test_the_longest_come_first_in_each_share() -> None:
    items = [*_items(40), *_items(2, timeout=600), *_items(20, "project")]
    found = spread(items, 2)
    assert sorted(map(id, found)) == sorted(map(id, items))
    places = [place for place, each in enumerate(found) if each in items[40:42]]
    assert all(place in {0, 1, 31, 32} for place in places), places
