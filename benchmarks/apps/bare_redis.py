"""The ceiling: our exchange on redis-py's bare `Connection`, with nothing around it.

`python -m benchmarks.apps.bare_redis drain` runs our own Lua scripts on our queue as the worker
does: it reserves as many ahead, and each start, fenced and counted, travels with the deletion of
the job before and is not waited for. `guarded` does the same and validates each job with pydantic
and sets a timer around it. `push N` is a loop of `rpush`, with redis-py's client.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import redis.connection
from pydantic import BaseModel

from benchmarks.apps import effects, payloads
from qframe.drivers.redis.commands import script

_AHEAD = 100
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
    pid, unread = os.getpid(), 0
    one = (start, 2, _RESERVED, _RESERVED, "0.0", "start")
    end = (apply, 1, _RESERVED, "0.0", "", "", "qframe:queues", "qframe:{facts}", _RESERVED)
    done: tuple[bytes, bytes] = (b"", b"")
    while True:
        if done[0]:
            step = (8, "fence", _RESERVED, done[0], "", "", "delete", done[1])
            send(pack("EVALSHA", *end, *step), check_health=False)
            unread, done = unread + 1, (b"", b"")
        words = (reserve, 1, _READY, "0.0", b"\n" + _white(), _AHEAD, *_HOLD, _NOTES, 1)
        send(pack("EVALSHA", *words), check_health=False)
        while unread:
            _check(read(disable_decoding=True))
            unread -= 1
        found, *_ = read(disable_decoding=True)
        if not found:
            time.sleep(0.001)
        for at in range(0, len(found), 4):
            member, score = found[at + 1], found[at + 2]
            payload = json.loads(member)
            tag = b"\n\t" + _white()
            started = member.replace(b'"attempts":0', b'"attempts":1') + tag
            note, notes = f"{_NOTES}{_READY}".encode() + tag, b'0 {"starts":[[1,"host",%d,%.6f]]}'
            notes = notes % (pid, time.time())
            begin = (*one, member, score, started, _LEASE, "", note, notes, *done)
            send(pack("EVALSHA", *begin), check_health=False)
            unread, done = unread + 1, (started, note)
            run(payload["data"])
            if unread > _BEHIND:
                _check(read(disable_decoding=True))
                unread -= 1


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
    if name != "push":
        drain({"drain": _plain, "guarded": _guarded}[name])
    print(json.dumps(push(*map(int, numbers))))
