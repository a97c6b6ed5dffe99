"""FailoverSettings: the settings of a failover connection."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from qframe.config import ConnectionSettings
from qframe.config.values import Wait
from qframe.payload.text import one_line


def _distinct(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has {one_line(name, 60)!r} twice")
    return names


class FailoverSettings(ConnectionSettings):
    """Settings of a connection that pushes to the first of `connections` that answers.

    One that does not is left alone for `retry_down_after` seconds, or for ten times as long as it
    took to fail, if that is longer.
    """

    connections: Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
    retry_down_after: Wait = 5
