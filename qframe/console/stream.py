"""Stream: a worker's output. Jobs cannot take it away, and an error does not end it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import stat
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from qframe import forks
from qframe.console.logs import unwritten
from qframe.console.text import as_json
from qframe.drivers.heartbeat import start_thread
from qframe.payload import tracebacks
from qframe.payload.text import count_of

_MOST = 1 << 20
"""Bytes kept while they cannot be written."""
_ATOMIC = 4096
"""Bytes a pipe takes as a whole (PIPE_BUF of Linux): the lines of several workers stay whole."""
_CHUNK = 1 << 16
_PATIENCE = 0.5
"""Seconds a full buffer waits for a reader that was reading."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PARTING = 5.0
"""Seconds without progress that the last lines are given."""


def _plain(count: int, why: str) -> str:
    return f"  {count_of(count, 'line', 'lines')} left out: {why}\n"


class Stream:
    """Writes to the target of a standard stream as it was at first; `write` takes whole lines.

    It has a descriptor of its own: jobs may do what they like to `sys.stdout` or descriptor 1. It
    raises nothing. What cannot be written is kept, up to 1 MiB, and a thread writes it once that is
    possible; further lines are dropped, and `left_out(count, why)` returns the line that reports
    it.
    """

    def __init__(self, stream: TextIO | None, left_out: Callable[[int, str], str] = _plain) -> None:
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self._stream = stream
        self._left_out_line = left_out
        self._lock = forks.rlock()
        self._fd, self._same = -1, (0, 0)
        self._is_file = self._blocks = False
        self._thread: threading.Thread | None = None
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._why = ""
        self._error: OSError | None = None
        self._flows = True
        """Whether the reader reads: something was written since the last wait in vain."""
        self._renew()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._open(stream.fileno())  # type: ignore[union-attr] # None has none
        forks.in_child_of(self, Stream._renew)

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.isatty(self._fd) if self._fd >= 0 else bool(self._stream.isatty())  # type: ignore[union-attr] # as above
        return False

    def write(self, text: str) -> None:
        """Writes lines, now or as soon as possible."""
        data = text.encode(self.encoding, "backslashreplace")
        with self._lock:
            if self._kept or self._left_out:
                self._keep(data)
                return
            self._flush_jobs()
            rest = self._put(data)
            if rest:
                self._keep(rest)

    def finish(self, seconds: float = _PARTING) -> None:
        """Writes what is kept; waits so long for a reader that pauses, and for nothing else."""
        with self._lock:
            self._put_all()
            while self._kept and self._is_full_pipe():
                before = self._size
                self._changed.wait_for(lambda: self._size != before, seconds)  # noqa: B023 (it ends in this turn)
                if self._size == before:
                    return
                self._put_all()
            self._flush_jobs()

    # -- what cannot be written at once -----------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        """Keeps a line until it can be written; drops it if there is no room."""
        half = _MOST // 2 if self._left_out else _MOST  # so that gaps are few, and wide
        if self._size + len(data) > half and not self._waited_for_room(len(data)):
            self._left_out += 1
            self._why = self._reason()
        else:
            if self._left_out:
                self._note_left_out()
            self._append(data)
        if self._thread is None:
            with contextlib.suppress(RuntimeError):  # no thread can start: the next line tries
                self._thread = start_thread("qframe-output", self._run)
            if self._thread is None:
                self._put_all()

    def _append(self, data: bytes) -> None:
        self._kept.append(data)
        self._size += len(data)

    def _note_left_out(self) -> None:
        line = self._left_out_line(self._left_out, self._why)
        self._append(line.encode(self.encoding, "backslashreplace"))
        self._left_out = 0

    def _reason(self) -> str:
        if self._is_full_pipe():
            return "its reader did not read"
        return getattr(self._error, "strerror", None) or "it could not be written"

    def _waited_for_room(self, size: int) -> bool:
        """Gives a slow reader time; returns whether there is room."""
        if not (self._flows and self._is_full_pipe()):
            return False
        self._flows = self._changed.wait_for(lambda: self._size + size <= _MOST, _PATIENCE)
        return self._flows

    def _is_full_pipe(self) -> bool:
        return isinstance(self._error, BlockingIOError)

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._lock:
                before = self._size
                self._put_all()
                if not self._kept:
                    self._thread = None
                    return
                is_stuck, is_full = self._size >= before, self._is_full_pipe()
            pause = min(2 * pause or _FIRST_PAUSE, _LONGEST_PAUSE) if is_stuck else 0.0
            if is_full:
                self._poll(_LONGEST_PAUSE * 1000)
            # It also waits if full: some descriptors are called ready, and take nothing.
            time.sleep(_FIRST_PAUSE if is_full and pause else pause)

    def _put_all(self) -> None:
        """Writes what is kept, and how much was dropped."""
        self._put_kept()
        if self._left_out and not self._kept:
            self._note_left_out()
            self._put_kept()

    def _put_kept(self) -> None:
        """Writes whole lines together, as far as there is room."""
        while self._kept:
            data = self._kept.popleft()
            while self._kept and len(data) + len(self._kept[0]) <= _ATOMIC:
                data += self._kept.popleft()
            before, rest = len(data), self._put(data)
            self._size -= before - len(rest)
            if len(rest) < before:
                self._flows = True
                self._changed.notify_all()
            if rest:
                self._kept.appendleft(rest)
                return

    # -- the descriptor ---------------------------------------------------------------------------

    def _open(self, descriptor: int) -> None:
        kind = os.fstat(descriptor)
        self._same = (kind.st_dev, kind.st_ino)
        self._is_file = stat.S_ISREG(kind.st_mode)
        self._blocks = not self._is_file and os.get_blocking(descriptor)
        if stat.S_ISFIFO(kind.st_mode):
            # Opened anew it does not block, and stays as it was for other writers.
            with contextlib.suppress(OSError):
                self._fd = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
                self._blocks = False
                return
        self._fd = os.dup(descriptor)

    def _put(self, data: bytes) -> bytes:
        """Writes as much as there is room for, and returns the rest."""
        if self._fd < 0:
            return self._put_into_object(data)
        try:
            while data:
                if self._blocks and not self._poll(0):
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                data = data[os.write(self._fd, data[: _ATOMIC if self._blocks else _CHUNK]) :]
        except OSError as error:
            self._error = error
            self._flows = self._flows and self._is_full_pipe()
            if error.errno == errno.EBADF:
                self._find_again()
            return data
        self._error = None
        return b""

    def _put_into_object(self, data: bytes) -> bytes:
        """Writes to a stream that has no descriptor; drops what it does not take."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(data.decode(self.encoding))  # type: ignore[union-attr] # None takes nothing
            self._stream.flush()  # type: ignore[union-attr] # as above
        return b""

    def _poll(self, milliseconds: float) -> bool:
        """Waits until the descriptor takes something, or reports an error."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(milliseconds))

    def _find_again(self) -> None:
        """Takes the standard stream's descriptor if a job has closed ours, as daemons do."""
        with contextlib.suppress(OSError):
            for descriptor in (1, 2):
                kind = os.fstat(descriptor)
                if self._same == (kind.st_dev, kind.st_ino):
                    self._open(descriptor)
                    return

    def _flush_jobs(self) -> None:
        """Flushes what jobs have printed, before the worker's lines about them."""
        if self._fd >= 0 and self._stream is not None and (self._is_file or self._poll(0)):
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def _renew(self) -> None:
        """Starts empty in a forked child: what is kept is its parent's."""
        self._changed = threading.Condition(self._lock)
        self._thread = None
        self._kept.clear()
        self._size = self._left_out = 0


