"""JobRing: shared memory with the last log lines and stacks of the job that runs in a slot.

The process that runs the job writes, without a system call; its supervisor reads when that process
is dead. Nothing is cleared between two jobs: what is older than a job is not the job's.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import tempfile
import time
from itertools import count

from qframe.jobs.logged import text_of

RING = 64 * 1024
"""Bytes for the job of a slot; the system allocates only pages in use."""
LINES, STACKS = 20, 10

_BEAT = struct.Struct("<d")
_LINE = struct.Struct("<ddI")  # monotonic and epoch time, length
_LINE_WIDE = 512
_LINES_AT = 64
_STACK = struct.Struct("<dI")  # monotonic time, length
_STACK_WIDE = 4096
_STACKS_AT = 12288
_LONGEST_LINE = _LINE_WIDE - _LINE.size
LONGEST_STACK = _STACK_WIDE - _STACK.size


class JobRing:
    """A part of some shared memory, which begins at `start`."""

    def __init__(self, memory: mmap.mmap, start: int = 0) -> None:
        self._memory = memory
        self._start = start
        self._line_numbers, self._stack_numbers = count(), count()

    # -- the job's process writes -----------------------------------------------------------------

    def note(self, record: logging.LogRecord) -> None:
        """Keeps a log record; the oldest one goes."""
        text = f"{record.levelname} {record.name}: {text_of(record)[:_LONGEST_LINE]}"
        body = text[:_LONGEST_LINE].encode("utf-8", "backslashreplace")[:_LONGEST_LINE]
        at = self._start + _LINES_AT + next(self._line_numbers) % LINES * _LINE_WIDE
        self._put(_LINE, at, body, (time.monotonic(), record.created, len(body)))

    def saw(self, stack: bytes) -> None:
        """Keeps a stack, of lines `file:line function`; notes that the process can take some."""
        now, body = time.monotonic(), stack[:LONGEST_STACK]
        at = self._start + _STACKS_AT + next(self._stack_numbers) % STACKS * _STACK_WIDE
        self._put(_STACK, at, body, (now, len(body)))
        _BEAT.pack_into(self._memory, self._start, now)

    def _put(
        self, head: struct.Struct, at: int, body: bytes, fields: tuple[float | int, ...]
    ) -> None:
        """Writes the head last: a process that dies meanwhile leaves an empty entry."""
        memory = self._memory
        memory[at : at + head.size] = bytes(head.size)
        memory[at + head.size : at + head.size + len(body)] = body
        head.pack_into(memory, at, *fields)

    # -- the supervisor reads ---------------------------------------------------------------------

    @property
    def beat(self) -> float:
        """When the last stack was written, by the monotonic clock; 0: none was."""
        moment: float = _BEAT.unpack_from(self._memory, self._start)[0]
        return moment

    def lines(self, since: float) -> list[tuple[float, str]]:
        """Returns the log lines since a moment, each with its epoch time, the earliest first."""
        found = []
        for number in range(LINES):
            at = self._start + _LINES_AT + number * _LINE_WIDE
            moment, created, length = _LINE.unpack_from(self._memory, at)
            if moment >= since > 0 and length <= _LONGEST_LINE:
                body = self._memory[at + _LINE.size : at + _LINE.size + length]
                found.append((moment, created, body.decode("utf-8", "replace")))
        return [(created, text) for _, created, text in sorted(found)]

    def stacks(self, since: float) -> list[tuple[float, list[str]]]:
        """Returns the stacks since a moment, each with its monotonic time, the earliest first."""
        found = []
        for number in range(STACKS):
            at = self._start + _STACKS_AT + number * _STACK_WIDE
            moment, length = _STACK.unpack_from(self._memory, at)
            if moment >= since > 0 and 0 < length <= LONGEST_STACK:
                body = self._memory[at + _STACK.size : at + _STACK.size + length]
                found.append((moment, body.decode("utf-8", "replace").splitlines()))
        return sorted(found)


def memory_file(name: str) -> int:
    """Returns the descriptor of a new empty file that other processes may map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def high_descriptor(descriptor: int) -> int:
    """Returns a copy with a number that a job which closes and opens files hardly gets.

    The copy has the position in the file in common with the first.
    """
    import fcntl  # noqa: PLC0415 (not there on Windows, where this module is only imported)

    for least in (900, 200):
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:  # there may be no such numbers
            continue
    return os.dup(descriptor)
