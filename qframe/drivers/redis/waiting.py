"""Waiting for a token: one blocking pop on all queues of a server, with an end of its own."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import AskError, RedisError, ResponseError

from qframe.drivers.redis.link import Link
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.server import Server
from qframe.drivers.redis.trouble import is_elsewhere, meaning
from qframe.exceptions import BackendUnavailable

_MOMENT = 0.002
_TRIES = 500


class Listener:
    """A connection of its own, on which nothing but a blocking pop is ever sent.

    The pop takes a token of `:notify`, never a job: what is lost with the connection is a moment.
    """

    def __init__(self, server: Server, link: Link) -> None:
        self._server = server
        self._link = link
        self._connection: AbstractConnection | None = None
        self._number = 0
        self._waits = False

    def listen(self, keys: Sequence[str], seconds: float) -> Any:  # noqa: ANN401 (any socket)
        """Begin to wait, until the server ends it, and give the socket that is read then."""
        try:
            connection = self._sound() or self._connect()
            connection.send_command(
                "BLPOP", *keys, f"{max(0.001, seconds):.3f}", check_health=False
            )
        except BackendUnavailable:
            raise
        except (RedisError, OSError) as error:
            raise self._lost(error) from error
        self._waits = True
        return connection._sock  # noqa: SLF001 (redis-py offers no other way to select on it)

    def answered(self) -> bool:
        """Whether an answer can be read at once."""
        return self._answers_within(0)

    def _answers_within(self, seconds: float) -> bool:
        try:
            return self._connection is not None and self._connection.can_read(seconds)
        except (RedisError, OSError) as error:
            raise self._lost(error) from error

    def hear(self) -> bool:
        """Read the answer that is there; says whether it is a token."""
        if self._connection is None:
            return False
        try:
            token = self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            if is_elsewhere(error) or isinstance(error, AskError) or "UNBLOCKED" in str(error):
                # Whoever looks for a job next learns where to, or that nobody may be asked.
                self._server.moved()
                self.drop()
                return False
            raise self._lost(error) from error
        except (RedisError, OSError) as error:
            raise self._lost(error) from error
        self._waits = False
        return token is not None

    def end(self, keys: Sequence[tuple[str, str]]) -> bool:
        """End a wait before its time; says whether a token came all the same.

        One that came belongs to a job which whoever calls this may not take: `keys`, ready and
        notify of each queue, are looked at, and somebody else is woken.
        """
        if not self._waits:
            return False
        try:
            token = self.hear() if self._unblocked() else True
        except BackendUnavailable:
            self.drop()
            raise
        if token:
            self._link.ask(call("nudge", tuple(key for pair in keys for key in pair)))
        return token

    def _unblocked(self) -> bool:
        """Have the server end the pop, also one that is only on its way there.

        One on a server that is not asked any more is left, and perhaps a token with it.
        """
        for _ in range(_TRIES):
            (ended,) = self._link.ask(Command("CLIENT", "UNBLOCK", self._number))
            if ended or self._answers_within(_MOMENT):
                return True
        self.drop()
        return False

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection, self._waits = self._connection, None, False
        if connection is not None:
            with suppress(RedisError, OSError):
                connection.disconnect()

    def _sound(self) -> AbstractConnection | None:
        """Give the connection unless the server has closed it since the last wait."""
        with suppress(RedisError, OSError):
            if self._connection is not None and not self._connection.can_read(0):
                return self._connection
        self.drop()
        return None

    def _connect(self) -> AbstractConnection:
        self._connection = connection = self._server.connect(self._link.key)
        connection.send_command("CLIENT", "ID", check_health=False)
        self._number = int(connection.read_response())
        return connection

    def _lost(self, error: Exception) -> BackendUnavailable:
        self.drop()
        return meaning(error, self._server.shown())


def until_one(
    listeners: Sequence[Listener], sockets: Sequence[Any], wake: int | None, seconds: float
) -> bool:
    """Wait for the first of the answers, `wake` or the time; says whether it was an answer alone.

    Whoever is woken may be about to stop: a token that came as well is somebody else's then.
    """
    told = any(listener.answered() for listener in listeners)  # TLS reads ahead of the socket
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    ready = {number for number, _ in poll.poll(0 if told else max(0.0, seconds) * 1000)}
    return (told or bool(ready)) and wake not in ready
