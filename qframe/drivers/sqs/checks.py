"""The SQS part of `qframe check`: settings and queues that could lose jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from qframe.drivers.sockets import is_here
from qframe.drivers.sqs.client import LONGEST_RETENTION, SqsClient
from qframe.drivers.sqs.settings import SqsSettings

_DAY = 86400


def warnings(client: SqsClient) -> Iterator[str]:
    """Describe what is unsafe, a sentence each."""
    settings = client.settings
    yield from _about_queue(client.attributes(settings.queue, "All"), settings)
    parts = urlsplit(settings.known_endpoint or "")
    if parts.scheme == "http" and not is_here(parts.hostname or ""):
        yield "the connection is not encrypted: all jobs can be read on the way; use https://"


def _about_queue(found: Mapping[str, str], settings: SqsSettings) -> Iterator[str]:
    name = settings.name_of(settings.queue)
    retention = int(found.get("MessageRetentionPeriod", LONGEST_RETENTION))
    if retention < LONGEST_RETENTION:
        yield (
            f"the queue {name} keeps messages for {_days(retention)}: a job that is not done by "
            f"then is deleted without a record; set MessageRetentionPeriod to {LONGEST_RETENTION}"
        )
    if (limit := _most_receives(found.get("RedrivePolicy", ""))) is not None:
        yield (
            f"the queue {name} has a redrive policy: a job that was received {limit} times is "
            "moved away without a record of its failure; remove it, as tries end jobs here"
        )
    key = "overflow_above" if settings.overflow else "max_payload"
    wanted = min(settings.max_payload, getattr(settings, key))
    longest = int(found.get("MaximumMessageSize", wanted))
    if longest < wanted:
        yield (
            f"the queue {name} takes messages of up to {longest:,} bytes, and SQS refuses larger "
            f"jobs: set MaximumMessageSize to 1048576, or {key} to less"
        )
    if delay := int(found.get("DelaySeconds", 0)):
        yield f"the queue {name} delays every job by {delay} seconds (DelaySeconds)"


def _days(seconds: int) -> str:
    return f"{seconds / _DAY:g} days" if seconds >= _DAY else f"{seconds} seconds"


def _most_receives(policy: str) -> str | None:
    if not policy:
        return None
    try:
        return str(json.loads(policy)["maxReceiveCount"])
    except (ValueError, KeyError, TypeError):
        return "some"
