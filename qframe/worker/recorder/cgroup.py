"""MemoryEvents: what the cgroup of this process, of version 2 or 1, says of its memory.

It needs no right: where the files cannot be read, nothing is known.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self/cgroup")
_KEPT = 50
_NONE = 1 << 60
"""Bytes from which version 1 means no limit."""
_MEGABYTE = 1024 * 1024
_ROW = re.compile(r"^\d+:([^:\n]*):(.*)$", re.MULTILINE)
"""Controllers and path of a cgroup; version 2 names no controllers."""

Counts = dict[str, int]


class MemoryEvents:
    """Counts of `memory.events`, read now and then, so that what a job has seen can be told."""

    def __init__(self, mount: Path = _MOUNT, proc: Path = _PROC) -> None:
        self._events, self._limits = _places(mount, proc)
        self._known: deque[tuple[float, Counts]] = deque(maxlen=_KEPT)
        self.read_at = 0.0

    def look(self, now: float) -> None:
        """Reads the counts; keeps those that differ from the last ones."""
        self.read_at = now
        counts = self._read()
        if not self._known or counts != self._known[-1][1]:
            self._known.append((now, counts))

    def since(self, moment: float, now: float) -> Counts:
        """Returns by how much each count has risen since a moment, as far as it did."""
        self.look(now)
        before = next(
            (counts for at, counts in reversed(self._known) if at <= moment), self._known[0][1]
        )
        latest = self._known[-1][1]
        rises = {name: count - before.get(name, 0) for name, count in latest.items()}
        return {name: rise for name, rise in rises.items() if rise > 0}

    def _read(self) -> Counts:
        found: Counts = {}
        for name, path in self._events:
            with suppress(OSError, ValueError):
                words = path.read_text("ascii").split()
                pairs = zip(words[::2], words[1::2], strict=False)
                found |= {name: int(words[0])} if name else {key: int(n) for key, n in pairs}
        found.pop("oom_kill_disable", None)
        found.pop("under_oom", None)
        return found

    def limit(self) -> float:
        """Returns the megabytes that the cgroup, or else the machine, allows; 0 if unknown."""
        bounds = []
        for path in self._limits:
            with suppress(OSError, ValueError):  # "max" is no number
                bounds.append(int(path.read_text("ascii")))
        with suppress(AttributeError, OSError, ValueError):
            bounds.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return min((each for each in bounds if 0 < each < _NONE), default=0) / _MEGABYTE


def _places(mount: Path, proc: Path) -> tuple[list[tuple[str, Path]], list[Path]]:
    """Returns the files with counts, each with the name of its one count or "", and with limits."""
    try:
        rows = _ROW.findall(proc.read_text("utf-8", "replace"))
    except OSError:
        return [], []
    paths = {name: path for controllers, path in rows for name in controllers.split(",")}
    folders = _folders(mount / "memory", paths.get("memory"), "memory.limit_in_bytes")
    if folders:
        counts = [("", folders[0] / "memory.oom_control"), ("max", folders[0] / "memory.failcnt")]
        return counts, [each / "memory.limit_in_bytes" for each in folders]
    folders = _folders(mount, paths.get(""), "memory.events")
    counts = [("", each / "memory.events") for each in folders[:1]]
    return counts, [each / "memory.max" for each in folders]


def _folders(root: Path, path: str | None, has: str) -> list[Path]:
    """Returns the folders of a cgroup and of those above it that have a file.

    In a container the path may be that of the host, and only the root is there.
    """
    if path is None:
        return []
    own = root / path.strip("/")
    near = (root,) if ".." in own.parts else (own, *own.parents)
    return [each for each in near if each.is_relative_to(root) and (each / has).exists()]
