"""Resque's lists, of php-resque and Ruby, and the delayed jobs of resque-scheduler.

Ruby's bodies have no id, and equal ones are several jobs. So each gets one, in the source, before
it is moved: a move that is said again then knows which were moved. Resque ignores it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from qframe.importing.found import AT_ONCE, FoundJob, JobSource, Kept, parsed, texted

_ID = "qframe_id"
_STAMP = """
if redis.call('linsert', KEYS[1], 'before', ARGV[1], ARGV[2]) < 1 then return 0 end
return redis.call('lrem', KEYS[1], 1, ARGV[1])
"""


class ResqueJobs(JobSource):
    """`resque:queue:NAME`, and `resque:delayed:TIME` of the schedulers of both languages."""

    name: ClassVar[str] = "resque"
    prefix: ClassVar[str] = "resque:"

    def _jobs(self, *, change: bool) -> Iterator[FoundJob]:
        for queue in sorted(texted(each) for each in self.redis.smembers(f"{self.keys}queues")):
            key = f"{self.keys}queue:{queue}"
            yield from self._list(key, queue, None, change=change)
        for at in self._times():
            yield from self._list(f"{self.keys}delayed:{int(at)}", "", at, change=change)

    def _times(self) -> Iterator[float]:
        """Iterate over the times of delayed jobs."""
        last: float | str = "-inf"
        schedule = f"{self.keys}delayed_queue_schedule"
        while part := self.redis.zrangebyscore(
            schedule, last, "+inf", start=0, num=AT_ONCE, withscores=True
        ):
            for _, at in part:
                yield at
            last = f"({part[-1][1]!r}"

    def _list(self, key: str, queue: str, due: float | None, *, change: bool) -> Iterator[FoundJob]:
        return self._in_parts(
            partial(self.redis.lrange, key),
            lambda raw: self._read(key, raw, queue, due, change=change),
        )

    def _read(
        self, key: str, raw: bytes, queue: str, due: float | None, *, change: bool
    ) -> FoundJob:
        now_there = raw

        def remove() -> None:
            with self.redis.pipeline(transaction=True) as all_of_it:
                all_of_it.lrem(key, 1, now_there)
                if due is not None:
                    name = f"delayed:{int(due)}"
                    all_of_it.srem(f"{self.keys}timestamps:{texted(raw)}", name)
                all_of_it.execute()
            if due is not None and not self.redis.exists(key):
                self.redis.zrem(f"{self.keys}delayed_queue_schedule", int(due))

        found = FoundJob(queue or "(delayed)", remove, due=due)
        try:
            body = parsed(raw, "its body")
            _fill(found, body)
        except Kept as why:
            found.kept = str(why)
            return found
        if not found.id and change:
            found.id = str(uuid.uuid4())
            now_there = json.dumps({**body, _ID: found.id}).encode()
            if not self.redis.eval(_STAMP, 1, key, raw, now_there):
                found.kept = "it has just been taken by a worker"
        return found


def _fill(found: FoundJob, body: Any) -> None:  # noqa: ANN401 (any JSON)
    if not isinstance(body, dict) or not isinstance(body.get("class"), str):
        raise Kept("its body has no class")
    args = body.get("args")
    found.name = body["class"]
    found.queue = str(body.get("queue") or found.queue)
    found.id = str(body.get("id") or body.get(_ID) or "")
    if args in (None, []):
        return
    if not isinstance(args, list):
        raise Kept("its args are no list")
    is_of_php = "id" in body or "queue_time" in body
    inner = args[0] if is_of_php and len(args) == 1 else args
    if inner in (None, []):
        return
    if isinstance(inner, dict):
        found.kwargs = inner
    elif isinstance(inner, list):
        found.args = inner
    else:
        found.args = [inner]
