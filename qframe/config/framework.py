"""What a framework sets for the whole process: its settings, and its command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Source = Callable[[], tuple[str, Mapping[str, Any]] | None]


@dataclass(slots=True)
class Framework:
    """The framework of the process. Of no manager: a manager without settings asks it for them."""

    source: Source | None = None
    """Returns a framework's settings and their name, or None if it has none.

    They replace a file that is searched for, not one that is named.
    """
    setting: str = ""
    """The name of what may have a framework's settings, for messages."""
    command_line: str = "qframe"
    """The command line with these settings, for messages."""


framework = Framework()
