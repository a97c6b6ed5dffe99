"""What the process of an isolated job and its worker say to each other, over a pair of sockets.

A frame is a length and a JSON list of messages: what can wait travels with what cannot.
"""

from __future__ import annotations

import builtins
import json
import os
import socket
import threading
from contextlib import suppress
from typing import Any

from qframe import exceptions, host, tracebacks
from qframe.exceptions import Interruption, QframeError
from qframe.guard import guarded

Message = dict[str, Any]

_HEAD = 4
_LONGEST = 64 * 1024 * 1024
_LONGEST_TEXT = 1024 * 1024
"""Characters of an error's message that travel: as JSON each may be six bytes."""


class ChildChannel:
    """The job's end. Nothing breaks into an exchange; only the process it was made for speaks."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._pid = host.pid()
        self._kept: list[Message] = []
        self._lock = threading.Lock()

    @property
    def is_own(self) -> bool:
        """Whether this is the job's process, not one that the job has forked."""
        return host.pid() == self._pid

    def later(self, message: Message) -> None:
        """Say it together with what is said next."""
        self._kept.append(message)

    def tell(self, message: Message) -> None:
        """Say it now; raises `QframeError` where that is not possible."""
        with guarded(), self._lock:
            self._say(message)

    def ask(self, message: Message) -> Message:
        """Say it and give the answer; raises `QframeError` where none comes."""
        with guarded(), self._lock:
            self._say(message)
            try:
                size = int.from_bytes(self._exactly(_HEAD), "big")
                answer: Message = json.loads(self._exactly(size))[0]
            except OSError as error:
                raise QframeError(f"the worker does not answer: {error}") from error
            return answer

    def _say(self, message: Message) -> None:
        if not self.is_own:
            raise QframeError("only the process that runs the job can settle it, not a fork of it")
        kept, self._kept = self._kept, []
        try:
            # A job may have closed every descriptor, and opened its own under this number.
            if os.fstat(self._socket.fileno()).st_ino != self._inode:
                raise OSError("the job has closed the connection")
            self._socket.sendall(framed([*kept, message]))
        except OSError as error:
            raise QframeError(f"the worker cannot be told: {error}") from error

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise OSError("it has closed the connection")
            parts += part
        return parts


class ParentChannel:
    """The worker's end: it never waits for the job's."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._heard = b""
        self.is_open = True

    def fileno(self) -> int:
        """Give the descriptor that can be read when there is something to hear."""
        return self._socket.fileno()

    def hear(self) -> list[Message]:
        """Give the messages that have come."""
        messages: list[Message] = []
        while self.is_open:
            try:
                part = self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self.is_open = bool(part)
            self._heard += part
            if len(part) < 65536:  # noqa: PLR2004 (all there was)
                break
        while len(self._heard) >= _HEAD:
            size = int.from_bytes(self._heard[:_HEAD], "big")
            if size > _LONGEST:
                self._refuse()
            if len(self._heard) < _HEAD + size:
                break
            frame, self._heard = self._heard[_HEAD : _HEAD + size], self._heard[_HEAD + size :]
            said = _decoded(frame)
            if said is None:
                self._refuse()
            messages += said or ()
        return messages

    def _refuse(self) -> None:
        """Hear no more, and let the job's process know: it must not wait until all is heard."""
        self.is_open, self._heard = False, b""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def answer(self, message: Message) -> None:
        """Answer; a job that is gone hears nothing."""
        try:
            self._socket.send(framed([message]), socket.MSG_DONTWAIT)
        except OSError:
            self.is_open = False

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


def _decoded(frame: bytes) -> list[Message] | None:
    """Decode what stands in a frame; None where it is none of ours."""
    try:
        said = json.loads(frame)
    except ValueError:
        return None
    is_ours = isinstance(said, list) and all(isinstance(each, dict) for each in said)
    return said if is_ours else None


def framed(messages: list[Message]) -> bytes:
    """Encode a frame."""
    data = json.dumps(messages, separators=(",", ":")).encode()
    return len(data).to_bytes(_HEAD, "big") + data


# -- errors -------------------------------------------------------------------------------------


class ElsewhereError(Exception):
    """An error that was raised in the job's process, of a class that is only known there."""

    def __str__(self) -> str:
        """Give the message it had there."""
        return str(self.args[0]) if self.args else ""


def packed(error: BaseException | None) -> Message | None:
    """Give an error as it travels: class, message, and the traceback as text."""
    if error is None:
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises)
        text = "(no message)"
    kind = type(error)
    return {
        "class": kind.__name__,
        "module": kind.__module__,
        "text": _shortened(text),
        "traceback": tracebacks.full(error),
    }


def _shortened(text: str) -> str:
    """Leave out the middle of a text that is too long to travel."""
    half = _LONGEST_TEXT // 2
    left_out = len(text) - 2 * half
    if left_out <= 0:
        return text
    return f"{text[:half]}\n... {left_out:,} characters left out ...\n{text[-half:]}"


def unpacked(error: Message | None) -> BaseException | None:
    """Make an error again: one of qframe's own by its class, any other by name.

    That of a built-in class is an instance of it, too.
    """
    if error is None:
        return None
    name, text = str(error["class"]), str(error["text"])
    modules = {"builtins": builtins, exceptions.__name__: exceptions}
    known = getattr(modules.get(error["module"]), name, None)
    made: BaseException | None = None
    with suppress(Exception):  # some are made from more than a message
        if isinstance(known, type) and issubclass(known, QframeError | Interruption):
            made = known(text)
        elif isinstance(known, type) and issubclass(known, Exception):
            made = type(name, (ElsewhereError, known), {})(text)
    if made is None:
        made = type(name, (ElsewhereError,), {})(text)
    made.__dict__["traceback_elsewhere"] = error["traceback"]  # read by tracebacks.full
    return made
