"""The ceiling: our exchange on redis-py's bare `Connection`, with nothing around it.

`python -m benchmarks.apps.bare_redis drain` runs our own Lua scripts on our queue as the worker
does: it reserves as many ahead, and each start, fenced and counted, travels with the deletion of
the job before and is not waited for. `guarded` does the same and validates each job with pydantic
and sets a timer around it. `push N` is a loop of `rpush`, with redis-py's client.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import resources
from typing import Any, NoReturn

import redis.connection
from pydantic import BaseModel

from benchmarks.apps import effects, payloads

_AHEAD = 50
_LEASE = 60
_STEP = 1 / 1048576
_BEHIND = 8
_READY = "queues:default"
_RESERVED = f"{_READY}:reserved"
_NEW = b'"attempts":0,'
_STARTED = b'"attempts":1,'
_HISTORY = b'%s,"qframe":{"history":"{\\"starts\\":[[1,\\"host\\",%d,%.6f]]}","sent":"0"}}'


def _connected() -> Any:  # noqa: ANN401 (redis-py's has few types)
    module: Any = redis.connection
    connection = module.Connection(**module.parse_url(os.environ["BENCH_REDIS"]), protocol=2)
    connection.connect()
    return connection


def _loaded(connection: Any, name: str) -> str:  # noqa: ANN401
    folder = resources.files("qframe.drivers.redis") / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text() for part in ("shared", name))
    connection.send_command("SCRIPT", "LOAD", text)
    connection.read_response()
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


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
    reserve, start, delete = (_loaded(connection, each) for each in ("reserve", "start", "delete"))
    keys = (_READY, f"{_READY}:notify", f"{_READY}:delayed", _RESERVED)
    pack, send, read = (
        connection.pack_command,
        connection.send_packed_command,
        connection.read_response,
    )
    pid, unread = os.getpid(), 0
    done: tuple[bytes, str] | tuple[()] = ()
    while True:
        if done:
            send(pack("EVALSHA", delete, 1, _RESERVED, *done), check_health=False)
            unread, done = unread + 1, ()
        send(pack("EVALSHA", reserve, 4, *keys, _AHEAD), check_health=False)
        while unread:
            _check(read(disable_decoding=True))
            unread -= 1
        score, *found = read(disable_decoding=True)
        if not found:
            time.sleep(0.001)
        first = float(score)
        for index, member in enumerate(found[1::2]):
            payload = json.loads(member)
            began = time.time()
            started = _HISTORY % (member[:-1].replace(_NEW, _STARTED), pid, began)
            held, lease = first + index * _STEP, first + _LEASE + index * _STEP
            send(
                pack(
                    *("EVALSHA", start, 2, _RESERVED, _RESERVED),
                    *(member, repr(held), started, repr(lease), _LEASE),
                    *done,
                ),
                check_health=False,
            )
            unread, done = unread + 1, (started, repr(lease))
            run(payload["data"])
            if unread > _BEHIND:
                _check(read(disable_decoding=True))
                unread -= 1


def _check(reply: Any) -> None:  # noqa: ANN401
    """Make sure that what was told was done: a job started, or deleted."""
    if not (reply[0] if isinstance(reply, list) else reply):
        raise SystemExit("a lease was lost")


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
