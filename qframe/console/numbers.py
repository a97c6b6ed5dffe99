"""Numbers: the numeric options of the command line; each has a largest sensible value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import typer

from qframe.payload.text import one_line
from qframe.worker import machine

YEAR = 365 * 86400
"""Seconds; no worker waits longer."""
CENTURY = 100 * YEAR
"""Seconds; no job takes longer."""
MOST_HOURS = CENTURY // 3600
MANY = 10**9
"""More jobs, or rows, than any backend holds."""
FOR_THIS_MACHINE = "the cores, memory and limits of this machine bear no more"


class Number:
    """Reads a whole number, or one of seconds, up to `most`, which is asked at each call."""

    def __init__(self, most: int | Callable[[], int], *, is_whole: bool = True) -> None:
        self.__name__ = "integer" if is_whole else "float"
        self._is_whole = is_whole
        self._most = most

    @property
    def most(self) -> int:
        return self._most() if callable(self._most) else self._most

    def __call__(self, given: str | float) -> float:
        """Reads it. Raises `typer.BadParameter` for no number, or a number too large."""
        try:
            number = int(given) if self._is_whole else float(given)
        except ValueError:
            number = math.nan
        if isinstance(number, float) and math.isnan(number):  # it refuses an int that is no float
            kind = "whole number" if self._is_whole else "number"
            raise typer.BadParameter(f"{one_line(str(given), 60)!r} is not a {kind}.")
        if abs(number) > self.most:
            why = f": {FOR_THIS_MACHINE}" if callable(self._most) else ""
            raise typer.BadParameter(
                f"{one_line(str(given), 60)} is not within {self.most:,}{why}."
            )
        return number


def whole(most: int | Callable[[], int], *names: str, **more: Any) -> Any:  # noqa: ANN401 (as typer's own)
    return typer.Option(*names, parser=Number(most), metavar="<int>", **more)


def seconds(*names: str, most: int = YEAR, **more: Any) -> Any:  # noqa: ANN401 (as above)
    """Returns an option that takes a number of seconds, or another number with decimals."""
    return typer.Option(*names, parser=Number(most, is_whole=False), metavar="<float>", **more)


def workers(*names: str, **more: Any) -> Any:  # noqa: ANN401 (as above)
    """Returns an option that takes a number of workers on this machine."""
    return whole(machine.most_processes, *names, **more)
