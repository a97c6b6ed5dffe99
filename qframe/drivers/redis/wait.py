"""What a thread without a job waits for: a token of a push, a moment, or a signal.

A blocking pop on the `:notify` of all queues, on a connection of its own; on a Cluster one for each
slot. It takes tokens, never jobs: what is lost with a connection is a token, and whoever reserves
next leaves another where jobs are ready.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from qframe.drivers.guard import guarded
from qframe.drivers.redis.commands import command
from qframe.drivers.redis.endpoint import Server
from qframe.drivers.redis.errors import is_elsewhere, is_wrong_type, meaning
from qframe.drivers.redis.wire import Wire

_LATER = 0.5
"""Seconds after our own end at which the server would end a pop: it does so up to 0.1 s late."""
_PATIENCE = 0.3
"""Seconds the server is given to end a pop that need not end at a moment."""


class Waiter:
    """Waits for one thread; `expected` is what its last reservation said of the future."""

    def __init__(self, server: Server, *, apart: bool) -> None:
        self.expected: tuple[tuple[str, ...], float] | None = None
        """Queues, and the moment until which nothing becomes ready there."""
        self.token_of: tuple[str, ...] = ()
        """Queues of which the last wait took a token, until messages of theirs are reserved."""
        self.has_token = False
        self._server = server
        self._apart = apart
        self._wires: dict[str, Wire] = {}

    def wait(
        self, keys: Mapping[str, str], seconds: float, wake: int | None, *, exactly: bool
    ) -> bool:
        """Wait for a token of these queues: `notify` by `ready`.

        Says whether `wake` ended it. `exactly`: the time is that of a job, and may not be late.
        """
        self.has_token = False
        ours, servers = (0.0, _LATER) if exactly else (_PATIENCE, 0.0)
        groups: dict[str, Sequence[str]] = {"": list(keys.values())}
        if self._apart:
            groups = {ready: [notify] for ready, notify in keys.items()}
        try:
            with guarded:
                for name in self._wires.keys() - groups.keys():
                    self._drop(name)
                for name, notify in groups.items():
                    self._pop(name, notify, seconds + servers)
            poll = select.poll()
            for wire in self._wires.values():
                poll.register(wire, select.POLLIN)
            if wake is not None:
                poll.register(wake, select.POLLIN)
            ahead = any(wire.ahead() for wire in self._wires.values())  # of the socket, with TLS
            ready = poll.poll(0 if ahead else (seconds + ours) * 1000)
            with guarded:
                for name in list(self._wires):
                    self._hear(name)
        except (RedisError, OSError) as error:
            self.close()
            raise meaning(error, self._server.shown()) from error
        except BaseException:
            self.close()
            raise
        return wake is not None and wake in {number for number, _ in ready}

    def _pop(self, name: str, notify: Sequence[str], seconds: float) -> None:
        """Begin a blocking pop that the server ends after some seconds."""
        wire = self._wires.get(name)
        if wire is not None and wire.readable():  # the server has closed it
            self._drop(name)
            wire = None
        if wire is None:
            wire = self._wires[name] = Wire(self._server.connect(name))
        wire.send(command("BLPOP", *notify, f"{max(0.001, seconds):.3f}").packed)

    def _hear(self, name: str) -> None:
        """Read what a pop gave; one that goes on is ended with its connection."""
        wire = self._wires[name]
        if not wire.readable():
            self._drop(name)
            return
        reply = wire.read()
        if not isinstance(reply, Exception):
            self.has_token = self.has_token or reply is not None
            return
        self._drop(name)
        if is_elsewhere(reply) or "UNBLOCKED" in str(reply):
            self._server.moved()  # whoever reserves next learns where to
        elif not is_wrong_type(reply):
            raise reply

    def _drop(self, name: str) -> None:
        with suppress(RedisError, OSError):
            self._wires.pop(name).disconnect()

    def close(self) -> None:
        """Close this thread's connections."""
        for name in list(self._wires):
            self._drop(name)
