"""What the requests to a Redis, or an SQS, can be told by: each kind by bytes that it holds."""

from __future__ import annotations

from qframe.drivers.redis.commands import Script, script

ACTIONS = {
    "reserve": "ReceiveMessage", "push": "SendMessageBatch", "delete": "DeleteMessage",
    "fail": "DeleteMessage", "release": "ChangeMessageVisibility",
    "renew": "ChangeMessageVisibility",
}  # fmt: skip
"""What SQS calls them."""


def scripts() -> list[Script]:
    """Give the scripts by which workers push, reserve, start and settle."""
    return [script("apply"), script("reserve"), script("start")]


def mark_of(kind: str) -> bytes:
    """Give what a request to start, delete, release, renew, push, record or reserve holds."""
    if kind == "reserve":
        return script("reserve").digest.encode()
    return b"\r\n$%d\r\n%s\r\n" % (len(kind), kind.encode())


def mark_of_action(name: str) -> bytes:
    """Give what a request for an action of SQS holds, or one for several at once."""
    return b"AmazonSQS." + name.encode()
