"""Waiting for a token: one blocking pop on all queues of a server, with an end of its own.

Behind the pop may stand a command that the server does as soon as the pop has ended: what it finds
is there with the token, and need not be asked for.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress

from hiredis import pack_command
from redis.exceptions import AskError, RedisError

from qframe.drivers.redis.link import Link, Reply
from qframe.drivers.redis.scripts import Command, call
from qframe.drivers.redis.server import Server
from qframe.drivers.redis.trouble import is_elsewhere, meaning
from qframe.drivers.redis.wire import Wire
from qframe.exceptions import BackendUnavailable

_MOMENT = 0.002
_TRIES = 500


class Listener:
    """A connection of its own, on which only a blocking pop is sent, and what follows it.

    The pop takes a token of `:notify`, never a job: what is lost with the connection is a moment.
    """

    def __init__(self, server: Server, link: Link) -> None:
        self._server = server
        self._link = link
        self._connection: Wire | None = None
        self._number = 0
        self._waits = False
        self._follows = False
        self.found: Reply = None
        """What the command behind the pop gave, an error for one; None where it was not done."""

    def listen(self, keys: Sequence[str], seconds: float, then: Command | None = None) -> Wire:
        """Begin to wait, until the server ends it, and give what is read then."""
        self.found = None
        self._follows = then is not None
        try:
            connection = self._sound() or self._connect()
            pop = pack_command(("BLPOP", *keys, f"{max(0.001, seconds):.3f}"))  # type: ignore[arg-type] # its stub knows only one word
            connection.send(pop if then is None else pop + pack_command(then.words))  # type: ignore[arg-type] # as above
        except BackendUnavailable:
            raise
        except (RedisError, OSError) as error:
            raise self._lost(error) from error
        self._waits = True
        return connection

    def answered(self) -> bool:
        """Whether an answer can be read at once."""
        return self._answers_within(0)

    def _answers_within(self, seconds: float) -> bool:
        try:
            return self._connection is not None and self._connection.readable(seconds)
        except (RedisError, OSError) as error:
            raise self._lost(error) from error

    def hear(self) -> bool:
        """Read the answer that is there; says whether it is a token."""
        if self._connection is None:
            return False
        try:
            token = self._connection.read()
            if self._follows and not isinstance(token, Exception):  # else it may be closed now
                self.found = self._connection.read()
        except (RedisError, OSError) as error:
            raise self._lost(error) from error
        if not isinstance(token, Exception):
            self._waits = False
            return token is not None
        if is_elsewhere(token) or isinstance(token, AskError) or "UNBLOCKED" in str(token):
            # Whoever looks for a job next learns where to, or that nobody may be asked.
            self._server.moved()
            self.drop()
            return False
        raise self._lost(token) from token

    def end(self, keys: Sequence[tuple[str, str]]) -> bool:
        """End a wait before its time; says whether a token came all the same.

        One that came belongs to a job which whoever calls this may not take: `keys`, ready and
        notify of each queue, are looked at, and somebody else is woken. Not so where the command
        behind the pop has looked for that job.
        """
        if not self._waits:
            return False
        try:
            token = self.hear() if self._unblocked() else True
        except BackendUnavailable:
            self.drop()
            raise
        if token and (self.found is None or isinstance(self.found, Exception)):
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

    def _sound(self) -> Wire | None:
        """Give the connection unless the server has closed it since the last wait."""
        with suppress(RedisError, OSError):
            if self._connection is not None and not self._connection.readable():
                return self._connection
        self.drop()
        return None

    def _connect(self) -> Wire:
        self._connection = wire = Wire(self._server.connect(self._link.key))
        wire.send(pack_command(("CLIENT", "ID")))  # type: ignore[arg-type] # as above
        number = wire.read()
        if isinstance(number, Exception):
            raise number
        self._number = number
        return wire

    def _lost(self, error: Exception) -> BackendUnavailable:
        self.drop()
        return meaning(error, self._server.shown())


def until_one(wires: Sequence[Wire], wake: int | None, seconds: float) -> bool:
    """Wait for the first of the answers, `wake` or the time; says whether it was an answer alone.

    Whoever is woken may be about to stop: a token that came as well is somebody else's then.
    """
    told = any(wire.ahead() for wire in wires)  # TLS reads ahead of the socket
    poll = select.poll()
    for wire in wires:
        poll.register(wire, select.POLLIN)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    ready = {number for number, _ in poll.poll(0 if told else max(0.0, seconds) * 1000)}
    return (told or bool(ready)) and wake not in ready
