"""Short words for tests of batches: one of a few members, and how it stands."""

from __future__ import annotations

from typing import Any

from qframe import QueueManager
from qframe.contracts import BatchRecord, BatchStore, NewBatch
from tests.conformance.drivers import NAME, RETRY_AFTER, Bench, RedisBench, SqliteBench

KINDS: dict[str, type[Bench]] = {"sqlite": SqliteBench, "redis": RedisBench}
"""The backends that keep stores of their own."""
TELLER = b'{"uuid":"teller","text":"\xc3\xa4\xf0\x9f\x91\x8d \\n"}'


def new(batch: str = "b", *, allows: bool = False, step: int = 0, **more: Any) -> NewBatch:
    options: dict[str, Any] = {"queue": None, "follow": {"then": ["ä👍 'x' %s \n"]}}
    return NewBatch(
        **{
            "id": batch, "name": "Ein Stapel ä👍 %s", "connection": "here", "options": options,
            "allows_failures": allows, "progress_step": step, "teller": TELLER,
            "teller_uuid": "teller", "teller_queue": "tell", **more,
        }
    )  # fmt: skip


def opened(
    store: BatchStore,
    count: int,
    batch: str = "b",
    *,
    allows: bool = False,
    step: int = 0,
    sealed: bool = True,
) -> None:
    """Begin a batch of so many members."""
    assert store.create(new(batch, allows=allows, step=step))
    assert store.grow(batch, count) == 0
    if sealed:
        assert store.seal(batch) is None


def read(store: BatchStore, batch: str = "b") -> BatchRecord:
    found = store.read(batch)
    assert found is not None
    return found


def counts(store: BatchStore, batch: str = "b") -> tuple[int, int, int]:
    found = read(store, batch)
    assert found.pending == found.total - found.done - found.failed
    return found.done, found.failed, found.total


def stored_elsewhere(bench: Bench) -> None:
    """Have a backend, that could keep them itself, keep store and failed jobs elsewhere."""
    settings = {"retry_after": RETRY_AFTER, **bench.connection()}
    other = {"driver": "database", "url": f"sqlite:///{bench.folder / 'other.sqlite3'}"}
    bench.manager = QueueManager(
        {
            "root": bench.folder,
            "default": NAME,
            "connections": {NAME: settings, "other": other},
            "store": {"driver": "other"},
            "failed": {"driver": "other"},
        }
    )
    bench.managers.append(bench.manager)
    bench.queue = bench.manager.connection(NAME)
