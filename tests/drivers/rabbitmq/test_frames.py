"""Frames that qframe writes and reads itself, beside what the client writes and reads."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp.method_framing import frame_handler
from amqp.serialization import dumps

from qframe.drivers.rabbitmq import frames
from qframe.drivers.rabbitmq.delivery import Delivery

HEADERS = {"qframe-id": "1234", "qframe-notes": "bm90ZXM="}
PROPERTIES = {"application_headers": HEADERS, "delivery_mode": 2, "message_id": "1234"}


class Seen:
    """Notes what came."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str, Delivery]] = []
        self.answers = 0

    def arrive(self, tag: str, delivery: Delivery) -> None:
        self.arrived.append((tag, delivery))

    def answered(self) -> None:
        self.answers += 1


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """The frames in it."""
    found = []
    while data:
        kind, channel, size = frames._START.unpack_from(data)
        end = frames._START.size + size
        assert data[end] == 0xCE
        found.append((kind, channel, data[frames._START.size : end]))
        data = data[end + 1 :]
    return found


@pytest.mark.parametrize("raw", [b"", b"\x00\xff", b"x" * 10_000])
def test_the_client_reads_what_is_published(raw: bytes) -> None:
    calls: list[tuple[Any, ...]] = []
    take = frame_handler(SimpleNamespace(bytes_recv=0), lambda *found: calls.append(found))
    written = split(frames.publishing(3, "queue", raw, "1234", HEADERS, 4096))
    assert {len(payload) + 8 <= 4096 for _, _, payload in written} == {True}
    method = written[0][2]
    assert method == b"\x00\x3c\x00\x28" + dumps("Bssbb", (0, "", "queue", True, False))
    deliver = b"\x00\x3c\x00\x3c" + method[4:]  # the client takes content of deliveries alone
    for kind, channel, payload in written:
        take((kind, channel, deliver if payload is method else payload))
    ((channel, _, _, message),) = calls
    assert (channel, message.body or b"", message.properties) == (3, raw, PROPERTIES)


@pytest.mark.parametrize(
    ("properties", "redelivered", "times"),
    [
        (PROPERTIES, False, 1),
        (PROPERTIES, True, 2),
        ({**PROPERTIES, "application_headers": {**HEADERS, "x-delivery-count": 4}}, True, 5),
        ({**PROPERTIES, "application_headers": {"list": ["a", 1], "\u00e9": "\u00e9"}}, False, 1),
        ({"application_headers": {}, "delivery_mode": 2, "message_id": ""}, False, 1),
        ({"content_type": "application/json", "correlation_id": "x"}, False, 1),
        ({}, False, 1),
    ],
)
@pytest.mark.parametrize("parts", [(), (b"abc",), (b"abc", b"", b"de")])
def test_a_delivery_is_read_as_by_the_client(
    properties: dict[str, Any], redelivered: bool, times: int, parts: tuple[bytes, ...]
) -> None:
    seen, raw = Seen(), b"".join(parts)
    connection = SimpleNamespace(bytes_recv=0)
    take = frames.IncomingFrames(weakref.ref(seen), connection, print)
    method = b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 77, redelivered, "exchange", "key"))
    header = frames._CONTENT.pack(60, 0, len(raw), 0)[:12]
    header += amqp.Message(**properties)._serialize_properties()
    results = [take((1, 1, method)), take((8, 0, b"")), take((2, 1, header))]
    results += [take((3, 1, part)) for part in parts]
    assert [bool(each) for each in results] == [False] * (len(results) - 1) + [True]
    assert connection.bytes_recv == len(results)
    headers = properties.get("application_headers", {})
    kind, id_ = properties.get("content_type", ""), properties.get("message_id", "")
    assert seen.arrived == [("tag", Delivery("key", raw, headers, id_, times, 77, kind))]


def test_an_answer_to_qos_is_told_and_all_else_is_the_clients() -> None:
    seen, calls = Seen(), list[Any]()
    take = frames.IncomingFrames(
        weakref.ref(seen), SimpleNamespace(bytes_recv=0), lambda *found: calls.append(found)
    )
    assert take((1, 1, b"\x00\x3c\x00\x0b"))
    assert (seen.answers, calls) == (1, [])
    take((1, 1, b"\x00\x14\x00\x28rest"))
    assert (seen.answers, [call[1] for call in calls]) == (1, [(20, 40)])
    ((_, channel, request),) = split(frames.qos(2, 50))
    assert (channel, request) == (2, b"\x00\x3c\x00\x0a" + dumps("lBb", (0, 50, False)))
