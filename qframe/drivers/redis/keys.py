"""What the keys are called: Laravel's names, and a few of our own."""

from __future__ import annotations

from qframe.contracts.backend import Place
from qframe.exceptions import InvalidQueueName


class QueueKeys:
    """The keys of one queue; on a Cluster they share a slot."""

    __slots__ = ("buried", "declared", "delayed", "notes", "notify", "queue", "ready", "reserved")

    def __init__(self, queue: str, ready: str, notes: bytes, names: str) -> None:
        self.queue = queue
        self.ready = ready
        """A list, as `notify` and `buried`; the others are sorted sets."""
        self.notify = f"{ready}:notify"
        self.delayed = f"{ready}:delayed"
        self.reserved = f"{ready}:reserved"
        self.buried = f"{ready}:buried"
        self.notes = notes + ready.encode()
        """What the keys of its notes begin with."""
        self.declared = (ready, names) if names else tuple(self.types())
        """The keys a script about it is told of, `ready` first.

        A Cluster is told all: while it moves them from one node to another, it refuses what would
        find some here and some there. One that is taken for a single server refuses these two.
        """

    def places(self) -> dict[Place, str]:
        """Give the key of each place, that of running ones for held ones as well."""
        return {
            Place.READY: self.ready,
            Place.DELAYED: self.delayed,
            Place.RUNNING: self.reserved,
            Place.BURIED: self.buried,
        }

    def types(self) -> dict[str, bytes]:
        """Give what Redis holds under each key."""
        lists = dict.fromkeys((self.ready, self.notify, self.buried), b"list")
        return {**lists, self.delayed: b"zset", self.reserved: b"zset"}


_ENDS = (":notify", ":delayed", ":reserved", ":buried")


class Keys:
    """All keys of a connection.

    `prefix` is Laravel's client prefix. `braces` puts a queue's name into literal braces, as
    Laravel asks for on a Cluster; a name never holds any itself.
    """

    def __init__(self, prefix: str, *, braces: bool) -> None:
        self._start, self._end = f"{prefix}queues:", ""
        self.braces = braces
        if braces:
            self._start, self._end = f"{self._start}{{", "}"
        self._queues: dict[str, QueueKeys] = {}
        self.names = f"{prefix}qframe:queues"
        """A set of the ready lists that may hold something."""
        self.notes = f"{prefix}qframe:notes:".encode()
        self.facts = f"{prefix}qframe:{{facts}}"
        """What all keys of facts, latches and failed records begin with."""
        self.markers = f"{prefix}qframe:said:"

    def of(self, queue: str) -> QueueKeys:
        """Give the keys of a queue; raises `InvalidQueueName` where one would be another's."""
        keys = self._queues.get(queue)
        if keys is None:
            if queue.endswith(_ENDS):
                raise InvalidQueueName(
                    f"{queue!r} is not a queue name on Redis, where another queue's key ends with "
                    f"{queue[queue.rindex(':') :]!r}"
                )
            names = "" if self.braces else self.names
            keys = QueueKeys(queue, f"{self._start}{queue}{self._end}", self.notes, names)
            self._queues[queue] = keys
        return keys

    def markers_beside(self, key: str) -> str:
        """Give what the names of markers begin with that are in the slot of a key."""
        tag = key[key.index("{") : key.index("}") + 1] if self.braces and "{" in key else ""
        return f"{self.markers}{tag}"

    def types(self) -> dict[str, bytes]:
        """Give what Redis holds under the keys that are of no queue."""
        failed = {f"{self.facts}failed": b"hash", f"{self.facts}order": b"zset"}
        return {self.names: b"set", **failed}

    @property
    def pattern(self) -> str:
        """Give the pattern that matches the keys of all queues."""
        return f"{escaped(self._start)}*"

    def queue_in(self, key: str) -> str:
        """Give the name of the queue a key of this pattern belongs to."""
        name = key.removeprefix(self._start)
        for end in _ENDS:
            name = name.removesuffix(end)
        return name.removesuffix(self._end)


ANY_QUEUE = "*queues:*"
"""The pattern that matches the keys of queues under any prefix."""
_OWN = "qframe:notes:"


def prefix_and_queue(key: str) -> tuple[str, str]:
    """Give the prefix of a key of this pattern, and the queue; no queue where it is a note's."""
    prefix, _, name = key.partition("queues:")
    for end in _ENDS:
        name = name.removesuffix(end)
    return prefix, "" if _OWN in prefix else name.removeprefix("{").removesuffix("}")


def escaped(text: str) -> str:
    """Write text so that a pattern means it literally."""
    return "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in text)
