"""Reading facts, latches and failed records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qframe.contracts.backend import Timing
from qframe.contracts.facts import FactCopy, Latch, LatchCopy, first_first, in_order
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Open, Push
from qframe.drivers.redis import message
from qframe.drivers.redis.commands import RedisCommand, command
from qframe.drivers.redis.keys import Keys, escaped
from qframe.drivers.redis.pool import RedisPool
from qframe.drivers.redis.records import decoded

if TYPE_CHECKING:
    from qframe.drivers.redis.connection import Reply

_PAGE = 100
_BITS = 48
"""Members in a field of a latch, as in `lua/facts.lua`."""


class RedisFacts:
    """The reading part of the backend; `lua/apply.lua` writes facts."""

    keys: Keys
    pool: RedisPool
    timing: Timing

    def _ask(self, *commands: RedisCommand) -> list[Reply]:
        return self.pool.of(self.keys.facts).ask(*commands)

    def _is_over(self, left: int) -> bool:
        """Whether a key has expired by the backend's clock, which a test may have set ahead."""
        return 0 <= left <= self.timing.skew * 1000

    def read(self, *keys: str) -> list[str | None]:
        if not keys:
            return []
        names = [f"{self.keys.facts}:{key}" for key in keys]
        times = [command("PTTL", name) for name in names] if self.timing.skew else []
        texts, *left = self._ask(command("MGET", *names), *times)
        found = [None if text is None else _value(text) for text in texts]
        for place, each in enumerate(left):
            if self._is_over(each):
                found[place] = None
        return found

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        start = f"{self.keys.facts}:"
        names = self.pool.scan(f"{escaped(start + prefix)}*")
        keys = in_order((n.removeprefix(start) for n in names), after, last_first=last_first)
        found: list[tuple[str, str]] = []
        while keys and len(found) < limit:
            some, keys = keys[:limit], keys[limit:]
            values = zip(some, self.read(*some), strict=True)
            found += [(key, value) for key, value in values if value is not None]
        return found[:limit]

    def copy(self, *keys: str) -> list[FactCopy | None]:
        names = [f"{self.keys.facts}:{key}" for key in keys]
        asked = [command(word, name) for name in names for word in ("GET", "PTTL")]
        answers = self._ask(*asked) if asked else []
        return [
            None if text is None or self._is_over(left) else self._copied(key, text, left)
            for key, text, left in zip(keys, answers[::2], answers[1::2], strict=True)
        ]

    def _copied(self, key: str, text: bytes, left: int) -> FactCopy:
        ttl = None if left < 0 else left / 1000 - self.timing.skew
        rank = int(text.split(b"\0", 2)[1]) if text[:1] == b"\0" else None
        return FactCopy(key, _value(text), ttl, rank)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        name = f"{self.keys.facts}latch:{key}"
        fields = ("size", "done", "failed", "closed", "first", "failed_at", "completed_at")
        values, left, *named = self._ask(
            command("HMGET", name, *fields),
            command("PTTL", name),
            *([command("ZRANGE", f"{self.keys.facts}lost:{key}", 0, labels - 1)] * (labels > 0)),
        )
        if values[0] is None or self._is_over(left):
            return None
        size, done, failed, closed, first, failed_at, completed_at = values
        return Latch(
            int(size), int(done), int(failed), closed is not None,
            None if first is None else int(first),
            None if failed_at is None else float(failed_at),
            None if completed_at is None else float(completed_at),
            tuple(each.partition(b":")[2].decode() for found in named for each in found),
        )  # fmt: skip

    def copy_latch(self, key: str) -> LatchCopy | None:
        pairs, left, rows = self._ask(
            command("HGETALL", f"{self.keys.facts}latch:{key}"),
            command("PTTL", f"{self.keys.facts}latch:{key}"),
            command("ZRANGE", f"{self.keys.facts}lost:{key}", 0, -1),
        )
        fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if b"size" not in fields or self._is_over(left):
            return None
        priority = fields[b"priority"].decode()
        then = Push(
            fields[b"queue"].decode(),
            message.read(fields[b"raw"], b"")[0],
            float(fields[b"delay"]),
            int(priority) if priority else None,
        )
        opened = Open(key, then, int(fields[b"every"]), float(fields[b"ttl"]))
        labels = (row.partition(b":") for row in rows)
        failed = {int(number): label.decode() for number, _, label in labels}
        first = int(fields[b"first"]) if b"first" in fields else None
        done = sorted(_members(fields))
        closed = b"closed" in fields
        return LatchCopy(opened, int(fields[b"size"]), closed, done, first_first(failed, first))

    def find_failed(self, uuid: str) -> FailedJob | None:
        (text,) = self._ask(command("HGET", f"{self.keys.facts}failed", uuid))
        return None if text is None else decoded(text)

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        order = f"{self.keys.facts}order"
        at = 0
        if after is not None:
            (rank,) = self._ask(command("ZREVRANK", order, after))
            if rank is None:
                return []
            at = rank + 1
        found: list[FailedJob] = []
        while len(found) < limit:
            most = limit - len(found) if queue is None else _PAGE
            (uuids,) = self._ask(command("ZREVRANGE", order, at, at + min(most, _PAGE) - 1))
            if not uuids:
                break
            at += len(uuids)
            (texts,) = self._ask(command("HMGET", f"{self.keys.facts}failed", *uuids))
            records = [decoded(text) for text in texts if text is not None]
            found += [record for record in records if queue in (None, record.queue)]
        return found[:limit]

    def count_failed(self) -> int:
        (count,) = self._ask(command("HLEN", f"{self.keys.facts}failed"))
        return int(count)


def _members(fields: Mapping[bytes, bytes]) -> Iterator[int]:
    """Iterate over the members that are done: bits of the fields of a latch."""
    for name, value in fields.items():
        if name.startswith(b"bits"):
            bits, first = int(value), int(name[4:]) * _BITS
            yield from (first + each for each in range(_BITS) if bits >> each & 1)


def _value(text: bytes) -> str:
    """Decode a fact; a fact with a rank has the rank in front."""
    return (text.split(b"\0", 2)[2] if text[:1] == b"\0" else text).decode()
