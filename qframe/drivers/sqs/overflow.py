"""Overflow: large payloads in S3, where Laravel's cache store `storage` keeps them.

The body of the message points to the payload, `{"@pointer": KEY}`. The object of a key has the time
at which it expires, in ten digits, and the payload as PHP serializes a text.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from typing import NamedTuple

from qframe.drivers.sqs.aws import AwsClient
from qframe.drivers.sqs.errors import MissingObject
from qframe.drivers.sqs.settings import SqsSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable

log = logging.getLogger("qframe")

_KEYS = "laravel:sqs-payloads:"
_NEVER = b"9999999999"
_POINTER = b'"@pointer"'
_LONGEST_POINTER = 1000
_TEXT = re.compile(rb's:(\d{1,12}):"')


class StoredPayload(NamedTuple):
    """A payload that a message points to."""

    raw: bytes
    path: str


class Overflow:
    """The payloads of one connection that are too large for SQS."""

    def __init__(self, settings: SqsSettings, bucket: str) -> None:
        self._bucket = bucket
        self._folder = settings.overflow_path.strip("/")
        self._prefix = settings.overflow_prefix
        self._client = AwsClient(settings, "s3", settings.overflow_endpoint, f"S3 ({bucket})")

    def put(self, id: str, raw: bytes) -> bytes:  # noqa: A002 (the message's)
        """Keep a payload. Returns the body of its message. Raises `BackendUnavailable`.

        The key is of the message, not of the job: a copy of the message, as for a retry, has
        another one, and outlives it.
        """
        key = f"{_KEYS}{id}"
        body = _NEVER + b's:%d:"' % len(raw) + raw + b'";'
        self._client.call(
            "put_object", twice=True, Bucket=self._bucket, Key=self._path(key), Body=body
        )
        return json.dumps({"@pointer": key}).encode()

    def find(self, body: bytes) -> StoredPayload | None:
        """Return the payload that a message points to; None if it has its own.

        If there is none, a log record says so, and the message's body is its payload: it fails, and
        can be retried. Raises `BackendUnavailable`.
        """
        if len(body) > _LONGEST_POINTER or _POINTER not in body:
            return None
        key = _key_in(body)
        if key is None:
            return None
        path = self._path(key)
        try:
            raw = _unpacked(self._client.content("get_object", Bucket=self._bucket, Key=path))
        except (MissingObject, BackendUnusable, ValueError) as error:
            log.error("the payload of a job cannot be read, %s (%s): %s", key, path, error)  # noqa: TRY400 (it says all)
            return None
        return StoredPayload(raw, path)

    def delete(self, path: str) -> None:
        """Delete a payload whose message is deleted; if that fails, it stays."""
        try:
            self._client.call("delete_object", twice=True, Bucket=self._bucket, Key=path)
        except BackendUnavailable as error:
            log.warning("the payload of a job that has ended stays in S3 (%s): %s", path, error)

    def fault(self) -> str:
        """Return why the bucket cannot be used; "" if it can."""
        try:
            self._client.call("head_bucket", twice=True, Bucket=self._bucket)
        except BackendUnavailable as error:
            return str(error)
        return ""

    def _path(self, key: str) -> str:
        digest = hashlib.sha1((self._prefix + key).encode()).hexdigest()  # noqa: S324 (as Laravel's)
        return f"{self._folder}/{digest[:2]}/{digest[2:4]}/{digest}".lstrip("/")


def _key_in(body: bytes) -> str | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    key = found.get("@pointer") if isinstance(found, dict) else None
    return key if isinstance(key, str) else None


def _unpacked(kept: bytes) -> bytes:
    """Return the payload in an object. Raises `ValueError`."""
    expires, text = kept[:10], kept[10:]
    found = _TEXT.match(text)
    if not expires.isdigit() or found is None:
        raise ValueError("what is kept there is no text of Laravel's cache")
    raw = text[found.end() :][: int(found[1])]
    if text[found.end() + len(raw) :] != b'";':
        raise ValueError("what is kept there is cut off")
    if int(expires) <= time.time():
        raise ValueError("it has expired")
    return raw
