"""The frames of each job, which the client's general code takes several times as long for.

All others are the client's: those that open, declare, consume, and close.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from amqp.method_framing import frame_handler
from amqp.serialization import decode_properties_basic

from qframe.drivers.rabbitmq.delivery import Delivery

_METHOD, _HEADER, _BODY = 1, 2, 3
_START = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIHHQBB")
_QOS = struct.Struct(">BHIHHIHBB")
_PUBLISH = struct.Struct(">HHHB")
_CONTENT = struct.Struct(">HHQH")
_TAG = struct.Struct(">QB")
_LONG = struct.Struct(">I")
_END = b"\xce"
_DELIVER = b"\x00\x3c\x00\x3c"
_QOS_OK = b"\x00\x3c\x00\x0b"
_HEADERS, _PERSISTENCE, _ID = 0x2000, 0x1000, 0x0080
_OURS = _HEADERS | _PERSISTENCE | _ID
"""The properties of a message that qframe has published."""
_PERSISTENT = 2
_MANDATORY = 1
_PROPERTIES_AT = 12


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _START.pack(kind, channel, len(payload)) + payload + _END


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
    return _ACK.pack(_METHOD, channel, 13, 60, 80, tag, multiple, _END[0])


def qos(channel: int, count: int) -> bytes:
    """Return the request that lets a consumer have so many messages; the server answers it."""
    return _QOS.pack(_METHOD, channel, 11, 60, 10, 0, count, 0, _END[0])


def publishing(
    channel: int,
    queue: str,
    raw: bytes,
    id: str,  # noqa: A002 (as everywhere)
    headers: Mapping[str, str],
    longest: int,
) -> bytes:
    """Return the frames that publish a message; none is longer than `longest` bytes."""
    name = queue.encode()
    method = _PUBLISH.pack(60, 40, 0, 0) + bytes((len(name),)) + name + bytes((_MANDATORY,))
    table = b"".join(_entry(key, value) for key, value in headers.items())
    named = id.encode()
    header = b"".join(
        (
            _CONTENT.pack(60, 0, len(raw), _OURS),
            _LONG.pack(len(table)),
            table,
            bytes((_PERSISTENT, len(named))),
            named,
        )
    )
    most = longest - _START.size - len(_END)
    parts = (raw[at : at + most] for at in range(0, len(raw), most))
    return b"".join(
        (
            _frame(_METHOD, channel, method),
            _frame(_HEADER, channel, header),
            *(_frame(_BODY, channel, part) for part in parts),
        )
    )


def _entry(key: str, value: str) -> bytes:
    name, text = key.encode(), value.encode()
    return b"".join((bytes((len(name),)), name, b"S", _LONG.pack(len(text)), text))


class TakesDeliveries(Protocol):
    """What gets the deliveries of a connection."""

    def arrive(self, tag: str, delivery: Delivery) -> None:
        """Take a message that the consumer with this tag was sent."""

    def answered(self) -> None:
        """Take note of an answer to `qos`."""


class IncomingFrames:
    """Takes each frame: reads deliveries and the answers to `qos` itself, the client the rest."""

    def __init__(
        self,
        consumer: weakref.ref[TakesDeliveries],
        connection: Any,  # noqa: ANN401 (the client has no types)
        others: Callable[..., object],
    ) -> None:
        self._consumer = consumer
        self._connection = connection
        self._others = frame_handler(connection, others)
        self._method = b""
        """That of the message whose frames come now, if it is a delivery."""
        self._header = b""
        self._parts: list[bytes] = []
        self._missing = 0

    def __call__(self, found: tuple[int, int, bytes]) -> Any:  # noqa: ANN401 (as above)
        """Return whether that was all of a method."""
        kind, _, payload = found
        if kind == _METHOD and payload[:4] == _DELIVER:
            self._method = payload
        elif kind == _METHOD and payload[:4] == _QOS_OK:
            self._connection.bytes_recv += 1
            self._there().answered()
            return True
        elif not self._method or kind not in (_HEADER, _BODY):
            return self._others(found)
        elif kind == _HEADER:
            self._header = payload
            self._missing = _CONTENT.unpack_from(payload)[2]
        else:
            self._parts.append(payload)
            self._missing -= len(payload)
        self._connection.bytes_recv += 1
        if kind == _METHOD or self._missing:
            return False
        method, self._method = self._method, b""
        parts, self._parts = self._parts, []
        self._there().arrive(*_delivered(method, self._header, b"".join(parts)))
        return True

    def _there(self) -> TakesDeliveries:
        found = self._consumer()
        assert found is not None  # noqa: S101 (who else would read)
        return found


def _delivered(method: bytes, header: bytes, raw: bytes) -> tuple[str, Delivery]:
    consumer, at = _short(method, 4)
    tag, redelivered = _TAG.unpack_from(method, at)
    at += _TAG.size
    key, _ = _short(method, at + 1 + method[at])  # behind the exchange
    found = None if redelivered else _of_ours(header)
    if found is not None:
        id_, headers = found
        return consumer, Delivery(key, raw, headers, id_, 1, tag, "")
    said, _ = decode_properties_basic(header, _PROPERTIES_AT)
    return consumer, Delivery.of(key, raw, said, tag, redelivered=bool(redelivered))


def _of_ours(header: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return id and headers of a message with our properties, and only texts among its headers.

    None for any other, also for one that was delivered before: a number says how often.
    """
    if _CONTENT.unpack_from(header)[3] != _OURS:
        return None
    at = _PROPERTIES_AT + 2 + _LONG.size
    end = at + _LONG.unpack_from(header, at - _LONG.size)[0]
    headers: dict[str, Any] = {}
    while at < end:
        key, at = _short(header, at)
        if header[at] != ord("S"):
            return None
        at += 1 + _LONG.size
        text = header[at : at + _LONG.unpack_from(header, at - _LONG.size)[0]]
        headers[key] = text.decode("utf-8", "surrogateescape")
        at += len(text)
    id_, _ = _short(header, at + 1)
    return id_, headers


def _short(buffer: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + buffer[at]
    return buffer[at + 1 : end].decode("utf-8", "surrogateescape"), end
