"""What the keys are called: Laravel's names, and a few of our own."""

from __future__ import annotations

from typing import NamedTuple

from qframe.exceptions import InvalidQueueName


class QueueKeys(NamedTuple):
    """The keys of one queue; on a Cluster they share a slot."""

    ready: str
    notify: str
    delayed: str
    reserved: str
    buried: str


_ENDS = tuple(f":{part}" for part in QueueKeys._fields[1:])


class Keys:
    """All keys of a connection.

    `prefix` is Laravel's client prefix. `braces` puts a queue's name into literal braces, as
    Laravel asks for on a Cluster; a name never holds any itself.
    """

    def __init__(self, prefix: str, *, braces: bool) -> None:
        self._prefix = prefix
        self.braces = braces
        self._queues: dict[str, QueueKeys] = {}
        self.names = f"{prefix}qframe:queues"
        self.failed = f"{prefix}qframe:{{failed}}"
        self.failed_order = f"{self.failed}:order"
        self.store = f"{prefix}qframe:{{store}}:"
        self.swaps = f"{prefix}qframe:{{store}}swaps:"
        self.status = f"{prefix}qframe:{{status}}:"
        self.ready = self._start
        """What stands before the name of a queue: where there are no braces, that is its key."""
        self.batches = f"{prefix}qframe:{{batch}}es"
        self.growths = f"{prefix}qframe:{{batch}}growths:"
        self.batch = f"{prefix}qframe:{{batch}}"

    def of(self, queue: str) -> QueueKeys:
        """Give the keys of a queue; raises `InvalidQueueName` where one would be another's."""
        keys = self._queues.get(queue)
        if keys is None:
            if queue.endswith(_ENDS):
                raise InvalidQueueName(
                    f"{queue!r} is not a queue name on Redis, where another queue's key ends with "
                    f"{queue[queue.rindex(':') :]!r}"
                )
            ready = f"{self._start}{queue}{self._end}"
            keys = self._queues[queue] = QueueKeys(
                ready, f"{ready}:notify", f"{ready}:delayed", f"{ready}:reserved", f"{ready}:buried"
            )
        return keys

    def of_batch(self, batch: str) -> tuple[str, str, str]:
        """Give the keys of a batch: what it is, who is done, who has failed."""
        start = self.batch
        return f"{start}:{batch}", f"{start}done:{batch}", f"{start}failed:{batch}"

    @property
    def _start(self) -> str:
        return f"{self._prefix}queues:{'{' if self.braces else ''}"

    @property
    def _end(self) -> str:
        return "}" if self.braces else ""

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


def type_of(key: str) -> str:
    """Give the type of what Redis holds under one of these keys."""
    if "qframe:{store}" in key or "qframe:{status}:" in key:
        return "string"
    if "qframe:{batch}" in key:
        return _type_in_batches(key.partition("qframe:{batch}")[2])
    if key.endswith("qframe:queues"):
        return "set"
    if key.endswith("qframe:{failed}"):
        return "hash"
    return "zset" if key.endswith((":delayed", ":reserved", ":order")) else "list"


def _type_in_batches(end: str) -> str:
    if end.startswith(":"):
        return "hash"
    return "string" if end.startswith(("done:", "growths:")) else "zset"


def escaped(text: str) -> str:
    """Write text so that a pattern means it literally."""
    return "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in text)
