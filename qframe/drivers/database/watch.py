"""Tells when a file is written to: Linux's inotify, through the C library."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_IN_MODIFY = 0x2
_READ = 4096


class FileWatch:
    """A descriptor that can be read once the file is written to.

    Meant to be kept: closing one can take the kernel 20 ms.
    """

    def __init__(self, watcher: int) -> None:
        self._watcher = watcher

    def fileno(self) -> int:
        """Give the descriptor to wait on."""
        return self._watcher

    def forget(self) -> None:
        """Make the descriptor unreadable until the next write."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._watcher, _READ)) == _READ:
                pass

    def close(self) -> None:
        """Watch no more."""
        watcher, self._watcher = self._watcher, -1
        if watcher >= 0:
            os.close(watcher)

    def __del__(self) -> None:
        """Close the descriptor of a thread that has ended."""
        self.close()


def watch(file: Path) -> FileWatch | None:
    """Watch a file; None where that is not possible: another system, or no such file."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        return None
    watcher = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if watcher < 0:
        return None
    if libc.inotify_add_watch(watcher, os.fsencode(file), _IN_MODIFY) < 0:
        os.close(watcher)
        return None
    return FileWatch(watcher)
