"""OutboxBackend: dispatches within a transaction for a backend elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qframe.contracts.backend import Backend, Capability, Health
from qframe.contracts.facts import Latch
from qframe.contracts.outbox import Outbox
from qframe.contracts.step import APPLIED, Operation, Push, Reservation, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import Unsupported
from qframe.forks import cached_property
from qframe.outbox.text import encoded, place_of
from qframe.payload.signature import Signer, seal

_TOGETHER = 100
"""Messages that one row holds, if a step only pushes."""
_MOST_BYTES = 262_144


class OutboxBackend(Backend):
    """Stores steps for the backend of a connection in the caller's transaction.

    That backend need not answer. A dispatch reads only facts of its own steps, which are also
    applied to a copy in memory; expectations about the backend are checked when a relay sends the
    step.
    """

    def __init__(
        self, outbox: Outbox, connection: str, receiver: Backend, signer: Signer | None = None
    ) -> None:
        self._outbox = outbox
        self._connection = connection
        self._receiver = receiver
        self._signer = signer
        self.timing = receiver.timing
        self.look_every = receiver.look_every
        self.capabilities = receiver.capabilities | Capability.FACTS | Capability.JOINT

    @cached_property
    def _own(self) -> Backend:
        """The facts of the steps so far."""
        return MemoryBackend()

    def apply(self, *steps: Step) -> list[Result]:
        results, texts = [], list[str]()
        for step in steps:
            result = self._noted(step)
            results.append(result)
            if result.applied:
                texts += [self._row(part) for part in _parts(step)]
        if texts:
            self._outbox.add(self._connection, texts)
        return results

    def _row(self, step: Step) -> str:
        """Encode a step, signed for its connection if there is a key."""
        return seal(self._signer, place_of(self._connection), encoded(step))

    def _noted(self, step: Step) -> Result:
        facts = [each for each in step.operations if type(each) is not Push]
        if not facts:
            return APPLIED
        (result,) = self._own.apply(Step(None, *facts))
        return result

    def read(self, *keys: str) -> list[str | None]:
        return self._own.read(*keys)

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        return self._own.scan(prefix, limit, after, last_first=last_first)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        return self._own.latch(key, labels)

    def check_queue(self, name: str) -> None:
        self._receiver.check_queue(name)

    def reserve(
        self,
        queues: Sequence[str],  # noqa: ARG002 (the contract's)
        limit: int = 1,  # noqa: ARG002
        *,
        first: Sequence[Step] = (),  # noqa: ARG002
    ) -> tuple[list[Reservation], list[Result]]:
        raise Unsupported(f"nothing can be reserved in an outbox ({self.described()})")

    def described(self) -> str:
        return self._outbox.described()

    def check(self) -> Health:
        return self._receiver.check()


def _parts(step: Step) -> Iterator[Step]:
    """Split a step that only pushes; its parts are committed together all the same."""
    part: list[Operation] = []
    size = 0
    if any(type(each) is not Push for each in step.operations):
        yield step
        return
    for push in step.operations:
        more = len(push.raw) if type(push) is Push else 0
        if part and (len(part) >= _TOGETHER or size + more > _MOST_BYTES):
            yield Step(None, *part)
            part, size = [], 0
        part.append(push)
        size += more
    if part:
        yield Step(None, *part)
