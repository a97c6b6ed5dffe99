"""NatsConnection: nats-py's client for all threads of a process, in an event loop of its own."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, Error, MaxPayloadError

from qframe import forks
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable, PayloadTooLarge

from .settings import NatsSettings

T = TypeVar("T")
Request = Callable[[Client], Coroutine[Any, Any, T]]

_FAULTS = (Error, OSError, asyncio.TimeoutError)
"""What the client raises."""


class NatsConnection:
    """Makes requests from any thread. A forked child opens a connection of its own.

    The client is asynchronous: one thread waits for messages while another one renews its lease.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._lock = forks.lock()
        self._forget()
        forks.in_child_of(self, NatsConnection._forget)

    def _forget(self) -> None:
        self._loop: ConnectionLoop | None = None
        self._users = 0

    def ask(self, request: Request[T]) -> T:
        """Return what a request returns. It is made again, once, if the connection was lost.

        Raises `BackendUnavailable` or `PayloadTooLarge`.
        """
        with self._lock:
            if self._loop is None:
                self._loop = ConnectionLoop(self._settings)
            loop, self._users = self._loop, self._users + 1
        try:
            return loop.ask(request)
        except MaxPayloadError as error:
            raise PayloadTooLarge(
                f"{self._settings.shown()}: the server takes no such job"
            ) from error
        except _FAULTS as error:
            raise BackendUnavailable(f"{self._settings.shown()}: {_reason(error)}") from error
        finally:
            with self._lock:
                self._users -= 1

    def close(self) -> None:
        """Close the connection, unless another thread uses it."""
        with self._lock:
            if self._users or self._loop is None:
                return
            loop, self._loop = self._loop, None
        loop.close()


class ConnectionLoop:
    """An event loop in a thread of its own, and the client in it."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        # What is registered with epoll would be so for a forked child, too.
        self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())
        self._opening = asyncio.Lock()
        self._client: Client | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._thread = start_thread("qframe nats", self._loop.run_forever)

    def ask(self, request: Request[T]) -> T:
        """Make a request from another thread."""
        asking = asyncio.run_coroutine_threadsafe(self._asked(request), self._loop)
        try:
            return asking.result()
        except BaseException:  # a signal, perhaps
            asking.cancel()
            raise

    async def _asked(self, request: Request[T]) -> T:
        with suppress(ConnectionClosedError):
            return await self._asked_once(request)
        return await self._asked_once(request)

    async def _asked_once(self, request: Request[T]) -> T:
        """Make a request; raise `ConnectionClosedError` as soon as its connection is lost."""
        client = await self._connected()
        lost, asking = self._lost, asyncio.ensure_future(request(client))
        try:
            await asyncio.wait((asking, lost), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionClosedError
            return asking.result()
        finally:
            asking.cancel()

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is None or not self._client.is_connected:
                with forks.undisturbed(asks=True):
                    self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        settings, client = self._settings, Client()
        self._lost = lost = self._loop.create_future()

        async def be_lost() -> None:
            if not lost.done():
                lost.set_result(None)

        async def ignore(_: Exception) -> None:
            """Leave it to who asks."""

        await client.connect(
            settings.url,
            name="qframe",
            user_credentials=settings.credentials,
            allow_reconnect=False,  # what was asked for meanwhile would be lost
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=math.ceil(settings.timeout),
            ping_interval=20,
            closed_cb=be_lost,
            error_cb=ignore,
        )
        return client

    def close(self) -> None:
        """Close the connection and end the thread."""

        async def end() -> None:
            if self._client is not None:
                await self._client.close()

        with suppress(*_FAULTS):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _reason(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
