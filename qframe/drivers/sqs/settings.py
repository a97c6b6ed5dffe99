"""Settings of an SQS connection."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from qframe.config import ConnectionSettings
from qframe.config.values import Float, Int, Wait

LONGEST_LEASE = 43_200
"""Seconds from its delivery for which SQS hides a message at most."""
LONGEST_MESSAGE = 1_048_576
"""Bytes that a message may have with its attributes, and a batch in all."""
_FIFO = ".fifo"
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,79}")
_OF_AWS = re.compile(r"(?:^|\.)sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")


def is_fifo(queue: str) -> bool:
    """Whether a queue of this name is a FIFO queue."""
    return queue.endswith(_FIFO)


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its message may show a password
        raise ValueError("is not a URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be a URL, as in http://127.0.0.1:9324")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("has no user, password or options; AWS's chain finds the credentials")
    return url.rstrip("/")


def _prefix(text: str) -> str:
    if "://" in text:
        return _endpoint(text)
    if not _PREFIX.fullmatch(text):
        raise ValueError(
            "must be letters, digits, - and _, or what the URLs of the queues begin with"
        )
    return text


class SqsSettings(ConnectionSettings):
    """Jobs wait in queues of Amazon SQS.

    The name of a queue in SQS is that of qframe's between `prefix` and `suffix`; `.fifo` stays
    last. `prefix` may also be what the URLs of all queues begin with, as Laravel has it:
    `https://sqs.eu-west-1.amazonaws.com/123456789012`. The usual chain of AWS finds the
    credentials, and the region if `region` does not name it. `endpoint` is the URL of another
    server that speaks SQS.

    `overflow` is an S3 bucket for payloads of more than `overflow_above` bytes, which Laravel's
    workers read, and write, with a cache store of the driver `storage` on that bucket:
    `overflow_path` is its path, `overflow_prefix` its prefix. `overflow_endpoint` is the URL of
    another server that speaks S3.

    `create`: whether queues that do not exist are created. `block_for` is the seconds that SQS
    waits for a message before it says that there is none; a worker that stops waits as long, lest a
    message stays hidden. `timeout` is the seconds to wait for a reply, and `connect_timeout` for a
    connection.
    """

    driver: Literal["sqs"] = "sqs"
    region: Annotated[str | None, Field(pattern=r"^[a-z0-9-]+$")] = None
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    prefix: Annotated[str, AfterValidator(_prefix)] = ""
    suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$", max_length=79)] = ""
    overflow: Annotated[str, Field(min_length=1)] | None = None
    overflow_above: Annotated[Int, Field(ge=0, le=LONGEST_MESSAGE)] = LONGEST_MESSAGE
    overflow_path: str = "framework/cache/data"
    overflow_prefix: str = ""
    overflow_endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    create: bool = False
    retry_after: Annotated[Float, Field(ge=3, le=LONGEST_LEASE)] = 60
    block_for: Annotated[Int, Field(ge=1, le=20)] = 5
    timeout: Wait = 10
    connect_timeout: Wait = 5

    def name_of(self, queue: str) -> str:
        """Return the name of a queue in SQS."""
        stem, fifo = (queue[: -len(_FIFO)], _FIFO) if is_fifo(queue) else (queue, "")
        if not stem.endswith(self.suffix):
            stem += self.suffix
        return ("" if self.base_url else self.prefix) + stem + fifo

    @property
    def base_url(self) -> str:
        """What the URLs of the queues begin with; "" if SQS is to be asked for them."""
        return self.prefix if "://" in self.prefix else ""

    @property
    def known_region(self) -> str | None:
        """The region, if the settings name it."""
        found = _OF_AWS.search(urlsplit(self.base_url).hostname or "")
        return self.region or (found[1] if found else None)

    @property
    def known_endpoint(self) -> str | None:
        """The server's URL, if it is not that of the region."""
        parts = urlsplit(self.base_url)
        if self.endpoint or not self.base_url or _OF_AWS.search(parts.hostname or ""):
            return self.endpoint
        return f"{parts.scheme}://{parts.netloc}"

    def shown(self) -> str:
        """Return where the queues are."""
        if self.known_endpoint:
            return f"SQS at {self.known_endpoint}"
        return f"SQS in {self.known_region}" if self.known_region else "SQS"
