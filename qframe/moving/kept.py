"""KeptMoves: operations that a connection keeps as facts until they are applied elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.step import Operation, Set, Step
from qframe.outbox.text import decoded, encoded
from qframe.payload.text import one_line


class KeptMove(NamedTuple):
    """What is kept under a key."""

    at: float
    """When it was kept (epoch seconds)."""
    operations: Sequence[Operation]


class KeptMoves:
    """Writes and reads them, sealed by the connection's key if it has one."""

    def __init__(self, source: Connection) -> None:
        self._context = source.context
        self.refused: dict[str, str] = {}
        """What cannot be read: its key, and why."""

    def keeping(self, key: str, operations: Sequence[Operation]) -> Set:
        """Return the operation that keeps others."""
        fields = {"at": time.time(), "step": encoded(Step(None, *operations))}
        return Set(key, self._context.sealed(key, json.dumps(fields)))

    def read(self, key: str, text: str) -> KeptMove | None:
        """Decode; None, with a note in `refused`, if it cannot be read."""
        try:
            fields = json.loads(self._context.opened(key, text).text)
            return KeptMove(float(fields["at"]), decoded(fields["step"]))
        except (ValueError, KeyError, TypeError) as error:  # also `InvalidSignature`
            self.refuse(key, f"what is kept as {key} cannot be moved: {error}")
            return None

    def refuse(self, key: str, why: str) -> None:
        """Note that what is kept under a key stays there."""
        self.refused[key] = one_line(why, 200)
