"""One thread's connection to one server: exchanges, some of them not waited for.

redis-py's client object costs more than the network; its `Connection` is what its own pipelines
stand on. Here, what was sent without waiting is kept until its answer was read, and sent again on
the next connection where none came: so only what does no harm when it is said twice may be sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from hiredis import pack_command
from redis.exceptions import AskError, RedisError, ResponseError

from qframe.drivers.redis.keys import type_of
from qframe.drivers.redis.scripts import Command, Script
from qframe.drivers.redis.server import Server
from qframe.drivers.redis.trouble import (
    is_elsewhere,
    is_no_script,
    is_refused,
    is_wrong_type,
    meaning,
)
from qframe.drivers.redis.wire import Wire
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded
from qframe.names import one_line

Reply = Any
Again = Callable[[], Sequence["Command"]]
Answered = Callable[[Reply, bool], None]
"""Hears a reply, which may be an error, and whether the command was sent twice."""

_GUARD = guarded()
_BEHIND = 60
"""So many answers may be outstanding before the first of them is read."""


class Link:
    """A connection for all commands whose keys are on one server.

    `key` is one of them: it finds the server on a Cluster. Belongs to one thread.
    """

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.key = key
        self.repeated = False
        """Whether the last `ask` was sent twice: what it did may have been done the first time."""
        self._connection: Wire | None = None
        self._unanswered: deque[tuple[Command, Answered]] = deque()
        self._told: set[Script] = set()
        """The scripts told whole on this connection: the server knows them before it answers."""

    def ask(self, *commands: Command, again: Again | None = None) -> list[Reply]:
        """Send commands in one go and give their replies.

        Where the connection breaks in between, they, or what `again` gives, are sent once more on a
        new one. Raises `BackendUnavailable` or `BackendUnusable`.
        """
        self.repeated = False
        try:
            return self._attempt(commands)
        except BackendUnavailable:
            raise  # refused, or not to be reached: nothing was done
        except _ElsewhereError:
            pass  # nothing was done there
        except (RedisError, OSError):
            self.repeated = True
            commands = commands if again is None else tuple(again())
        try:
            return self._attempt(commands)
        except BackendUnavailable:
            raise
        except _ElsewhereError as error:
            raise meaning(error.why, self.server.shown()) from error
        except (RedisError, OSError) as error:
            raise meaning(error, self.server.shown()) from error

    def _attempt(self, commands: Sequence[Command]) -> list[Reply]:
        """Send and read once; the connection is closed unless all has been read.

        Raises `BackendUnavailable` for what the server answered, redis-py's errors for what is
        wrong with the connection.
        """
        try:
            connection = self._connection or self._connect()
            return self._exchange(connection, commands)
        except ResponseError as error:
            where = self.server.shown()
            if is_wrong_type(error):
                where = f"{where}: {self._mistyped(commands)}"
            raise meaning(error, where) from error
        except BaseException:
            self.drop()
            raise

    def _mistyped(self, commands: Sequence[Command]) -> str:
        """Say which keys of some commands hold something else than they should."""
        found = []
        for key in dict.fromkeys(key for command in commands for key in command.named()):
            (kind,) = self._exchange(self._connection or self._connect(), [Command("TYPE", key)])
            if kind.decode() not in (type_of(key), "none"):
                found.append(f"{key} is a {kind.decode()}, not a {type_of(key)}")
        return one_line(", ".join(found), 300)

    def tell(self, command: Command, answered: Answered) -> None:
        """Send a command and return; `answered` hears what came of it when its reply is read.

        Raises `BackendUnavailable` where it could not be sent; unless it is forgotten then, it is
        said some time later.
        """
        if self._connection is None:
            self.ask()
        self._unanswered.append((command, answered))
        connection = self._connection
        try:
            if connection is not None:
                self._send(connection, (self.known(command),))
                if len(self._unanswered) > _BEHIND:
                    self._hear_one(connection)
                return
        except (RedisError, OSError):
            self.drop()
        except BaseException:
            self.drop()
            raise
        self.ask()  # which first says again what was not answered

    def forget(self, command: Command) -> None:
        """Say the last command no more, should it not have been answered."""
        if self._unanswered and self._unanswered[-1][0] is command:
            self._unanswered.pop()

    def known(self, command: Command) -> Command:
        """Give the command so that a server which has forgotten its script does it all the same.

        Nobody waits for the answer that would ask for the script: a process that is killed before
        it reads it would have started nothing. Nor may what stands behind it be done before it.
        """
        if command.script is None or command.script in self._told:
            return command
        self._told.add(command.script)
        return command.whole()

    def drop(self) -> None:
        """Close the connection: it may be out of step."""
        self._told.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(RedisError, OSError):
                connection.disconnect()

    def close(self) -> None:
        """Read what is outstanding, then close the connection."""
        with suppress(BackendUnavailable):
            if self._unanswered:
                self.ask()
        self._unanswered.clear()
        self.drop()

    def __enter__(self) -> Self:
        """Use it: nothing may break into its exchanges."""
        _GUARD.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _GUARD.__exit__(kind, error, trace)

    # -- one exchange ---------------------------------------------------------------------------

    def _exchange(self, connection: Wire, commands: Sequence[Command]) -> list[Reply]:
        if self._unanswered:
            self._hear_all(connection)
        if not commands:
            return []
        self._send(connection, commands)
        replies = [connection.read() for _ in commands]
        for reply in replies:
            if isinstance(reply, Exception):
                self._mend(connection, commands, replies)
                break
        return replies

    def _mend(self, connection: Wire, commands: Sequence[Command], replies: list[Reply]) -> None:
        """Say in full what the server has no script for; raise what is an error all the same."""
        too_early = False
        for index, command in enumerate(commands):
            forgotten = is_no_script(replies[index])
            # What stands behind a forgotten script to tell of it came too early; a script there was
            # done, and must not be done twice.
            if forgotten or (too_early and command.script is None):
                replies[index] = self._single(connection, command.whole())
            too_early = too_early or forgotten
            if type(replies[index]) is AskError:
                replies[index] = self._asking(replies[index], command)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                self._check_place(reply)
                if not (command.optional and is_refused(reply)):
                    raise reply

    def _connect(self) -> Wire:
        """Open a connection, and say first what was not answered on the last."""
        try:
            connection = Wire(self.server.connect(self.key))
        except (RedisError, OSError) as error:
            raise meaning(error, self.server.shown()) from error
        try:
            self._say_again(connection)
        except BaseException:
            with suppress(RedisError, OSError):
                connection.disconnect()
            raise
        self._connection = connection
        return connection

    def _hear_all(self, connection: Wire) -> None:
        """Read all outstanding answers.

        What the server had no script for is said in full, and all behind it again: they were done
        too early, if another connection brought the script back in between.
        """
        for left in range(len(self._unanswered), 0, -1):
            reply = connection.read()
            if isinstance(reply, Exception):
                self._check_place(reply)
                if is_no_script(reply) or is_refused(reply) or type(reply) is AskError:
                    for _ in range(left - 1):
                        connection.read()
                    self._say_again(connection)
                    return
            _, answered = self._unanswered.popleft()
            answered(reply, False)

    def _say_again(self, connection: Wire) -> None:
        """Say what was not answered once more; what is refused stays unanswered."""
        while self._unanswered:
            command, answered = self._unanswered[0]
            reply = self._single(connection, command.whole())
            if type(reply) is AskError:
                reply = self._asking(reply, command)
            self._check_place(reply)
            if is_refused(reply):
                self.drop()  # on which it has been answered
                raise reply
            self._unanswered.popleft()
            answered(reply, True)

    def _hear_one(self, connection: Wire) -> None:
        """Read the oldest outstanding answer."""
        reply = connection.read()
        if isinstance(reply, Exception):
            # Rare, and not to be read past: start over with a connection that is in step.
            raise RedisError(str(reply))
        _, answered = self._unanswered.popleft()
        answered(reply, False)

    def _check_place(self, reply: Reply) -> None:
        if is_elsewhere(reply):
            self.server.moved()
            self.drop()
            raise _ElsewhereError(reply)

    def _send(self, connection: Wire, commands: Sequence[Command]) -> None:
        if len(commands) == 1:
            connection.send(pack_command(commands[0].words))  # type: ignore[arg-type] # its stub knows only one word
        else:
            connection.send(b"".join([pack_command(each.words) for each in commands]))  # type: ignore[arg-type]

    def _single(self, connection: Wire, command: Command) -> Reply:
        self._send(connection, [command])
        return connection.read()

    def _asking(self, error: AskError, command: Command) -> Reply:
        """Ask the node to which a slot is just being moved."""
        connection = Wire(self.server.connect_to(error.host, error.port))
        try:
            self._single(connection, Command("ASKING"))
            return self._single(connection, command.whole())
        finally:
            connection.disconnect()


class _ElsewhereError(RedisError):
    """The server is not, or no longer, the one to ask: nothing was done."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why
