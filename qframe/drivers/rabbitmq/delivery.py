"""Delivery: a message as RabbitMQ has delivered it, and the frames that acknowledge several."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

_COUNT = "x-delivery-count"
_ACK = struct.Struct(">BHIHHQBB")


class Delivery(NamedTuple):
    """A delivered message, by its queue's name in the broker."""

    name: str
    raw: bytes
    headers: dict[str, Any]
    id: str
    times: int
    """How often it has been delivered, this time included."""
    tag: int
    kind: str
    """The type of its content; "" if its publisher did not say."""

    @classmethod
    def of(cls, name: str, message: Any) -> Self:  # noqa: ANN401 (the client has no types)
        """Return the message of a queue, as the client has read it."""
        headers = dict(message.properties.get("application_headers") or {})
        counted = headers.get(_COUNT, 0)
        counted = counted if isinstance(counted, int) else 0
        before = max(counted, int(bool(message.delivery_info["redelivered"])))
        body = message.body
        raw = body.encode() if isinstance(body, str) else bytes(body)
        tag = int(message.delivery_info["delivery_tag"])
        said = message.properties
        id_, kind = str(said.get("message_id", "")), str(said.get("content_type", ""))
        return cls(name, raw, headers, id_, before + 1, tag, kind)


def acknowledgements(channel: int, tags: Sequence[int], first: float) -> bytes:
    """Return the frames that acknowledge these tags: one for all before `first`.

    That is the first tag of the channel that is to stay unacknowledged.
    """
    before = [tag for tag in tags if tag < first]
    frames = [_ack(channel, tag, multiple=False) for tag in tags if tag > first]
    if before:
        frames.insert(0, _ack(channel, max(before), multiple=len(before) > 1))
    return b"".join(frames)


def _ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """Return the frame of an acknowledgement."""
    return _ACK.pack(1, channel, 13, 60, 80, tag, multiple, 0xCE)
