"""Delivery: a message as RabbitMQ has delivered it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

_COUNT = "x-delivery-count"


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
    def of(
        cls, name: str, raw: bytes, properties: Mapping[str, Any], tag: int, *, redelivered: bool
    ) -> Self:
        """Return the message of a queue with the properties that the client has read."""
        headers = dict(properties.get("application_headers") or {})
        counted = headers.get(_COUNT, 0)
        counted = counted if isinstance(counted, int) else 0
        before = max(counted, int(redelivered))
        id_, kind = (str(properties.get(key, "")) for key in ("message_id", "content_type"))
        return cls(name, raw, headers, id_, before + 1, tag, kind)

    @classmethod
    def gotten(cls, name: str, message: Any) -> Self:  # noqa: ANN401 (the client has no types)
        """Return the answer to a `get`."""
        said, raw = message.delivery_info, bytes(message.body or b"")  # an empty one is a text
        tag, redelivered = int(said["delivery_tag"]), bool(said["redelivered"])
        return cls.of(name, raw, message.properties, tag, redelivered=redelivered)
