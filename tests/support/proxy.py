"""A TCP proxy on loopback that can be told, while it runs, to be a bad network.

It lives in a thread of its own. What it does is switched for all connections at once, those that
are open and those to come; where it forwards to can be changed for those to come.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum, auto
from typing import Any, Self, TypeVar

T = TypeVar("T")

_CHUNK = 65536
_TRICKLE = 0.01


class Mode(StrEnum):
    """What is done to connections."""

    PASS = auto()
    """Forward everything."""
    DELAY = auto()
    """Forward everything `seconds` later, each way."""
    CUT = auto()
    """Reset what is open, and what connects."""
    CUT_REQUEST = auto()
    """Reset a connection that sends a request, which is not forwarded."""
    CUT_AFTER_REQUEST = auto()
    """Forward the request, wait for the reply, drop it and reset the connection."""
    BLACKHOLE = auto()
    """Accept, forward nothing, never answer; what was sent arrives once it is over."""
    TRICKLE = auto()
    """Forward replies a byte per 10 ms."""
    HALF_CLOSE = auto()
    """Send the client an end of file, once, and go on taking what it sends."""


class Proxy:
    """Forwards from `address` to the target; `close` ends it.

    `accepted`, `sent` and `received` count connections, bytes to the server and bytes to the
    client; `faults` counts the connections that were cut or half closed.
    """

    def __init__(self, host: str, port: int) -> None:
        self.accepted = 0
        self.sent = 0
        self.received = 0
        self.faults = 0
        self._target = (host, port)
        self._mode = Mode.PASS
        self._seconds = 0.0
        self._only: bytes | None = None
        self._times: int | None = None
        self._rate = 0.0
        self._free_at = 0.0
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to connect to."""
        return "127.0.0.1", self.port

    @property
    def mode(self) -> Mode:
        """What is being done now."""
        return self._mode

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def switch(
        self,
        mode: Mode,
        *,
        seconds: float = 0.0,
        only: bytes | None = None,
        times: int | None = None,
    ) -> None:
        """Do `mode` from now on.

        Of the two modes that cut at a request, `only` chooses the requests by what they contain,
        and after `times` of them everything passes again.
        """

        async def change() -> None:
            self._mode, self._seconds, self._only, self._times = mode, seconds, only, times
            if mode is Mode.BLACKHOLE:
                self._flowing.clear()
            else:
                self._flowing.set()
            if mode in (Mode.CUT, Mode.HALF_CLOSE):
                for link in list(self._links):
                    self.faults += 1
                    link.reset() if mode is Mode.CUT else link.half_close()

        self._run(change())

    def throttle(self, bytes_a_second: float) -> None:
        """Let so much through to all clients together, as one line does; 0 is no limit."""
        self._rate = bytes_a_second

    def retarget(self, host: str, port: int) -> None:
        """Forward the connections to come to another place."""
        self._target = (host, port)

    def close(self) -> None:
        """Cut everything and end the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _end(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one connection -------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        with suppress(OSError, asyncio.CancelledError):
            await self._serve(reader, link)
        link.close()
        self._links.discard(link)

    async def _serve(self, reader: asyncio.StreamReader, link: _Link) -> None:
        if self._mode is Mode.CUT:
            self.faults += 1
            return link.reset()
        await self._flowing.wait()
        upward, link.server = await asyncio.open_connection(*self._target)
        await asyncio.gather(
            self._carry(reader, link.server, link, self._request),
            self._carry(upward, link.client, link, self._reply),
        )
        return None

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        link: _Link,
        forward: Callable[[bytes, _Link], Coroutine[Any, Any, None]],
    ) -> None:
        """Forward what comes from one side to the other, whose end follows its end."""
        while data := await source.read(_CHUNK):
            await self._flowing.wait()
            if self._mode is Mode.DELAY:
                await asyncio.sleep(self._seconds)
            await forward(data, link)
        await self._flowing.wait()
        if target.can_write_eof():
            target.write_eof()

    async def _request(self, data: bytes, link: _Link) -> None:
        chosen = self._only is None or self._only in data
        if self._mode is Mode.CUT_REQUEST and chosen:
            self._count_down()
            return link.reset()
        if self._mode is Mode.CUT_AFTER_REQUEST and chosen:
            self._count_down()
            link.doomed = True
        self.sent += len(data)
        assert link.server is not None
        link.server.write(data)
        await link.server.drain()
        return None

    async def _reply(self, data: bytes, link: _Link) -> None:
        if link.doomed:
            return link.reset()
        pieces = [data[n : n + 1] for n in range(len(data))]
        for piece in pieces if self._mode is Mode.TRICKLE else [data]:
            if self._mode is Mode.TRICKLE:
                await asyncio.sleep(_TRICKLE)
            if self._rate:
                self._free_at = max(self._free_at, self._loop.time()) + len(piece) / self._rate
                await asyncio.sleep(self._free_at - self._loop.time())
            self.received += len(piece)
            link.client.write(piece)
            await link.client.drain()
        return None

    def _count_down(self) -> None:
        """Count one request that was cut at, and stop after as many as were asked for."""
        self.faults += 1
        if self._times is not None:
            self._times -= 1
            if self._times <= 0:
                self._mode = Mode.PASS


class _Link:
    """The two sides of one connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.doomed = False

    def reset(self) -> None:
        """Reset the client's side; the server gets an end of file behind what was forwarded."""
        raw = self.client.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.transport.abort()
        if self.server is not None:
            self.server.close()

    def half_close(self) -> None:
        """Send the client an end of file."""
        with suppress(OSError):
            self.client.write_eof()

    def close(self) -> None:
        """Close both sides."""
        self.client.close()
        if self.server is not None:
            self.server.close()
