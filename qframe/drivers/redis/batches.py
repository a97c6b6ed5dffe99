"""Batches in Redis: a hash, a bit for each member that is done, and a list of all batches.

Members are counted here, or by the scripts that remove their jobs. All keys are in one slot; those
of a batch expire 30 days after its last change.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from qframe.contracts import BatchRecord, BatchStore, NewBatch, Teller
from qframe.drivers.redis import member
from qframe.drivers.redis.keys import Keys
from qframe.drivers.redis.link import Reply
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.scripts import Command, call
from qframe.membership import Member

_KEPT_MS = 60_000
_LIFE_MS = 30 * 86_400_000
"""How long the answer to a growth is kept: longer than it takes to ask again."""
_TOLD = "told:"


class RedisBatchStore(BatchStore):
    """Batches beside the jobs; on a Cluster in a slot of their own."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._keys = links.keys

    def create(self, batch: NewBatch) -> bool:
        fields = (
            "name", batch.name,
            "connection", batch.connection,
            "options", batch.options_text(),
            "allows", int(batch.allows_failures),
            "step", batch.progress_step,
            "teller", member.sent(batch.teller),
            "teller_queue", batch.teller_queue,
        )  # fmt: skip
        key, *_ = self._keys.of_batch(batch.id)
        names = (key, self._keys.batches)
        commands = [call("batch_create+batch", names, batch.id, batch.teller_uuid, *fields)]
        if not self._keys.braces:  # where the step that counts pushes, and remembers no queue
            commands.append(
                Command("SADD", self._keys.names, batch.teller_queue, optional=True),
            )
        with self._links.of(self._keys.batches) as link:
            created, *_ = link.ask(*commands)
            return bool(created) and (created == 1 or link.repeated)

    def grow(self, batch: str, count: int, once: str = "") -> int | None:
        said = f"{batch}:{once}" if once else secrets.token_hex(8)
        names = (*self._keys.of_batch(batch), self._keys.growths + said)
        kept = _LIFE_MS if once else _KEPT_MS
        first: int | None
        with self._links.of(self._keys.batches) as link:
            (first,) = link.ask(call("batch_grow+batch", names, count, kept))
        return first

    def seal(self, batch: str) -> Teller | None:
        with self._links.of(self._keys.batches) as link:
            (due,) = link.ask(call("batch_seal+batch", self._keys.of_batch(batch)))
        return _teller(due)

    def seal_and_tell(self, batch: str, start: str) -> None:
        """Seal, and push the teller that is due by it; `start` is how the keys of queues begin."""
        with self._links.of(self._keys.batches) as link:
            link.ask(call("batch_seal+batch", self._keys.of_batch(batch), start))

    def settle(self, batch: str, number: int, uuid: str, *, failed: bool) -> Teller | None:
        names = self._keys.of_batch(batch)
        with self._links.of(self._keys.batches) as link:
            (due,) = link.ask(call("settle+batch", names, number, uuid, int(failed)))
        return _teller(due)

    def read(self, batch: str) -> BatchRecord | None:
        key, *_ = self._keys.of_batch(batch)
        with self._links.of(self._keys.batches) as link:
            (fields,) = link.ask(Command("HGETALL", key))
        return _record(batch, fields) if fields else None

    def failures(self, batch: str, limit: int = 1000) -> Sequence[str]:
        *_, failures = self._keys.of_batch(batch)
        if limit <= 0:
            return []
        with self._links.of(self._keys.batches) as link:
            (found,) = link.ask(Command("ZRANGE", failures, 0, limit - 1))
        return [each.decode().partition(":")[2] for each in found]

    def first_failure(self, batch: str) -> str | None:
        key, _, failures = self._keys.of_batch(batch)
        with self._links.of(self._keys.batches) as link:
            (first,) = link.ask(Command("HGET", key, "first"))
            if first is not None:
                (found,) = link.ask(Command("ZRANGEBYSCORE", failures, first, first))
                for each in found:
                    return str(each.decode().partition(":")[2])
        return super().first_failure(batch)

    def cancel(self, batch: str) -> bool:
        with self._links.of(self._keys.batches) as link:
            (done,) = link.ask(call("batch_cancel+batch", self._keys.of_batch(batch)))
            return bool(done) or (done is not None and link.repeated)

    def revive(self, batch: str) -> bool:
        key, *_ = self._keys.of_batch(batch)
        with self._links.of(self._keys.batches) as link:
            (removed,) = link.ask(Command("HDEL", key, "cancelled"))
            return bool(removed) or link.repeated

    def told(self, batch: str, *callbacks: str, progress: int | None = None) -> None:
        names, of = self._keys.of_batch(batch), "" if progress is None else progress
        with self._links.of(self._keys.batches) as link:
            link.ask(call("batch_told+batch", names, of, *callbacks))

    def page(self, limit: int = 50, after: str | None = None) -> Sequence[BatchRecord]:
        start, *_ = self._keys.of_batch("")
        with self._links.of(self._keys.batches) as link:
            (found,) = link.ask(
                call("batch_page", (self._keys.batches,), limit, after or "", start)
            )
        return [
            _record(batch.decode(), fields)
            for batch, fields in zip(found[::2], found[1::2], strict=True)
        ]

    def prune(
        self,
        finished: float,
        *,
        unfinished: float | None = None,
        cancelled: float | None = None,
    ) -> int:
        moments = [
            "" if each is None else repr(float(each)) for each in (finished, unfinished, cancelled)
        ]
        total = looked_at = 0
        with self._links.of(self._keys.batches) as link:
            while True:
                (step,) = link.ask(
                    call(
                        "batch_prune", (self._keys.batches,), looked_at, *moments, self._keys.batch
                    )
                )
                if step is None:
                    return total
                removed, left = step
                total += removed
                looked_at += left


Counting = tuple[tuple[str, str, str], tuple[str | int, ...]]
"""The keys and the words that `counted.lua` finds behind those of the script it runs."""


def counting(keys: Keys, place: Member, uuid: str, *, failed: bool, part: int = 0) -> Counting:
    """Have the member counted whose job a script removes; not for a Cluster.

    `part` is that of the script's reply which says whether it was removed; 0: all of it.
    """
    said = uuid if failed else ""
    return keys.of_batch(place.batch), (place.number, said, int(failed), keys.ready, part)


def _teller(found: Reply) -> Teller | None:
    if found is None:
        return None
    raw, uuid, queue = found
    return Teller(raw, uuid.decode(), queue.decode())


def _record(batch: str, found: Sequence[bytes]) -> BatchRecord:
    names = (name.decode() for name in found[::2])
    fields = dict(zip(names, found[1::2], strict=True))

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    def moment(name: str) -> float | None:
        return float(fields[name]) if name in fields else None

    return BatchRecord(
        id=batch,
        name=text("name"),
        connection=text("connection"),
        total=int(fields["total"]),
        done=int(fields["done"]),
        failed=int(fields["failed"]),
        sealed="sealed" in fields,
        told=frozenset(name.removeprefix(_TOLD) for name in fields if name.startswith(_TOLD)),
        told_progress=int(fields.get("told_progress", 0)),
        options=json.loads(fields["options"]),
        created_at=float(fields["created"]),
        cancelled_at=moment("cancelled"),
        finished_at=moment("finished"),
    )
