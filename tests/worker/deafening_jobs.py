"""Jobs that do to their worker what none should."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

from jobs import note  # type: ignore[import-not-found] # the project's

from qframe import Queueable


class CancelsAll(Queueable):
    """Cancels all tasks of its loop, those that have not begun among them, or stops the loop."""

    how: str = "cancel"

    async def handle(self) -> None:
        time.sleep(1)  # noqa: ASYNC251 (meanwhile others are started, and do not begin)
        await asyncio.sleep(0)  # their tasks are made
        note("cancels", len(asyncio.all_tasks()))
        loop = asyncio.get_running_loop()
        match self.how:
            case "cancel":
                for task in asyncio.all_tasks():
                    task.cancel()
            case "stop":
                loop.stop()
            case "close":
                loop.close()


class Beside(Queueable):
    word: str

    async def handle(self) -> None:
        note("begun", self.word)
        await asyncio.sleep(0.05)
        note("done", self.word)


class TakesSignals(Queueable):
    """Handles SIGTERM by itself, and leaves it so."""

    how: str

    def handle(self) -> None:
        match self.how:
            case "function":
                signal.signal(signal.SIGTERM, lambda *_: note("heard by the job"))
            case "ignore":
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                    signal.signal(number, signal.SIG_IGN)
            case "loop":
                asyncio.run(self.on_its_loop())
        note("took", self.how)

    async def on_its_loop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, note, "heard by the job")


class TakesSignalsOnLoop(TakesSignals):
    async def handle(self) -> None:  # type: ignore[override]
        if self.how == "loop":
            await self.on_its_loop()
            note("took", self.how)
        else:
            super().handle()


class BlocksSignals(Queueable):
    """Blocks signals in its thread, and leaves it so; with `how` = "both" it takes one, too."""

    how: str = "block"

    def handle(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        if self.how == "both":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.how == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)
        note("took", self.how)


class BlocksSignalsOnLoop(BlocksSignals):
    async def handle(self) -> None:  # type: ignore[override]
        super().handle()


class TakesWakeUp(Queueable):
    """Has signals written to a socket of its own, and leaves it so; or closes that."""

    how: str

    def handle(self) -> None:
        _, writer = sockets = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        if self.how == "closed":
            for each in sockets:
                each.close()
        else:
            kept.append(sockets)
        note("took", self.how)


class TakesWakeUpOnLoop(TakesWakeUp):
    async def handle(self) -> None:  # type: ignore[override]
        super().handle()
        await asyncio.sleep(1)  # the loop comes round
        note("slept")


kept: list[object] = []


class Lasts(Queueable):
    async def handle(self) -> None:
        note("lasts", os.getpid())
        await asyncio.sleep(1.5)
        note("ended")
