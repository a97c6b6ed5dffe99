"""The RabbitMQ part of `qframe check`: settings and queues that could lose jobs."""

from __future__ import annotations

import ipaddress

from qframe.drivers.rabbitmq.publisher import Publisher
from qframe.drivers.rabbitmq.settings import RabbitmqSettings

_OLDEST = (3, 10)
_ANEW = "drain and delete it, and qframe declares it anew"


def warnings(publisher: Publisher, settings: RabbitmqSettings) -> list[str]:
    """Describe what is unsafe, a sentence each."""
    publisher.open()
    found = []
    numbers = [int(part) for part in publisher.version.split(".")[:2] if part.isdecimal()]
    if numbers and tuple(numbers) < _OLDEST:
        found.append(f"RabbitMQ {publisher.version} is too old, 3.10 or newer is needed")
    found += _about_queue(settings.queue, publisher.difference(settings.queue))
    if not settings.is_tls() and not all(_is_here(host) for host, _ in settings.addresses()):
        found.append(
            "the connection is not encrypted: the password, and all jobs, can be read on the way; "
            "use amqps://"
        )
    return found


def _about_queue(queue: str, difference: str) -> list[str]:
    if "'x-queue-type'" in difference:
        text = "is no quorum queue: it may lose jobs with its node"
        return [f"the queue {queue} {text}; {_ANEW}"]
    if "'x-delivery-limit'" in difference:
        text = "has a delivery limit: a job that was delivered so often is dropped without a record"
        return [f"the queue {queue} {text}; {_ANEW}"]
    if difference:
        return [f"the queue {queue} is not as qframe declares it: {difference}"]
    return []


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
