"""The ceiling: our exchange on redis-py's bare `Connection`, with nothing around it.

`python -m benchmarks.apps.bare_redis drain` runs our own Lua scripts on our queue as the worker
does: it reserves as many ahead, and each start, fenced and counted, travels with the deletion of
the job before and is not waited for. `guarded` does the same and validates each job with pydantic
and sets a timer around it. `at_once` has fifty tasks of an event loop, each of which runs a job,
and starts and deletes many in one exchange. `push N` is a loop of `rpush`, with redis-py's client.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, cast

import redis.connection
from pydantic import BaseModel

from benchmarks.apps import effects, payloads
from qframe.drivers.redis.commands import script

_AHEAD = 100
_AT_ONCE = 50
_LEASE = 60
_BEHIND = 8
_READY = "queues:default"
_RESERVED = f"{_READY}:reserved"
_NOTES = "qframe:notes:"
_HOLD = ("1.0", 65_536, 262_144)
"""Seconds of a hold, bytes for which it lasts a second more, bytes after which none is held."""
_WHITE = bytes(b" \t\r"[n % 3] for n in range(256))


def _connected() -> Any:  # noqa: ANN401 (redis-py's has few types)
    module: Any = redis.connection
    connection = module.Connection(**module.parse_url(os.environ["BENCH_REDIS"]), protocol=2)
    connection.connect()
    return connection


def _loaded(connection: Any, name: str) -> str:  # noqa: ANN401
    found = script(name)
    connection.send_command("SCRIPT", "LOAD", found.text)
    connection.read_response()
    return found.digest


class _Append(BaseModel):
    """A no-op job."""


def _plain(_data: object) -> None:
    effects.write_byte()


def _guarded(data: object) -> None:
    signal.setitimer(signal.ITIMER_REAL, _LEASE)
    _Append.model_validate(data)
    effects.write_byte()
    signal.setitimer(signal.ITIMER_REAL, 0)


def drain(run: Callable[[object], None]) -> NoReturn:
    """Run what is in the queue, for ever."""
    connection = _connected()
    reserve, start, apply = (_loaded(connection, each) for each in ("reserve", "start", "apply"))
    pack, send, read = (
        connection.pack_command,
        connection.send_packed_command,
        connection.read_response,
    )
    unread = 0
    end = (apply, 1, _RESERVED, "0.0", "", "", "qframe:queues", "qframe:{facts}", _RESERVED)
    done: tuple[bytes, bytes] = (b"", b"")
    while True:
        if done[0]:
            step = (8, "fence", _RESERVED, done[0], "", "", "delete", done[1])
            send(pack("EVALSHA", *end, *step), check_health=False)
            unread, done = unread + 1, (b"", b"")
        send(pack("EVALSHA", *_reserving(reserve, _AHEAD)), check_health=False)
        while unread:
            _check(read(disable_decoding=True))
            unread -= 1
        found, *_ = read(disable_decoding=True)
        if not found:
            time.sleep(0.001)
        for at in range(0, len(found), 4):
            member, score = found[at + 1], found[at + 2]
            payload = json.loads(member)
            begin, started = _starting(start, member, score, done)
            send(pack("EVALSHA", *begin), check_health=False)
            unread, done = unread + 1, started
            run(payload["data"])
            if unread > _BEHIND:
                _check(read(disable_decoding=True))
                unread -= 1


def _reserving(script: str, limit: int) -> tuple[object, ...]:
    return (script, 1, _READY, "0.0", b"\n" + _white(), limit, *_HOLD, _NOTES, 1)


def _starting(
    script: str, member: bytes, score: bytes, done: tuple[bytes, bytes]
) -> tuple[tuple[object, ...], tuple[bytes, bytes]]:
    """Give what starts a job and deletes one that is done, and what deletes that job."""
    tag = b"\n\t" + _white()
    started = member.replace(b'"attempts":0', b'"attempts":1') + tag
    note, notes = f"{_NOTES}{_READY}".encode() + tag, b'0 {"starts":[[1,"host",%d,%.6f]]}'
    notes = notes % (os.getpid(), time.time())
    one = (script, 2, _RESERVED, _RESERVED, "0.0", "start", member, score, started)
    return (*one, _LEASE, "", note, notes, *done), (started, note)


async def drain_at_once() -> NoReturn:
    """Run what is in the queue for ever, many jobs at once.

    While the server answers, the loop runs the tasks. A deletion goes with the start of another
    job; one for which there is none waits a little for it.
    """
    connection = _connected()
    reserve, start = (_loaded(connection, each) for each in ("reserve", "start"))
    pack, read = connection.pack_command, partial(connection.read_response, disable_decoding=True)
    held: deque[tuple[bytes, bytes]] = deque()
    done: deque[tuple[bytes, bytes]] = deque()
    running: set[asyncio.Task[None]] = set()
    woken = asyncio.Event()

    async def run(_data: object, started: tuple[bytes, bytes]) -> None:
        await effects.append()
        done.append(started)
        running.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        woken.set()

    while True:
        free = min(len(held), _AT_ONCE - len(running))
        commands, tasks = [], []
        for _ in range(free):
            member, score = held.popleft()
            begin, started = _starting(start, member, score, done.popleft() if done else (b"", b""))
            commands.append(pack("EVALSHA", *begin))
            tasks.append((json.loads(member)["data"], started))
        room = _AT_ONCE - len(held)
        if room > 0:
            commands.append(pack("EVALSHA", *_reserving(reserve, room)))
        words = b"".join(word for command in commands for word in command)
        connection.send_packed_command([words], check_health=False)
        for each in tasks:
            running.add(asyncio.create_task(run(*each)))
        await asyncio.sleep(0)
        for _ in range(free):
            _check(read())
        if room > 0:
            found, *_ = read()
            held.extend(zip(found[1::4], found[2::4], strict=True))
        if len(running) == _AT_ONCE or not held:
            await woken.wait()
        woken.clear()


def _white() -> bytes:
    """Give white space that nothing else ends with."""
    return random.randbytes(32).translate(_WHITE)  # noqa: S311 (a name, no secret)


def _check(reply: Any) -> None:  # noqa: ANN401
    """Make sure that what was told was done: a job started, or deleted."""
    if reply != 1:
        raise SystemExit(f"a lease was lost: {reply}")


def push(count: int) -> float:
    """Append a payload with redis-py's client, again and again; give the rate."""
    client = redis.Redis.from_url(os.environ["BENCH_REDIS"])
    client.rpush("bare", payloads.APPEND)
    began = time.perf_counter()
    for _ in range(count):
        client.rpush("bare", payloads.APPEND)
    rate = count / (time.perf_counter() - began)
    client.delete("bare")
    return rate


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    if name == "at_once":
        asyncio.run(drain_at_once())
    if name != "push":
        drain({"drain": _plain, "guarded": _guarded}[name])
    print(json.dumps(push(*map(int, numbers))))
