"""Parameters with which only `make test-all` runs a test."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: object) -> list[Any]:
    """Give these values as parameters that are slow."""
    return [pytest.param(each, marks=pytest.mark.slow) for each in values]
