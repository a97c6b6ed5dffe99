"""Person: who runs a command, for those who see later what was done."""

from __future__ import annotations

import getpass

from qframe.drivers import process
from qframe.payload.text import one_line


def person() -> str:
    """Returns the user and the host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in this container
        user = "somebody"
    return one_line(f"{user}@{process.NAME}", 100)
