"""The RabbitMQ part of `qframe check`: settings and queues that could lose jobs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qframe.drivers.rabbitmq.publisher import Publisher
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import is_here

if TYPE_CHECKING:
    from qframe.drivers.rabbitmq.management import QueueReport

_OLDEST = (3, 10)
_ANEW = "drain and delete it, and qframe declares it anew"
_SHOWN = 5
_DROPS = {
    "delivery-limit": "a job that was delivered so often",
    "message-ttl": "a job that has waited so long (milliseconds)",
    "max-length": "the oldest jobs of a longer queue",
    "max-length-bytes": "the oldest jobs of a larger queue",
    "expires": "the queue with its jobs when nobody has used it for so long (milliseconds)",
}
"""What RabbitMQ drops without a record, by the key of a policy.

A queue's argument has x- before it.
"""
_TIMEOUT = "consumer-timeout"


def warnings(publisher: Publisher, settings: RabbitmqSettings) -> list[str]:
    """Describe what is unsafe, a sentence each."""
    publisher.open()
    found = []
    numbers = [int(part) for part in publisher.version.split(".")[:2] if part.isdecimal()]
    if numbers and tuple(numbers) < _OLDEST:
        found.append(f"RabbitMQ {publisher.version} is too old, 3.10 or newer is needed")
    found += _about_queue(settings.queue, publisher.difference(settings.queue))
    if not settings.is_tls() and not all(is_here(host) for host, _ in settings.addresses()):
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


def of_queues(reports: Sequence[QueueReport], settings: RabbitmqSettings) -> list[str]:
    """Describe what the arguments and policies of queues can do to their jobs, a sentence each."""
    found = defaultdict[str, list[str]](list)
    for report in reports:
        name = settings.queue_of(report.name)
        for text in _of_queue(report, is_default=name == settings.queue):
            found[text].append(name)
    return [f"{text}: queue {_listed(names)}" for text, names in found.items()]


def _of_queue(report: QueueReport, *, is_default: bool) -> Iterator[str]:
    if report.kind != "quorum" and not is_default:
        yield f"{report.kind} queues may lose jobs with their node; drain and delete such a queue"
    by = f"the policy {' and '.join(report.policies)}" if report.policies else "a policy"
    for key, what in _DROPS.items():
        values = {by: report.policy.get(key), "an argument": report.arguments.get(f"x-{key}")}
        for source, value in values.items():
            if _drops(report, key, value):
                yield f"{source} has {key} = {value}: RabbitMQ drops {what}{_goes_to(report)}"


def _drops(report: QueueReport, key: str, value: object) -> bool:
    if not isinstance(value, int) or value < 0:  # -1: no limit
        return False
    overflow = report.policy.get("overflow") or report.arguments.get("x-overflow") or "drop-head"
    return overflow == "drop-head" or not key.startswith("max-length")


def _goes_to(report: QueueReport) -> str:
    key = "dead-letter-exchange"
    exchange = report.policy.get(key, report.arguments.get(f"x-{key}"))
    return "" if exchange is None else f", to the exchange {str(exchange) or '(default)'!r}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def longest_job(reports: Sequence[QueueReport], settings: RabbitmqSettings) -> float:
    """Return after how many seconds the server closes the channel of a job that still runs."""
    said = [
        value / 1000
        for each in reports
        for value in (each.policy.get(_TIMEOUT), each.arguments.get(f"x-{_TIMEOUT}"))
        if isinstance(value, int)
    ]
    return min([*said, settings.consumer_timeout or math.inf])
