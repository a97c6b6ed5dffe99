"""RedisConnection: one thread's connection to one server, with pipelined commands.

A command sent without waiting is kept until its answer has been read. If the connection breaks, it
is sent again on the next one, so only commands that may run twice are sent this way.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from redis.exceptions import AskError, RedisError, ResponseError

from qframe.drivers.guard import guarded
from qframe.drivers.redis.commands import RedisCommand, Script, command
from qframe.drivers.redis.endpoint import Server
from qframe.drivers.redis.errors import is_elsewhere, is_no_script, is_refused, meaning
from qframe.drivers.redis.wire import Wire
from qframe.exceptions import BackendUnavailable

Reply = Any
_PACKED = attrgetter("packed")
_BEHIND = 60
"""The most answers that may be outstanding."""


class RedisInFlight(ABC):
    """A command that was sent without waiting for its answer."""

    command: RedisCommand
    was_repeated: bool
    """Whether the command may have run more than once."""

    __slots__ = ("command", "was_repeated")

    @abstractmethod
    def on_reply(self, reply: Reply) -> None:
        """Handle the answer, which may be an error."""


class RedisConnection:
    """A connection for all commands whose keys are on one server. Used by one thread.

    `key` is one of these keys: on a Cluster it determines the server.
    """

    def __init__(self, server: Server, key: str, marker: str) -> None:
        self.server = server
        self.key = key
        self._markers = marker
        """Prefix of its marker keys, in the slot of `key`."""
        self.repeated = False
        """Whether the last `ask` was sent twice, so that it may have run the first time."""
        self.mended = False
        """Whether the server had forgotten a script, which therefore ran after later commands."""
        self.new_marker()
        self._sent = False
        self._wire: Wire | None = None
        self._in_flight: deque[RedisInFlight] = deque()
        self._known: set[Script] = set()
        """Scripts sent in full on this wire: the server knows them before it answers."""

    def new_marker(self) -> None:
        """Number exchanges under a new name, because the result of a recent one is unknown."""
        self.marker = f"{self._markers}{secrets.token_hex(8)}"
        self._number = 0

    def next_number(self) -> int:
        """Return the number of an exchange that must not run twice."""
        self._number += 1
        return self._number

    # -- exchanges --------------------------------------------------------------------------------

    def ask(self, *commands: RedisCommand) -> list[Reply]:
        """Send commands in one go and return their replies.

        Sends them once more on a new connection if this one breaks. Raises `BackendUnavailable` or
        `BackendUnusable`.
        """
        replies = self.ask_all(*commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise meaning(reply, self.server.shown()) from reply
        return replies

    def ask_all(self, *commands: RedisCommand) -> list[Reply]:
        """As `ask`, but server errors are among the replies."""
        self.repeated = self._sent = self.mended = False
        with guarded:
            try:
                return self._exchange(commands)
            except BackendUnavailable:
                raise
            except _WrongServerError:
                pass  # the server there did nothing
            except (RedisError, OSError):
                self.repeated = self._sent
            try:
                return self._exchange(commands)
            except BackendUnavailable:
                raise
            except _WrongServerError as error:
                raise meaning(error.why, self.server.shown()) from error
            except (RedisError, OSError) as error:
                raise meaning(error, self.server.shown()) from error

    def send(self, sent: RedisInFlight) -> None:
        """Send a command without waiting. Call it only where no interruption can happen.

        Raises `BackendUnavailable` if it could not be sent; it is then dropped.
        """
        self._in_flight.append(sent)
        try:
            if self._wire is not None:
                try:
                    self._wire.send(self._known_to_all(sent.command))
                except (RedisError, OSError):
                    self.drop()
            if self._wire is None or len(self._in_flight) > _BEHIND:
                self.ask_all()  # first resends what was not answered
        except BackendUnavailable:
            if self._in_flight and self._in_flight[-1] is sent:
                self._in_flight.pop()
            raise
        except BaseException:
            self.drop()
            raise

    def read_replies(self) -> None:
        if self._in_flight:
            self.ask_all()

    def drop(self) -> None:
        """Close the wire, which may be out of step."""
        self._known.clear()
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(RedisError, OSError):
                wire.disconnect()

    def close(self) -> None:
        """Read the outstanding answers, then close the wire."""
        with suppress(BackendUnavailable):
            self.read_replies()
        self._in_flight.clear()
        self.drop()

    # -- one exchange -----------------------------------------------------------------------------

    def _exchange(self, commands: Sequence[RedisCommand]) -> list[Reply]:
        """Send and read once; closes the wire unless all replies were read."""
        try:
            wire = self._wire or self._connect()
            if self._in_flight:
                self._read_replies(wire)
            if not commands:
                return []
            self._sent = True
            wire.send(b"".join(map(_PACKED, commands)))
            replies: list[Reply] = []
            for _ in commands:
                replies.append(wire.read())  # noqa: PERF401 (a comprehension is a call in 3.11)
            for index, reply in enumerate(replies):
                if isinstance(reply, ResponseError):
                    replies[index] = self._mended(wire, commands[index], reply)
        except BaseException:
            self.drop()
            raise
        else:
            return replies

    def _mended(self, wire: Wire, command: RedisCommand, reply: Reply) -> Reply:
        """Send a script's text if the server does not know it; follow redirections."""
        if is_no_script(reply):
            self.mended = True
            reply = _single(wire, command)
        if type(reply) is AskError:
            reply = self._asking(reply, command)
        self._check_place(reply)
        return reply

    def _connect(self) -> Wire:
        """Open a wire, and resend what the last one left unanswered."""
        try:
            wire = Wire(self.server.connect(self.key))
        except (RedisError, OSError) as error:
            raise meaning(error, self.server.shown()) from error
        try:
            self._resend(wire)
        except BaseException:
            with suppress(RedisError, OSError):
                wire.disconnect()
            raise
        self._wire = wire
        return wire

    def _known_to_all(self, command: RedisCommand) -> bytes:
        """Return the command in a form that works even if the server has forgotten its script.

        Nobody waits for the answer that would ask for the script: if the process is killed before
        it reads that answer, the job would never have started.
        """
        if command.script is None or command.script in self._known:
            return command.packed
        self._known.add(command.script)
        return command.whole()

    def _read_replies(self, wire: Wire) -> None:
        """Read all outstanding answers.

        Resends a failed command and all that follow it, because those ran too early.
        """
        for left in range(len(self._in_flight), 0, -1):
            reply = wire.read()
            if isinstance(reply, ResponseError):
                self._check_place(reply)
                if is_no_script(reply) or is_refused(reply) or type(reply) is AskError:
                    for _ in range(left - 1):
                        wire.read()
                    self._resend(wire)
                    return
            sent = self._in_flight.popleft()
            sent.on_reply(reply)

    def _resend(self, wire: Wire) -> None:
        """Resend what was not answered; a refused command stays unanswered."""
        while self._in_flight:
            sent = self._in_flight[0]
            sent.was_repeated = True
            reply = self._mended(wire, sent.command, _single(wire, sent.command))
            if is_refused(reply):
                raise meaning(reply, self.server.shown()) from reply
            self._in_flight.popleft()
            sent.on_reply(reply)

    def _check_place(self, reply: Reply) -> None:
        if is_elsewhere(reply):
            self.server.moved()
            raise _WrongServerError(reply)

    def _asking(self, error: AskError, sent: RedisCommand) -> Reply:
        """Ask the node that a slot is currently moving to."""
        wire = Wire(self.server.connect_to(error.host, error.port))
        try:
            wire.send(command("ASKING").packed)
            wire.read()
            return _single(wire, sent)
        finally:
            wire.disconnect()


def _single(wire: Wire, command: RedisCommand) -> Reply:
    wire.send(command.whole())
    return wire.read()


class _WrongServerError(RedisError):
    """This server is not the right one (any more); it did nothing."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why
