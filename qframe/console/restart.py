"""`qframe restart`: tell workers to exit, and wait until they did."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.common import Config, ConnectionOption, configured, each_answering
from qframe.console.text import say
from qframe.console.workers import called, lasting
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.timing import seconds_until
from qframe.worker import roster
from qframe.worker.control import RESTART
from qframe.worker.roster import Entry

_LOOK = 0.2
_PATIENCE = 75.0
"""Seconds `--wait` waits: the default timeout and grace, and time to notice."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("restart")(restart)


def restart(
    seconds: Annotated[
        float | None, typer.Argument(help="With --wait: how long at most.", show_default=False)
    ] = None,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help=f"Wait until they did, {_PATIENCE:g} s at most.")
    ] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Ask every worker to exit after its current job; what supervises them starts new ones.

    With --wait, names each worker that has exited; exits 1 where some have not.

    \b
      qframe restart
      qframe restart --connection database
      qframe restart --wait 300
    """  # noqa: D301 (\b keeps typer from folding the examples)
    if seconds is not None and not wait:
        raise ConfigurationError("SECONDS goes with --wait")
    try:
        limit = seconds_until(_PATIENCE if seconds is None else seconds, "--wait")
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    queues = configured(config)
    token = secrets.token_hex(8)

    def act(queue: Connection) -> tuple[Store, list[Entry]]:
        store = queues.store(queue.name)
        there = roster.listed(store) if wait else []  # those that have read the token before
        there = [entry for entry in there if not entry.is_gone]
        store.set(RESTART, token)
        return store, there

    done = each_answering(queues, connection, act)
    say(f"workers of {', '.join(queue.name for queue, _ in done)} exit after their current job")
    if not wait:
        return 0
    asked = {entry.id: _Asked(store, entry) for _, (store, there) in done for entry in there}
    return _await(list(asked.values()), limit)


class _Asked:
    """A worker that was asked to exit."""

    def __init__(self, store: Store, entry: Entry) -> None:
        self.store = store
        self.entry = entry
        self._heard = time.monotonic() - max(0.0, time.time() - entry.beat_at)

    def look(self) -> str:
        """Say what became of it; "" while it is there."""
        found = roster.read(self.store, [self.entry.key])
        now = time.monotonic()
        if found:
            if found[0].beat_at != self.entry.beat_at:
                self._heard = now
            self.entry = found[0]
            return "was killed" if self.entry.is_gone else ""
        if now - self._heard < roster.TTL - 1:
            return "exited"
        # It has not taken itself off: its entry ran out, because it is stuck, or was killed.
        return "was killed" if self.entry.is_gone else ""


def _await(asked: list[_Asked], limit: float) -> int:
    """Name each worker once it has gone; gives 1 where one has not in time."""
    began = time.monotonic()
    if not asked:
        say("no worker is registered")
    while True:
        left = []
        for each in asked:
            became = _look(each)
            if became:
                say(f"{called(each.entry)} {became} after {time.monotonic() - began:.1f} s")
            else:
                left.append(each)
        asked = left
        if not asked:
            return 0
        if time.monotonic() - began >= limit:
            break
        time.sleep(min(_LOOK, max(0.0, limit - (time.monotonic() - began))))
    for each in asked:
        say(f"{called(each.entry)} has not exited: {_doing(each.entry)}")
    return 1


def _look(asked: _Asked) -> str:
    try:
        return asked.look()
    except BackendUnavailable:
        return ""  # asked again


def _doing(entry: Entry) -> str:
    if entry.job is None:
        return entry.state
    return f"running {entry.job.name} for {lasting(time.time() - entry.job.since)}"
