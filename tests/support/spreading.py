"""The order of tests that run in several processes of pytest.

Tests of real workers wait most of their time, and are in a few folders. In the order of their
files, the processes of pytest would first all compute and then all wait. None begins a long one at
its end, when the others have nothing left to do meanwhile; the longest come first.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_PROGRAMS = "project"
"""The fixture of tests that start programs; none of these has a fixture that its file shares."""
_UNTIL = 0.85
"""In which part of the tests that each process is given first they are."""
_LONG = 240
"""Seconds of a timeout of its own by which a test is one of the longest."""


def spread(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Give the items with those that start programs evenly among the others."""
    places: list[tuple[float, pytest.Item]] = []
    for programs in (False, True):
        group = [each for each in items if _starts_programs(each) is programs]
        for number, each in enumerate(group):
            share, place = divmod((number + 0.5) / len(group) * processes, 1)
            place *= 0 if _is_long(each) else _UNTIL if programs else 1
            places.append((share + place, each))
    return [each for _, each in sorted(places, key=lambda found: found[0])]


def _starts_programs(item: pytest.Item) -> bool:
    return _PROGRAMS in getattr(item, "fixturenames", ())


def _is_long(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("timeout")
    return marker is not None and bool(marker.args) and marker.args[0] >= _LONG
