"""The job as its own process sees it: it sends its settling to the worker."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from qframe import forks
from qframe.contracts.backend import Backend
from qframe.contracts.step import APPLIED, Renew
from qframe.drivers import process
from qframe.drivers.guard import guarded
from qframe.exceptions import QframeError
from qframe.features import status
from qframe.features.base import End, Plan
from qframe.features.reserved import ReservedJob
from qframe.payload.text import printable
from qframe.worker.isolation.messages import Message, line, packed_end


class ChildChannel:
    """The job's end of the socket. Signals do not interrupt a message; forks send nothing."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._pid = process.pid()
        self._lock = forks.lock()

    def send(self, message: Message) -> None:
        """Sends a message. Raises `QframeError` if that is not possible."""
        if process.pid() != self._pid:
            raise QframeError("only the process that runs the job can settle it, not a fork of it")
        try:
            with guarded, self._lock:
                # A job may have closed every descriptor, and opened its own under this number.
                if os.fstat(self._socket.fileno()).st_ino != self._inode:
                    raise OSError("the job has closed the connection")
                self._socket.sendall(line(message))
        except OSError as error:
            raise QframeError(f"the worker does not answer: {error}") from error

    def receive(self) -> Message | None:
        """Waits for a message; None when there will be no more."""
        with suppress(OSError, ValueError), self._socket.makefile("rb", buffering=0) as reader:
            message: Message = json.loads(reader.readline())
            return message
        return None


class IsolatedJob(ReservedJob):
    """A job whose lease the worker keeps, and whose end the worker applies."""

    def __init__(self, job: ReservedJob, channel: ChildChannel) -> None:
        self._channel = channel
        self._has_steps = job.history.steps  # which the worker knows
        super().__init__(job.context, job.reservation)
        self._history = job.history
        self.features = job.features
        self.start_confirmed = job.start_confirmed
        # The worker keeps the lease, and ends this process if it is lost.
        self.reservation.sure_until = float("inf")

    def settle(self, end: End) -> None:
        """Sends it to the worker, which settles the job when it has ended."""
        with guarded, self._moving:
            self._check_open()
            self._channel.send({"kind": "intent", **packed_end(end)})
            self.was_settled(end)

    def _complete_through(self, view: Backend) -> None:
        """Applies it here, after telling the worker, which would wait for locked rows.

        If a transaction that has written keeps the worker waiting already, it cannot answer.
        """
        waits = not self.context.backend.has_one_writer
        self._channel.send({"kind": "completing", "waits": waits})
        if waits:
            self._confirm_ours()
        try:
            super()._complete_through(view)
        except BaseException:
            self._channel.send({"kind": "still open"})
            raise

    def _confirm_ours(self) -> None:
        answer = self._channel.receive()
        if answer is None:
            raise QframeError("the worker does not answer")
        if not answer["ours"]:
            self.state = "lost"
            raise self._unsettleable()

    def attach_steps(self) -> None:
        """Also tells the worker, which ends the job."""
        if not self._has_steps:
            self._channel.send({"kind": "steps"})
        super().attach_steps()

    def renewal(self) -> Sequence[Renew]:
        """The worker renews the lease."""
        return ()

    def was_settled(self, end: End) -> None:
        self._conclude(end, Plan(), APPLIED)

    def renew(self) -> None:
        """Asks the worker to renew, which also does so by itself."""
        self._check_open()
        self._channel.send({"kind": "renew"})

    def _note_progress(self, done: float, text: str) -> None:
        if self.features:
            shown = printable(text, status.MAX_TEXT)
            self._channel.send({"kind": "progress", "done": done, "text": shown})

    def note_log(self, line: str) -> None:
        """Sends the line to the worker, if it is still there."""
        with suppress(QframeError):
            self._channel.send({"kind": "log", "line": line})
