"""Celery's messages in RabbitMQ: what one that was delivered becomes, and one for its workers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import amqp

from qframe.drivers.broker.message import BrokerMessage
from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.exceptions import InvalidPayload
from qframe.payload import celery, envelope

_WIRE = f'"{envelope.WIRE}"'.encode()


class TranslatedDelivery(NamedTuple):
    """A delivered message of Celery, as a payload of qframe."""

    raw: bytes
    id: str
    """Differs between two messages, also of one task that Celery tries again."""
    attempts: int
    delay: float
    """Seconds until its eta; 0: none."""


def translated(
    delivery: Delivery, names: Mapping[str, str], longest: int
) -> TranslatedDelivery | None:
    """Translate a message of Celery; None for any other.

    What cannot be run becomes a payload that fails with the reason. `names` has the names of tasks
    that are others here; a compressed body may have `longest` bytes.
    """
    headers, kind = delivery.headers, delivery.kind
    if not celery.is_call(headers):
        return None
    attempts, delay = 0, 0.0
    try:
        call = celery.read(headers, kind, delivery.raw, longest)
        raw = celery.payload_of(call, names.get(call.name, call.name))
        attempts = call.retries
        delay = 0.0 if call.due is None else max(0.0, call.due - time.time())
    except celery.NotReadable as why:
        raw = celery.refused(headers, kind, delivery.raw, str(why))
    return TranslatedDelivery(raw, _id_of(delivery), attempts, delay)


def for_celery(message: BrokerMessage) -> Any | None:  # noqa: ANN401 (the client has no types)
    """Return the client's message for a job that Celery is to run; None for any other job."""
    if _WIRE not in message.raw:
        return None
    try:
        payload = envelope.parse(message.raw)
    except InvalidPayload:
        return None
    written = celery.written(payload) if payload.get(envelope.WIRE) == "celery" else None
    if written is None:
        return None
    headers, body = written
    return amqp.Message(
        body,
        delivery_mode=2,
        message_id=message.id,
        correlation_id=str(headers["id"]),
        content_type=celery.JSON,
        content_encoding="utf-8",
        application_headers=headers,
    )


def _id_of(delivery: Delivery) -> str:
    shown = {key: value for key, value in delivery.headers.items() if not key.startswith("x-")}
    text = json.dumps(shown, default=str, sort_keys=True)
    return hashlib.sha256(text.encode() + delivery.raw).hexdigest()
