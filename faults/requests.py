"""What the requests to a Redis can be told by: each kind by bytes that it holds."""

from __future__ import annotations

from qframe.drivers.redis.commands import Script, script


def scripts() -> list[Script]:
    """Give the scripts by which workers push, reserve, start and settle."""
    return [script("apply"), script("reserve"), script("start")]


def mark_of(kind: str) -> bytes:
    """Give what a request to start, delete, release, renew, push, record or reserve holds."""
    if kind == "reserve":
        return script("reserve").digest.encode()
    return b"\r\n$%d\r\n%s\r\n" % (len(kind), kind.encode())
