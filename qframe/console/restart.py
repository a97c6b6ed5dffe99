"""`qframe restart`: tells workers to exit, and waits until they did."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.connections import JobConnections, configured, names
from qframe.console.numbers import CENTURY, Number
from qframe.console.options import Config, ConnectionOption, seconds_of
from qframe.console.text import say
from qframe.console.workers import called, lasting
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.worker import roster
from qframe.worker.control import RESTART
from qframe.worker.roster import Entry

_LOOK = 0.2
_PATIENCE = 75.0
"""Seconds `--wait` waits: the default timeout and grace, and time to notice."""


def restart(
    seconds: Annotated[
        float | None,
        typer.Argument(
            parser=Number(CENTURY, is_whole=False),
            metavar="seconds",
            help="Longest wait with --wait.",
            show_default=False,
        ),
    ] = None,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help=f"Wait until they have exited, {_PATIENCE:g} s at most.")
    ] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Ask every worker to exit after its current job.

    Their supervisor then starts new ones.

    With --wait, names each worker that has exited; exits 1 if some have not.
    Exits 69 if a connection does not answer; the workers of the others are asked.

      qframe restart
      qframe restart --connection database
      qframe restart --wait 300
    """
    if seconds is not None and not wait:
        raise ConfigurationError("SECONDS goes with --wait")
    limit = seconds_of("--wait", _PATIENCE if seconds is None else seconds)
    token = secrets.token_hex(8)

    def act(queue: Connection) -> tuple[Store, list[Entry]]:
        store = queue.store
        there = roster.listed(store) if wait else []  # those that have read the token before
        there = [entry for entry in there if not entry.is_gone]
        store.set(RESTART, token)
        return store, there

    connections = JobConnections(configured(config), connection)
    done = connections.each(act)
    say(f"workers of {names(done)} exit after their current job")
    code = connections.code(done)
    if not wait:
        return code
    asked = {entry.id: _Asked(store, entry) for _, (store, there) in done for entry in there}
    return _await(list(asked.values()), limit) or code


class _Asked:
    """A worker that was told to exit."""

    def __init__(self, store: Store, entry: Entry) -> None:
        self.store = store
        self.entry = entry
        self._seen_at = time.monotonic() - max(0.0, time.time() - entry.beat_at)

    def look(self) -> str:
        """Returns how it ended; "" while it runs, and if the store does not answer."""
        try:
            found = roster.read(self.store, [self.entry.key])
        except BackendUnavailable:
            return ""
        now = time.monotonic()
        if found:
            if found[0].beat_at != self.entry.beat_at:
                self._seen_at = now
            self.entry = found[0]
        elif now - self._seen_at < roster.TTL - 1:
            return "exited"
        # Its entry expired without being removed: it is stuck, or was killed.
        return "was killed" if self.entry.is_gone else ""


def _await(asked: list[_Asked], limit: float) -> int:
    """Names each worker once it has gone; returns 1 if one has not in time."""
    began = time.monotonic()
    if not asked:
        say("no worker is registered")
    while asked:
        for each in asked[:]:
            if became := each.look():
                say(f"{called(each.entry)} {became} after {time.monotonic() - began:.1f} s")
                asked.remove(each)
        left = began + limit - time.monotonic()
        if not asked or left <= 0:
            break
        time.sleep(min(_LOOK, left))
    for each in asked:
        now = time.time()
        jobs = [f"{job.name} for {lasting(now - job.since)}" for job in each.entry.jobs]
        doing = f"running {', '.join(jobs)}" if jobs else each.entry.state
        say(f"{called(each.entry)} has not exited: {doing}")
    return int(bool(asked))
