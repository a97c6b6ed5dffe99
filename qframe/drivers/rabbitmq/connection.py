"""RabbitmqConnection: an AMQP connection to the first node that answers."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import amqp
from amqp.method_framing import frame_handler

from qframe import forks
from qframe.drivers import process
from qframe.drivers.guard import guarded
from qframe.drivers.rabbitmq.errors import FAULTS, meaning
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.rabbitmq.transport import PlainTransport, TlsTransport
from qframe.drivers.sockets import limited, notice_gone, readable
from qframe.exceptions import BackendUnavailable, BackendUnusable, ConfigurationError

log = logging.getLogger("qframe")

_STALE = 0.005
"""Seconds of silence after which a connection is checked before its use."""
_GONE = 60
"""Seconds after which a peer that acknowledges nothing is given up."""


class RabbitmqConnection:
    """A connection, opened on first use and closed whenever it may be out of step.

    `heartbeat` is in seconds; 0: none.
    """

    def __init__(self, settings: RabbitmqSettings, heartbeat: int) -> None:
        self.lock = forks.rlock()
        self.where = settings.shown()
        self.settings = settings
        self.version = ""
        """The server's version, once a connection was open."""
        self._heartbeat = heartbeat
        self._pid = process.pid()
        self._amqp: Any = None
        self._channel: Any = None
        self._is_blocked = False
        """Whether the server reads nothing, as its memory or disk runs short."""
        self._spoke = 0.0

    def __del__(self) -> None:
        """Close the connection of a thread that has ended."""
        self.abandon()

    # -- opening and closing ----------------------------------------------------------------------

    def open(self) -> Any:  # noqa: ANN401 (the client has no types)
        """Return the channel, of a new connection unless the current one seems sound."""
        if self._pid != process.pid():  # the parent still uses the parent's socket
            self.abandon()
            self._pid = process.pid()
        self._look_after(_STALE)
        if self._amqp is None:
            with forks.undisturbed(asks=True):
                self._connect()
        return self._channel

    def _look_after(self, silence: float) -> None:
        """Look whether the server has closed the connection, if nothing came for such a time."""
        if self._amqp is not None and time.monotonic() - self._spoke > silence:
            with suppress(BackendUnavailable):
                self.read_pending()

    def _connect(self) -> None:
        *others, last = self.settings.addresses()
        for host, port in others:
            try:
                return self._connect_to(host, port)
            except BackendUnusable:
                raise
            except BackendUnavailable as error:
                log.debug("trying the next node: %s", error)
        return self._connect_to(*last)

    def _connect_to(self, host: str, port: int) -> None:
        settings, login = self.settings, self.settings.login()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        made = _Client(
            address,
            login.user,
            login.password,
            login_method="PLAIN",
            virtual_host=login.vhost,
            ssl={"context": tls_context(settings), "name": host} if settings.is_tls() else False,
            connect_timeout=limited(settings.connect_timeout),
            heartbeat=self._heartbeat,
            socket_settings=_SOCKET,
            client_properties={"connection_name": f"qframe {process.NAME} {process.pid()}"},
            on_blocked=partial(self._block, True),
            on_unblocked=partial(self._block, False),
            frame_handler=self.takes_frames(),
        )
        try:
            made.connect()
            made.sock.settimeout(limited(settings.timeout))
            notice_gone(made.sock, _GONE)
            self._amqp, self._is_blocked = made, False
            self.version = str(made.server_properties.get("version", ""))
            self._channel = self.new_channel()
            self.prepare(self._channel)
        except FAULTS as error:
            _close(made)
            self._forget()
            text = f"{self.where.partition('://')[0]}://{address}"
            found = meaning(error, text)
            if isinstance(found, BackendUnavailable):
                found.in_doubt = False
            raise found from error
        self._spoke = time.monotonic()

    def _block(self, is_blocked: bool, *_: object) -> None:
        self._is_blocked = is_blocked

    def takes_frames(self) -> Callable[..., Any]:
        """Return what makes the function that takes each frame."""
        return frame_handler  # type: ignore[no-any-return] # as above

    def prepare(self, channel: Any) -> None:  # noqa: ANN401 (as above)
        """Set up the channel of a new connection."""

    def new_channel(self) -> Any:  # noqa: ANN401 (as above)
        """Open another channel."""
        made = self._amqp.channel()
        made.auto_decode = False  # bodies are bytes, whatever their headers say
        return made

    def drop(self) -> None:
        """Close the connection without a word; the server makes ready what it had delivered."""
        made = self._amqp
        self._forget()
        if made is not None:
            _close(made)

    def abandon(self) -> None:
        """Close the parent's socket in a forked child; the parent's connection stays open."""
        made = getattr(self, "_amqp", None)
        if made is None:
            return
        self._forget()
        transport = made._transport  # noqa: SLF001 (`transport` would connect)
        if transport is not None and transport.sock is not None:
            with suppress(OSError):
                os.close(transport.sock.detach())
            transport.sock = None

    def _forget(self) -> None:
        self._amqp = self._channel = None

    # -- exchanges --------------------------------------------------------------------------------

    def read(self, ends: float) -> None:
        """Read what comes, or raise `TimeoutError` when there is none until `ends`."""
        if not self._has_input(max(0.0, ends - time.monotonic())):
            raise TimeoutError
        self._read_frames()
        self._spoke = time.monotonic()

    def _read_frames(self) -> None:
        """Read a frame, and those that have come with it; they may close the connection."""
        transport, take = self._amqp.transport, self._amqp.on_inbound_frame
        found = transport.read_frame()
        while found is not None:
            take(found)
            found = None if self._amqp is None else transport.next_frame()

    def write(self, frames: bytes) -> None:
        """Send frames that the client did not make."""
        transport = self._amqp and self._amqp._transport  # noqa: SLF001 (`transport` would connect)
        if not transport:
            raise amqp.RecoverableConnectionError("the connection is closed")
        transport.write(frames)

    def read_pending(self) -> None:
        """Read what the server has sent by now. Raises `BackendUnavailable`, then closed."""
        with self.lock:
            try:
                while self._amqp is not None and self._has_input(0.0):
                    self._read_frames()
            except FAULTS as error:
                raise self.lost(error) from error
            self._spoke = time.monotonic()

    def lost(self, error: Exception) -> BackendUnavailable:
        """Close the connection after an error; returns qframe's error."""
        self.drop()
        made = meaning(error, self.where)
        if isinstance(made, BackendUnavailable):
            return made
        raise made from error

    def _has_input(self, seconds: float) -> bool:
        if self._amqp.transport.has_frame():
            return True
        sock = self._amqp.sock
        is_pending = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        return is_pending or bool(readable([sock.fileno()], seconds))

    def fileno(self) -> int:
        """Return the descriptor of its socket."""
        return int(self._amqp.sock.fileno())

    def close(self) -> None:
        """Take leave of the server."""
        with guarded, self.lock:
            if self._amqp is not None and self._pid == process.pid():
                with suppress(*FAULTS):
                    self._amqp.close()
                self.drop()


class _Client(amqp.Connection):  # type: ignore[misc] # as above
    """The client, with our TLS, and without guesses of how to log in."""

    def Transport(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401, N802 (the client's)
        host, connect_timeout, tls, *_ = args
        kind = TlsTransport if self.ssl else PlainTransport
        return kind(host, connect_timeout=connect_timeout, ssl=tls, **options)


_SOCKET = {
    getattr(socket, name): value
    for name, value in (("TCP_NODELAY", 1), ("TCP_USER_TIMEOUT", _GONE * 1000))
    if hasattr(socket, name)
}
"""The client would give up a connection after one second without an acknowledgement."""


def tls_context(settings: RabbitmqSettings) -> ssl.SSLContext:
    """Return how the server is verified. Raises `ConfigurationError`."""
    for name in ("ca", "cert", "key"):
        file = getattr(settings, name)
        if file is not None and not Path(file).exists():
            raise ConfigurationError(f"{settings.shown()}: there is no {name} {file}")
    context = ssl.create_default_context(cafile=settings.ca)
    if settings.cert is not None:
        context.load_cert_chain(settings.cert, settings.key)
    return context


def _close(made: Any) -> None:  # noqa: ANN401 (as above)
    with suppress(*FAULTS):
        made.collect()
