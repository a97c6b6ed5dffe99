"""Waiter: waits for the token of a push, a moment, or a signal.

It uses a blocking pop on the `:notify` lists of all queues, on its own connection; on a Cluster one
for each slot. It takes tokens, never jobs: a broken connection loses a token at most, and the next
reservation leaves another one if jobs are ready.
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
"""Seconds added to the server's timeout if our side ends the pop: servers are 0.1 s late."""
_PATIENCE = 0.3
"""Seconds that the server gets to end a pop that need not be exact."""


class Waiter:
    """Waits for one thread; `expected` is when its last reservation expects the next job."""

    def __init__(self, server: Server, *, apart: bool) -> None:
        self.expected: tuple[tuple[str, ...], float] | None = None
        """Queues, and the moment until which none of them gets a ready job by itself."""
        self.token_of: tuple[str, ...] = ()
        """Queues whose token the last wait took, until a job of theirs is reserved."""
        self.has_token = False
        self._server = server
        self._apart = apart
        self._wires: dict[str, Wire] = {}

    def wait(
        self, keys: Mapping[str, str], seconds: float, wake: int | None, *, exactly: bool
    ) -> bool:
        """Wait for a token of these queues; `keys` maps the `ready` key to the `notify` key.

        Returns whether `wake` ended it. `exactly`: `seconds` is the moment of a job and must not be
        late.
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
            ahead = any(wire.ahead() for wire in self._wires.values())  # buffered by TLS
            ready = poll.poll(0 if ahead else (seconds + ours) * 1000)
            with guarded:
                for name in list(self._wires):
                    self._read_pop(name)
        except (RedisError, OSError) as error:
            self.close()
            raise meaning(error, self._server.shown()) from error
        except BaseException:
            self.close()
            raise
        return wake is not None and wake in {number for number, _ in ready}

    def _pop(self, name: str, notify: Sequence[str], seconds: float) -> None:
        """Send a blocking pop that the server ends after `seconds`."""
        wire = self._wires.get(name)
        if wire is not None and wire.readable():  # the server has closed it
            self._drop(name)
            wire = None
        if wire is None:
            wire = self._wires[name] = Wire(self._server.connect(name))
        wire.send(command("BLPOP", *notify, f"{max(0.001, seconds):.3f}").packed)

    def _read_pop(self, name: str) -> None:
        """Read the reply of a pop; closes the connection of an unfinished one."""
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
            self._server.moved()  # the next reservation finds the new server
        elif not is_wrong_type(reply):
            raise reply

    def _drop(self, name: str) -> None:
        with suppress(RedisError, OSError):
            self._wires.pop(name).disconnect()

    def close(self) -> None:
        for name in list(self._wires):
            self._drop(name)
