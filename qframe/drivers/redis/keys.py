"""The names of all keys: Laravel's, and a few of qframe's."""

from __future__ import annotations

from qframe.contracts.browsing import Place
from qframe.drivers import levels
from qframe.exceptions import InvalidQueueName


class QueueKeys:
    """The keys of one queue; on a Cluster they share a slot."""

    __slots__ = (
        "aging", "buried", "declared", "delayed", "notes", "notify", "queue", "ready", "reserved",
    )  # fmt: skip

    def __init__(self, queue: str, ready: str, notes: bytes, names: str, aging: int) -> None:
        self.queue = queue
        self.aging = aging
        """Seconds that a level of priority is worth."""
        self.ready = ready
        """A list, like `notify` and `buried`; the others are sorted sets."""
        self.notify = f"{ready}:notify"
        self.delayed = f"{ready}:delayed"
        self.reserved = f"{ready}:reserved"
        self.buried = f"{ready}:buried"
        self.notes = notes + ready.encode()
        """Prefix of the keys of its notes, and the key of the ages of what is ready."""
        self.declared = (ready, names) if names else tuple(self.types())
        """The keys that a script about this queue declares, `ready` first.

        A Cluster gets all of them, because while it moves a slot it refuses keys that are on two
        nodes. A Cluster that is mistaken for a single server refuses these two.
        """

    def places(self) -> dict[Place, str]:
        """Return the key of each place; held messages share the key of running ones."""
        return {
            Place.READY: self.ready,
            Place.DELAYED: self.delayed,
            Place.RUNNING: self.reserved,
            Place.BURIED: self.buried,
        }

    def types(self) -> dict[str, bytes]:
        lists = dict.fromkeys((self.ready, self.notify, self.buried), b"list")
        return {**lists, self.delayed: b"zset", self.reserved: b"zset"}


_ENDS = (":notify", ":delayed", ":reserved", ":buried")


class Keys:
    """All keys of a connection.

    `prefix` is the prefix of Laravel's Redis client. `braces` puts a queue's name in braces, as
    Laravel requires on a Cluster; a name never contains braces itself.
    """

    def __init__(self, prefix: str, *, braces: bool, aging: int = levels.AGING) -> None:
        self._aging = aging
        self._start, self._end = f"{prefix}queues:", ""
        self.braces = braces
        if braces:
            self._start, self._end = f"{self._start}{{", "}"
        self._queues: dict[str, QueueKeys] = {}
        self.names = f"{prefix}qframe:queues"
        """A set of the `ready` lists that may hold messages."""
        self.notes = f"{prefix}qframe:notes:".encode()
        self.facts = f"{prefix}qframe:{{facts}}"
        """Prefix of all keys of facts, latches and failed records."""
        self.markers = f"{prefix}qframe:said:"

    def of(self, queue: str) -> QueueKeys:
        """Return the keys of a queue. Raises `InvalidQueueName` if one belongs to another queue."""
        keys = self._queues.get(queue)
        if keys is None:
            if queue.endswith(_ENDS):
                raise InvalidQueueName(
                    f"{queue!r} is not a queue name on Redis, where another queue's key ends with "
                    f"{queue[queue.rindex(':') :]!r}"
                )
            names = "" if self.braces else self.names
            keys = QueueKeys(
                queue, f"{self._start}{queue}{self._end}", self.notes, names, self._aging
            )
            self._queues[queue] = keys
        return keys

    def markers_beside(self, key: str) -> str:
        """Return the prefix of marker keys in the slot of `key`."""
        tag = key[key.index("{") : key.index("}") + 1] if self.braces and "{" in key else ""
        return f"{self.markers}{tag}"

    def types(self) -> dict[str, bytes]:
        """Return the type of each key that belongs to no queue."""
        failed = {f"{self.facts}failed": b"hash", f"{self.facts}order": b"zset"}
        return {self.names: b"set", **failed}

    @property
    def pattern(self) -> str:
        """The pattern that matches the keys of all queues."""
        return f"{escaped(self._start)}*"

    def queue_in(self, key: str) -> str:
        name = key.removeprefix(self._start)
        for end in _ENDS:
            name = name.removesuffix(end)
        return name.removesuffix(self._end)


ANY_QUEUE = "*queues:*"
"""The pattern that matches keys of queues under any prefix."""
_OWN = "qframe:notes:"


def prefix_and_queue(key: str) -> tuple[str, str]:
    """Return the prefix and queue of a key; the queue is "" for a key of notes."""
    prefix, _, name = key.partition("queues:")
    for end in _ENDS:
        name = name.removesuffix(end)
    return prefix, "" if _OWN in prefix else name.removeprefix("{").removesuffix("}")


def escaped(text: str) -> str:
    """Escape text so that a pattern matches it literally."""
    return "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in text)
