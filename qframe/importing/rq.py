"""RQ's jobs: a list of ids for each queue, a hash for each job, a sorted set of scheduled ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from qframe.importing.found import FoundJob, JobSource, Kept, parsed, texted
from qframe.payload.celery import PICKLED

_LONGEST = 100_000_000
_CALL = 4
"""Parts of a call: function, instance, arguments, named arguments."""


class RqJobs(JobSource):
    """Jobs of RQ 2 and 3 that were written with its `JSONSerializer`."""

    name: ClassVar[str] = "rq"
    prefix: ClassVar[str] = "rq:"

    def _jobs(self, *, change: bool) -> Iterator[FoundJob]:  # noqa: ARG002 (each has an id)
        for key in sorted(texted(each) for each in self.redis.smembers(f"{self.keys}queues")):
            queue = key.rpartition(":")[2]
            scheduled, deferred = f"{self.keys}scheduled:{queue}", f"{self.keys}deferred:{queue}"
            yield from self._in_parts(
                partial(self.redis.lrange, key), partial(self._listed, key, queue)
            )
            yield from self._in_parts(
                partial(self.redis.zrange, scheduled, withscores=True),
                partial(self._scheduled, scheduled, queue),
            )
            yield from self._in_parts(
                partial(self.redis.zrange, deferred), partial(self._deferred, queue)
            )

    def _listed(self, key: str, queue: str, identity: bytes) -> FoundJob:
        return self._read(queue, identity, None, partial(self.redis.lrem, key, 1, identity))

    def _scheduled(self, key: str, queue: str, entry: tuple[bytes, float]) -> FoundJob:
        identity, at = entry
        return self._read(queue, identity, at, partial(self.redis.zrem, key, identity))

    def _deferred(self, queue: str, identity: bytes) -> FoundJob:
        found = self._read(queue, identity, None, lambda: None)
        found.kept = found.kept or "it waits for another job: run that first"
        return found

    def _read(
        self, queue: str, identity: bytes, due: float | None, unlist: Callable[[], object]
    ) -> FoundJob:
        hash_key = f"{self.keys}job:{texted(identity)}"

        def remove() -> None:
            unlist()  # first: a hash that nobody lists is harmless, a listed id without one is not
            self.redis.delete(hash_key)

        found = FoundJob(queue, remove, id=texted(identity), due=due)
        try:
            fields = self.redis.hgetall(hash_key)
            found.name = _described(fields)
            if not fields.get(b"data"):
                raise Kept("its hash is gone")
            _fill(found, fields[b"data"])
            if self.redis.exists(f"{hash_key}:dependents"):
                raise Kept("other jobs wait for it: drain them with rq's own worker")
            if any(fields.get(key) for key in (b"success_callback_name", b"failure_callback_name")):
                raise Kept("it has a callback, which is not moved")
        except Kept as why:
            found.kept = str(why)
        return found


def _described(fields: dict[bytes, bytes]) -> str:
    """Return the function's name as RQ describes it, for jobs that are not read."""
    return texted(fields.get(b"description", b"")).partition("(")[0] or "(unreadable)"


def _fill(found: FoundJob, data: bytes) -> None:
    unpack = zlib.decompressobj()
    try:
        inner = unpack.decompress(data, _LONGEST)
    except zlib.error:
        inner = data
    if inner[:1] == b"\x80":
        raise Kept(f"{PICKLED} (rq's default; JSONSerializer can be moved)")
    call: Any = parsed(inner, "its data")
    if not isinstance(call, list) or len(call) != _CALL or not isinstance(call[0], str):
        raise Kept("its data is no call of a function")
    found.name, instance, args, kwargs = call
    if instance is not None:
        raise Kept("it calls a method of an object")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Kept("its data is no call of a function")
    found.args, found.kwargs = args, kwargs
