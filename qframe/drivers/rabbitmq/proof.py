"""ProvingConnection: learns whether the server has got acknowledgements, which it does not answer.

Any later answer on their channel is proof. So a request that it answers may follow them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qframe.drivers.broker.start_log import StartedHere
from qframe.drivers.rabbitmq.beating import BeatingConnection
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.frames import qos
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.exceptions import BackendUnavailable


class Proof:
    """Whether the server has got acknowledgements; never, if the connection is lost before."""

    is_given = False
    is_asked = False
    """Whether the server has been asked something after them."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        """Those of the messages."""


class ProvingConnection(BeatingConnection):
    """A connection that sends acknowledgements and waits for the answers behind them."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings)
        self.is_unproved = False
        """Whether the server has answered nothing since the last acknowledgement."""
        self.started = StartedHere()
        """What this connection has started, and not ended for certain."""
        self.proof = Proof()
        """Of the last acknowledgements."""
        self._asked = deque[Proof]()
        """Those that come with the next answers."""
        self._proves_later = 0
        """The thread whose acknowledgements are followed by another request."""
        self._window = 0
        """How many messages a consumer gets, as the channel was told; 0: not told, any number."""

    def prepare(self, channel: Any) -> None:  # noqa: ANN401 (the client has no types)
        self._window = 0
        super().prepare(channel)

    def _forget(self) -> None:
        super()._forget()
        self.started, self.proof, self._asked = StartedHere(), Proof(), deque()

    def _open(self) -> Any:  # noqa: ANN401 (as above)
        """Return the channel; as long as acknowledgements are unproved, no other than theirs."""
        if not self.is_unproved:
            return self.open()
        if self._channel is None:
            self.is_unproved = False
            raise BackendUnavailable(f"{self.where}: the connection was lost")
        return self._channel

    # -- acknowledgements -------------------------------------------------------------------------

    def _send(self, frames: bytes, ids: Sequence[str], *, asks: bool, waits: bool) -> None:
        """Send the acknowledgements of these messages.

        `asks`: with a request, whose answer comes while the worker does something else. `waits`:
        until the server has answered, also where this thread's are proved later.
        """
        if self.proof.is_asked or self.proof.is_given:
            self.proof = Proof()
        self.proof.ids += ids
        self.is_unproved = not self._is_waiting
        if asks and self.is_unproved:
            self._ask(frames)
        else:
            self.write(frames)
        if waits or self._proves_later != threading.get_ident():
            self._prove()

    @contextmanager
    def proved_later(self) -> Iterator[None]:
        """Let this thread's acknowledgements in the block be answered by the requests after them.

        What was noted of a job is forgotten only behind an answer: such a job is not among them.
        """
        self._proves_later = threading.get_ident()
        try:
            yield
        finally:
            self._proves_later = 0

    @property
    def is_proved_later(self) -> bool:
        """Whether this thread is in such a block."""
        return self._proves_later == threading.get_ident()

    def prove(self) -> None:
        """Wait for an answer, unless there was one since the last acknowledgement."""
        with self.lock:
            try:
                self._prove()
            except FAULTS as error:
                raise self.lost(error) from error

    def _prove(self) -> None:
        if self.is_unproved:
            self._open()
            self._await_answer(self.proof if self.proof.is_asked else self._ask())

    # -- answers ----------------------------------------------------------------------------------

    def _ask(self, before: bytes = b"") -> Proof:
        """Ask the server for an answer, behind these frames. Returns what that proves."""
        self.write(before + qos(self._channel.channel_id, self._window))
        proof = self.proof
        proof.is_asked = True
        self._asked.append(proof)
        return proof

    def _await_answer(self, proof: Proof) -> None:
        """Read until the server has answered the last of those that were asked for that proof."""
        while proof in self._asked:
            self._read_frames()
        self._spoke = time.monotonic()

    def answered(self) -> None:
        """Note the answer to what was asked first."""
        proof = self._asked.popleft()
        self._give(proof)
        if proof is self.proof and proof not in self._asked:
            self.is_unproved = False

    def _note_answer(self) -> None:
        """Note that the server has got all acknowledgements."""
        self.is_unproved = False
        self._give(self.proof)

    def _give(self, proof: Proof) -> None:
        proof.is_given = True
        ids, proof.ids = proof.ids, []
        if ids:
            self.started.end(ids)
