"""Celery's messages, as kombu keeps them in Redis.

A list for each queue and step of priority, and the hash `unacked` of what workers hold: running
jobs, and those with an eta or countdown.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from qframe.importing.found import AT_ONCE, FoundJob, JobSource, Kept, parsed, texted
from qframe.payload import celery

_SEPARATOR = "\x06\x16"
_STEPS = 10
"""The steps of priority that kombu can have: 0 is first, in the list without a step."""
_OTHERS = (".reply.celery.pidbox", ".celery.pidbox", "celeryev")
_PRIORITIES = {1: 1025, 2: 1025, 3: 1025, 4: 1049, 5: 1049, 6: 1049, 7: 2000, 8: 2000, 9: 2000}
"""What comes after the default's level, as on Redis in Celery."""
_LONGEST = 2**26
"""Bytes of a body that was compressed, at most."""


class CeleryMessages(JobSource):
    """Messages of protocol 2, in JSON."""

    name: ClassVar[str] = "celery"

    def _jobs(self, *, change: bool) -> Iterator[FoundJob]:  # noqa: ARG002 (each has an id)
        for queue in self._queues():
            for step in range(_STEPS):
                key = f"{self.keys}{queue}{_SEPARATOR}{step}" if step else f"{self.keys}{queue}"
                yield from self._in_parts(
                    partial(self._oldest, key), partial(self._listed, key, queue, step)
                )
        unacked = f"{self.keys}unacked"
        for tag, _ in self.redis.hscan_iter(unacked, count=AT_ONCE):
            if (raw := self.redis.hget(unacked, tag)) is not None:  # a scan may show one twice
                yield self._held(tag, raw)

    def _oldest(self, key: str, start: int, stop: int) -> list[bytes]:
        """Read a list from its end, which has the oldest."""
        part: list[bytes] = self.redis.lrange(key, -stop - 1, -start - 1)
        return part[::-1]

    def _listed(self, key: str, queue: str, step: int, raw: bytes) -> FoundJob:
        return self._read(raw, queue, step, self._removed_last(key, raw))

    def _queues(self) -> list[str]:
        names = {"celery"}
        for key in self.redis.scan_iter(f"{self.keys}_kombu.binding.*", count=1000):
            for member in self.redis.smembers(key):
                names.add(texted(member).rpartition(_SEPARATOR)[2])
        return sorted(each for each in names if each and not _is_of_workers(each))

    def _removed_last(self, key: str, raw: bytes) -> Callable[[], None]:
        def remove() -> None:
            self.redis.lrem(key, -1, raw)

        return remove

    def _held(self, tag: bytes, raw: bytes) -> FoundJob:
        def remove() -> None:
            with self.redis.pipeline(transaction=True) as both:
                both.hdel(f"{self.keys}unacked", tag)
                both.zrem(f"{self.keys}unacked_index", tag)
                both.execute()

        try:
            message, _, queue = parsed(raw, "the message")
        except (Kept, ValueError, TypeError):
            return FoundJob("(unacked)", remove, kept="the message is unreadable")
        found = self._of(message, str(queue), 0, remove)
        waits = found.due is not None and found.due > time.time()
        if not (found.kept or waits or self.held):
            found.kept = "held by a worker (unacked): stop the workers and wait, or give --held"
        return found

    def _read(self, raw: bytes, queue: str, step: int, remove: Callable[[], None]) -> FoundJob:
        try:
            message = parsed(raw, "the message")
        except Kept as why:
            return FoundJob(queue, remove, kept=str(why))
        return self._of(message, queue, step, remove)

    def _of(self, message: Any, queue: str, step: int, remove: Callable[[], None]) -> FoundJob:  # noqa: ANN401 (any JSON)
        found = FoundJob(queue, remove, priority=_PRIORITIES.get(step))
        try:
            _fill(found, message)
        except Kept as why:
            found.kept = str(why)
        except (KeyError, TypeError, AttributeError, ValueError):
            found.kept = "no message of Celery's protocol 2"
        return found


def _fill(found: FoundJob, message: dict[str, Any]) -> None:
    headers = message["headers"]
    found.name, found.id = str(headers["task"]), str(headers["id"])
    body: Any = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        try:
            body = base64.b64decode(body, validate=True)
        except binascii.Error:
            raise Kept("its body is no base64") from None
    try:
        call = celery.read(headers, message["content-type"], body, _LONGEST)
    except celery.NotReadable as why:
        raise Kept(str(why)) from None
    found.args, found.kwargs, found.due, found.expires = (
        call.args, call.kwargs, call.due, call.expires,
    )  # fmt: skip


def _is_of_workers(queue: str) -> bool:
    return queue.endswith(_OTHERS[:2]) or queue.startswith(_OTHERS[2])