class LogHandler(logging.Handler):
    """Writes log records to the stderr of its creation, whatever jobs do to `sys.stderr`."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 (a record's arguments may raise anything)
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Writes why a record cannot be formatted, and where it was logged."""
        where = f"{record.pathname}:{record.lineno}"
        self.stream.write(f"{traceback.format_exc()}  logged at {where}: {record.msg!r}\n")

    def close(self) -> None:
        """Waits a moment for what is kept."""
        self.stream.finish(_PATIENCE)
        super().close()


class _Formatter(logging.Formatter):
    """Formats exceptions printably, beginning with the application's frames."""

    def formatException(  # noqa: N802 (logging's own name)
        self, ei: tuple[type[BaseException], BaseException, object] | tuple[None, None, None]
    ) -> str:
        error = ei[1]
        return "" if error is None else "\n".join(f"    {each}" for each in tracebacks.lines(error))


class _JsonFormatter(_Formatter):
    """Formats a record as one line of JSON, with the fields of its job if it has some."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "status": "log",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        try:
            fields["message"] = record.getMessage()
        except Exception as error:  # noqa: BLE001 (a record's arguments may raise anything)
            fields["message"] = f"{record.msg!r} cannot be formatted: {tracebacks.brief(error)}"
        for name in ("job_uuid", "job_name", "job_queue", "job_attempt", "trace_id", "span_id"):
            if value := record.__dict__.get(name):
                fields[name] = value
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None:
            fields["traceback"] = tracebacks.lines(raised)
        return as_json(fields, encoding=self._encoding)


def log_to_stderr(
    level: int,
    form: str = "  %(asctime)s %(levelname)s %(message)s",
    *,
    as_lines_of_json: bool = False,
) -> None:
    """Writes log records to stderr, except those another handler has written there."""
    handler = LogHandler()
    handler.addFilter(unwritten(level))
    handler.setFormatter(
        _JsonFormatter(handler.stream.encoding)
        if as_lines_of_json
        else _Formatter(form, "%Y-%m-%d %H:%M:%S")
    )
    logging.basicConfig(level=level, handlers=[handler])


# -- the end of a process -------------------------------------------------------------------------


def leave_streams() -> OSError | None:
    """Makes the interpreter's exit silent; returns why output was not written.

    Python flushes its streams at exit, and exits with 120 if it cannot.
    """
    first: OSError | None = None
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if not _is_usable(stream):
            setattr(sys, name, None)
            continue
        error = _flushed(stream)
        if error is None and not _is_broken(number):
            continue
        first = first or error
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            if null != number:
                os.close(null)
        _flushed(stream)
    return first


def _flushed(stream: TextIO | None) -> OSError | None:
    """Flushes, waiting for a reader that pauses; returns the error if that fails."""
    give_up = time.monotonic() + _PARTING
    while stream is not None:
        try:
            stream.flush()
        except BlockingIOError as error:
            if time.monotonic() > give_up:
                return error
            time.sleep(_FIRST_PAUSE)
        except OSError as error:
            return error
        else:
            return None
    return None


def _is_usable(stream: TextIO | None) -> bool:
    """Whether a job has neither closed the stream nor detached its buffer."""
    try:
        return stream is not None and not stream.closed
    except ValueError:
        return False


def _is_broken(descriptor: int) -> bool:
    """Whether the reader has gone."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(what & (select.POLLERR | select.POLLNVAL) for _, what in poll.poll(0))


def fill_standard_descriptors() -> None:
    """Opens standard descriptors closed at start, or a database's file could become stdout."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            stream = open(number, "r" if not number else "w", closefd=False)  # noqa: SIM115 (a descriptor)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
