"""What the programs compared say of themselves."""

from __future__ import annotations

import shutil
import subprocess

_ABSENT = "not installed"


def said(*command: str, word: int = 0) -> str:
    """Run a program and give a word of what it prints: its version."""
    if shutil.which(command[0]) is None:
        return _ABSENT
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return words[word] if len(words) > word else _ABSENT
