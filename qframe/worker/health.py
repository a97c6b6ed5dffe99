"""Health: what a worker writes of itself every few seconds, for `qframe health`.

`qframe_health` has the format, and reads it. A thread writes that calls no backend: only a process
that is stopped, or code that keeps the interpreter lock, delays it.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import qframe_health
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import ConfigurationError
from qframe_health import HealthRecord

log = logging.getLogger("qframe")

EVERY = 5.0
"""Seconds between two writes."""
STARTING = 60.0
"""Seconds a worker has from its start until it first writes how it stands."""


class Vitals(NamedTuple):
    """How a worker stands: until when its main thread is accounted for, by the monotonic clock."""

    until: float
    ready: bool
    doing: str


class WritesHealth(Protocol):
    """Where a worker writes how it stands; it writes again within so many seconds."""

    def write_health(self, vitals: Vitals, within: float) -> None: ...


class HealthFile:
    """The health file of this process.

    Without a `path` it is in a folder that only this user may write to; if there is none, nothing
    is written. Raises `ConfigurationError` for a path that cannot be written.
    """

    def __init__(self, path: str = "") -> None:
        self._pid = os.getpid()
        self._born = qframe_health.born(self._pid)
        self._is_given = bool(path)
        self._path = Path(path).absolute() if path else self._own_path()
        if path:
            try:
                _check(Path(path))
                self._write(Vitals(time.monotonic() + STARTING, False, "starts"), STARTING)
            except OSError as error:
                raise ConfigurationError(
                    f"the health file {path} cannot be written: {error.strerror or error}"
                ) from None

    def write_health(self, vitals: Vitals, within: float) -> None:
        """Writes how the worker stands. Raises `OSError` if the path was given."""
        try:
            self._write(vitals, within)
        except OSError as error:
            if self._is_given:
                raise
            log.debug("the health file cannot be written: %s", error)

    def _write(self, vitals: Vitals, within: float) -> None:
        now = time.monotonic()
        record = HealthRecord(self._pid, self._born, now, within, *vitals)
        if self._path is None:
            return
        number = _opened(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(number, record.as_bytes(), 0)
        finally:
            os.close(number)

    def remove(self) -> None:
        """Removes the file, unless a later process has taken it over. Never raises."""
        with suppress(OSError, ValueError):
            if self._path is not None and _written(self._path).pid == self._pid:
                self._path.unlink()

    def _own_path(self) -> Path | None:
        for folder in map(Path, qframe_health.folders()):
            with suppress(OSError):
                folder.mkdir(0o700)
            if qframe_health.is_ours(str(folder)):
                _remove_left(folder)
                return folder / str(self._pid)
        log.debug("no folder for the health file: %s", ", ".join(qframe_health.folders()))
        return None


def _check(path: Path) -> None:
    """Raises `OSError` if there is a file that no worker has written."""
    with suppress(FileNotFoundError):
        try:
            _written(path)
        except ValueError as error:
            if path.stat().st_size:
                raise OSError(str(error)) from None


def _written(path: Path) -> HealthRecord:
    """Returns what is in a file. Raises `OSError`, or `ValueError` if it is no health file."""
    number = _opened(path, os.O_RDONLY)
    try:
        return HealthRecord.read(os.read(number, 4096))
    finally:
        os.close(number)


def _opened(path: Path, how: int) -> int:
    """Opens a file of this user, and no link to another. Raises `OSError`."""
    number = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(number)
        raise OSError("it is no file of this user alone")
    return number


def _remove_left(folder: Path) -> None:
    """Removes the files of processes that have ended."""
    with suppress(OSError):
        for each in folder.iterdir():
            if each.name.isdecimal() and not qframe_health.is_taken(int(each.name)):
                with suppress(OSError):
                    each.unlink()


class HealthReport:
    """Writes every few seconds how a worker stands, in a thread, or whenever `beat` is called.

    It may write `late` seconds later than others.
    """

    def __init__(self, look: Callable[[], Vitals], place: WritesHealth, late: float = 0.0) -> None:
        self._look = look
        self._place = place
        self._late = late
        self._over = threading.Event()
        self._has_warned = False

    def start(self) -> None:
        start_thread("qframe-health", self._run)

    def stop(self) -> None:
        self._over.set()

    def beat(self) -> None:
        """Writes once. Never raises."""
        try:
            self._place.write_health(self._look(), qframe_health.WITHIN + self._late)
        except Exception as error:  # noqa: BLE001 (the work must go on)
            if not self._has_warned:
                self._has_warned = True
                log.warning("the health of this worker cannot be written: %s", error)

    def _run(self) -> None:
        self.beat()
        while not self._over.wait(EVERY):
            self.beat()
