"""fake_batch: a batch outside any queue, for `run`."""

from __future__ import annotations

import uuid

from qframe.config import ConnectionSettings
from qframe.connection import Connection
from qframe.contracts.step import Step
from qframe.dispatch.batch import Batch
from qframe.drivers.memory.backend import MemoryBackend
from qframe.features.batch import BatchMember, BatchPlan
from qframe.features.batches import BatchStore
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared
from qframe.payload.encryption import Keyring

_NOBODY = Prepared("", b"{}", "default", 0.0)


def fake_batch(
    *, name: str = "", total: int = 1, done: int = 0, failed: int = 0, cancelled: bool = False
) -> Batch:
    """Returns a batch in the given state, for `run(job, batch=...)`; no backend keeps it.

    Raises `ValueError` for impossible counts.
    """
    if min(done, failed) < 0 or done + failed > total:
        raise ValueError("total is at least done and failed together, and none is negative")
    backend, settings = MemoryBackend(), ConnectionSettings(driver="null")
    context = Context("null", backend, (), Keyring(), None, settings.retry_after, 1_000_000)
    batches, identity = BatchStore(context), str(uuid.uuid4())
    members = [lambda _: ChainPlan("", [None], [_NOBODY])] * total
    batches.start(BatchPlan(identity, name, {"follow": {}}, True, 0, _NOBODY, members))
    if cancelled:
        batches.cancel(identity)
    for number in range(done + failed):
        arrives = BatchMember(identity, number).arrives(str(uuid.uuid4()), failed=number >= done)
        backend.apply(Step(None, arrives))
    record = batches.read(identity)
    assert record is not None  # noqa: S101 (it was made here)
    return Batch(Connection(context, settings), record)
