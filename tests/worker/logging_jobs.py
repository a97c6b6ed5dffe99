"""Jobs that log, in a thread and on an event loop."""

from __future__ import annotations

import asyncio
import logging

from qframe import Queueable

log = logging.getLogger("shop")


class Told(Queueable):
    track = True
    keep_log = 3
    tries = 2

    def handle(self) -> None:
        log.warning("sync %d", self.attempts)
        if self.attempts == 2:
            return
        raise ValueError("once more")


class ToldOnLoop(Queueable):
    track = True
    keep_log = 3
    display_name = "Shown"

    async def handle(self) -> None:
        await asyncio.to_thread(log.warning, "in a thread")
        log.error("on a \x1b[31mloop")
        raise ValueError("for good")
