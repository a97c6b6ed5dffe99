"""`qframe scale`: how many jobs run at once in workers, and how many workers a pool keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.connections import JobConnections, configured
from qframe.console.numbers import MANY, Number, whole
from qframe.console.options import Config, ConnectionOption
from qframe.console.text import print_error, say
from qframe.console.workers import called
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.text import one_line
from qframe.worker import roster
from qframe.worker.control import size_key, slots_key
from qframe.worker.options import MOST_AT_ONCE, check_concurrency
from qframe.worker.roster import Entry, PoolEntry

_LOOK = 0.2
_PATIENCE = 15.0
"""Seconds the command waits for workers to apply it; they do so later, too."""
_KEPT = 3600.0
"""Seconds for which the order stays in the store."""


def scale(
    name: Annotated[str, typer.Argument(help="A --name, a pattern of it, or HOST:PID.")],
    concurrency: Annotated[
        int | None,
        typer.Argument(
            parser=Number(MOST_AT_ONCE),
            metavar="concurrency",
            help="Jobs each worker runs at once.",
            show_default=False,
        ),
    ] = None,
    *,
    workers: Annotated[
        int | None, whole(MANY, help="Workers in the pool.", show_default=False)
    ] = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Change the concurrency of workers, or the size of a pool.

    The change lasts until they exit; running jobs finish. For a pool it applies to every worker
    and its replacements. Exits 1 if a worker cannot be scaled, or has not followed within 15 s.

      qframe scale mail 20
      qframe scale 'mail-*' 20 --connection redis
      qframe scale mail --workers 6
    """
    if concurrency is None and workers is None:
        raise ConfigurationError("say how many: qframe scale NAME 20, or --workers 6, or both")
    if concurrency is not None:
        check_concurrency(concurrency)
    if workers is not None and workers < 1:
        raise ConfigurationError(f"--workers must be 1 or more, not {workers}")
    connections = JobConnections(configured(config), connection)
    found, kept = _found(connections, name)
    targets = [_Target(store, entry, concurrency, workers) for store, entry in found]
    targets = [each for each in targets if each.is_meant]
    if not targets:
        what = "pool" if concurrency is None else "worker or pool"
        more = f"; {called(kept)} is of the pool {kept.host}:{kept.pool}" if kept else ""
        raise ConfigurationError(f"no {what} is called {one_line(name, 100)!r}{more}")
    for each in targets:
        each.check()
    able = [each for each in targets if each.is_able]
    for each in targets:
        if each in able:
            each.write_orders()
        else:
            print_error(f"{each} runs one job at a time: start it with --concurrency 2 or more", 1)
    return max(_await([*able]), int(able != targets))


def _found(
    connections: JobConnections, name: str
) -> tuple[list[tuple[Store, Entry | PoolEntry]], Entry | None]:
    """Returns the pools and workers of that name; and a worker that is a pool's, if any."""

    def act(queue: Connection) -> tuple[Store, list[Entry | PoolEntry]]:
        store = queue.store
        return store, [*roster.pools(store), *roster.listed(store)]

    there = {
        entry.id: (store, entry)  # connections may share a store
        for _, (store, each) in connections.each(act)
        for entry in each
        if connections.only in {None, entry.connection}
        and not entry.is_gone
        and (fnmatchcase(entry.name, name) or f"{entry.host}:{entry.pid}" == name)
    }
    found, kept = [], None
    for store, entry in there.values():
        if isinstance(entry, Entry) and entry.pool is not None:
            kept = entry
        else:
            found.append((store, entry))
    return found, kept


@dataclass
class _Target:
    """A worker or a pool, and its order."""

    store: Store
    entry: Entry | PoolEntry
    slots: int | None
    size: int | None

    def __str__(self) -> str:
        return f"{'pool ' * isinstance(self.entry, PoolEntry)}{called(self.entry)}"

    @property
    def is_meant(self) -> bool:
        return self.slots is not None or isinstance(self.entry, PoolEntry)

    @property
    def is_able(self) -> bool:
        """Whether it has slots, if the order is about them."""
        return self.slots is None or self.entry.scales

    def check(self) -> None:
        """Raises `ConfigurationError` if a pool may not keep so many workers."""
        entry, size = self.entry, self.size
        if isinstance(entry, PoolEntry) and entry.shares:
            raise ConfigurationError(
                f"{self} is a supervisor, which decides that itself: change [supervisors] instead"
            )
        if isinstance(entry, PoolEntry) and size is not None and not entry.may_keep(size):
            limits = f"--min {entry.least}" + (f" --max {entry.most}" if entry.most else "")
            raise ConfigurationError(
                f"{self} keeps to {limits}, and not {size} workers: nothing was changed"
            )

    def write_orders(self) -> None:
        if self.slots is not None:
            self.store.set(slots_key(self.entry.id), str(self.slots), _KEPT)
        if self.size is not None and isinstance(self.entry, PoolEntry):
            self.store.set(size_key(self.entry.id), str(self.size), _KEPT)

    def look(self) -> str:
        """Returns what it has applied; "" as long as that is nothing.

        A pool has then told its workers, which apply it at their next look.
        """
        listed: Sequence[Entry | PoolEntry]
        if isinstance(self.entry, PoolEntry):
            listed = [each for each in roster.pools(self.store) if each.id == self.entry.id]
        else:
            listed = roster.read(self.store, [self.entry.key])
        if not listed:
            return "has ended meanwhile"
        return self._change(listed[0])

    def _change(self, now: Entry | PoolEntry) -> str:
        """Returns what it has applied; "" if that is not all."""
        before, changes, done = self.entry, [], True
        if isinstance(before, PoolEntry) and isinstance(now, PoolEntry) and self.size is not None:
            changes.append(f"workers {now.size} ({before.size} before)")
            done = now.size == self.size
        if self.slots is not None:
            changes.append(f"jobs at once {now.concurrency} ({before.concurrency} before)")
            done = done and now.concurrency == self.slots
        return ", ".join(changes) if done else ""


def _await(asked: list[_Target]) -> int:
    """Prints each target that has applied it; returns 1 if one has not in time."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        for each in asked[:]:
            with suppress(BackendUnavailable):
                if became := each.look():
                    say(f"{each}: {became}")
                    asked.remove(each)
        if not asked or time.monotonic() > deadline:
            break
        time.sleep(_LOOK)
    for each in asked:
        print_error(
            f"{each} has not followed within {_PATIENCE:g} s; it does when it next checks", 1
        )
    return int(bool(asked))
