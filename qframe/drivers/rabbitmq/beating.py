"""BeatingConnection: sends signs of life, and is closed if the server sends none."""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from qframe.drivers import heartbeat
from qframe.drivers.rabbitmq.connection import RabbitmqConnection
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.exceptions import BackendUnavailable

_BEATS = 4
"""How often in the agreed time a sign of life is sent."""
_SILENCE = 2.5
"""After how many of the agreed times without a frame a server is taken for gone."""


class BeatingConnection(RabbitmqConnection):
    """A connection with AMQP's heartbeats, which the process's heartbeat thread sends."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings, settings.heartbeat)
        self._agreed = settings.heartbeat
        self._is_waiting = False
        """Whether a thread waits for input, and so nobody else may read it."""
        self._heard = (0, 0.0)
        """How many frames had come, and when that was noted."""
        self._beats: tuple[heartbeat.Heartbeat, heartbeat.Beat] | None = None

    def prepare(self, channel: Any) -> None:  # noqa: ANN401 (the client has no types)
        super().prepare(channel)
        pace = heartbeat.current()
        self._agreed = self._amqp.heartbeat or self.settings.heartbeat
        self._heard = 0, time.monotonic()
        beat = pace.add(self._agreed / _BEATS, partial(_beat, weakref.ref(self)))
        self._beats = pace, beat

    def _forget(self) -> None:
        super()._forget()
        beats, self._beats = self._beats, None
        if beats is not None:
            beats[0].drop(beats[1])

    def beat(self) -> None:
        """Send a sign of life, and look whether the server has closed the connection."""
        with self.lock:
            if self._amqp is None:
                return
            try:
                self._amqp.send_heartbeat()
            except FAULTS as error:
                if not self._is_waiting:  # else whoever waits learns it from the socket
                    self.lost(error)
                return
            if not self._is_waiting:
                with suppress(BackendUnavailable):
                    self.read_pending()
                    self._look_for_silence()

    def _look_for_silence(self) -> None:
        """Close the connection to a server that sends no sign of life."""
        if self._amqp is None:
            return
        frames, now = self._amqp.bytes_recv, time.monotonic()
        if frames != self._heard[0]:
            self._heard = frames, now
        elif now - self._heard[1] > _SILENCE * self._agreed:
            raise self.lost(TimeoutError())


def _beat(connection: weakref.ref[BeatingConnection]) -> None:
    there = connection()
    if there is not None:
        there.beat()
