"""The order of tests that run in several processes of pytest.

Tests of real workers wait most of their time, and are in a few folders. In the order of their
files, the processes of pytest would first all compute and then all wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_PROGRAMS = "project"
"""The fixture of tests that start programs; none of these has a fixture that its file shares."""


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Give the items with those that start programs evenly among the others."""
    places: list[tuple[float, pytest.Item]] = []
    for wanted in (False, True):
        group = [each for each in items if _starts_programs(each) is wanted]
        places += [((place + 0.5) / len(group), each) for place, each in enumerate(group)]
    return [each for _, each in sorted(places, key=lambda found: found[0])]


def _starts_programs(item: pytest.Item) -> bool:
    return _PROGRAMS in getattr(item, "fixturenames", ())
