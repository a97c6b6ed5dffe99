"""Failed jobs in Redis: records by uuid, and their order."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call

_PAGE = 100


class RedisFailedStore(FailedStore):
    """A hash of records, and a sorted set of their uuids by when they failed."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self._records, self._order = self._keys = links.keys.failed, links.keys.failed_order

    def add(self, record: FailedJob) -> None:
        with self.links.of(self._records) as link:
            link.ask(call("failed_add", self._keys, record.uuid, encoded(record), record.failed_at))

    def find(self, uuid: str) -> FailedJob | None:
        with self.links.of(self._records) as link:
            (text,) = link.ask(Command("HGET", self._records, uuid))
        return None if text is None else _decoded(text)

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> Sequence[FailedJob]:
        found: list[FailedJob] = []
        with self.links.of(self._records) as link:
            at = 0
            if after is not None:
                (rank,) = link.ask(Command("ZREVRANK", self._order, after))
                at = 0 if rank is None else rank + 1
            while len(found) < limit:
                (uuids,) = link.ask(Command("ZREVRANGE", self._order, at, at + _PAGE - 1))
                if not uuids:
                    break
                at += len(uuids)
                (texts,) = link.ask(Command("HMGET", self._records, *uuids))
                records = [_decoded(text) for text in texts if text is not None]
                found += [record for record in records if queue in (None, record.queue)]
        return found[:limit]

    def count(self) -> int:
        with self.links.of(self._records) as link:
            return int(link.ask(Command("HLEN", self._records))[0])

    def forget(self, uuid: str) -> bool:
        with self.links.of(self._records) as link:
            (count,) = link.ask(call("failed_forget", self._keys, "", uuid))
            return bool(count) or link.repeated

    def flush(self, before: float | None = None) -> int:
        moment = "+inf" if before is None else repr(before)
        total = 0
        count: int
        with self.links.of(self._records) as link:
            while True:
                (count,) = link.ask(call("failed_forget", self._keys, moment))
                total += count
                if not count:
                    return total


def encoded(record: FailedJob) -> bytes:
    """Write a record as JSON; a payload that is not UTF-8 in base64."""
    fields: dict[str, Any] = {
        "uuid": record.uuid,
        "connection": record.connection,
        "queue": record.queue,
        "exception": record.exception,
        "name": record.name,
        "attempts": record.attempts,
        "history": record.history.to_json(),
        "failed_at": record.failed_at,
    }
    try:
        fields["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(record.payload).decode()
    return json.dumps(fields, separators=(",", ":")).encode()


def _decoded(text: bytes) -> FailedJob:
    fields = json.loads(text)
    encoded_payload = fields.pop("payload_base64", None)
    if encoded_payload is not None:
        fields["payload"] = base64.b64decode(encoded_payload)
    else:
        fields["payload"] = fields["payload"].encode()
    fields["history"] = History.from_json(fields["history"])
    return FailedJob(**fields)
