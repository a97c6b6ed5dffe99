"""A payload that is refused unread touches nothing of anybody's: a record, a removal, no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qframe.contracts.backend import Backend
from qframe.contracts.status import State
from qframe.contracts.step import Delete, Push, Record, Step
from qframe.exceptions import InvalidPayload, InvalidSignature
from qframe.features import status
from qframe.features.all import FEATURES
from qframe.features.base import End
from qframe.payload.signature import Signer
from tests.features.harness import Bench

LOCK: dict[str, Any] = {"key": "unique:app.Demo:1", "for": 60, "until": "handled"}


@pytest.fixture
def bench() -> Bench:
    return Bench(FEATURES, signer=Signer(["a key that only we have"]))


def everything(backend: Backend) -> Any:
    """Give all that is kept but what waits in the queue q."""
    return backend.scan(""), backend.latch("batch:b1", 9), backend.sizes("callbacks")


def refuse(bench: Bench, raw: bytes) -> str:
    """Push bytes as anybody could who can write to the queue, and fail them as a worker does.

    Gives the name of its record.
    """
    bench.backend.apply(Step(None, Push("q", raw)))
    while True:
        job = bench.held()
        if job.raw_body == raw:
            break
    before = everything(bench.backend)
    assert isinstance(job.refusal, InvalidPayload | InvalidSignature)
    assert not job.features
    assert job.skip_reason() is None
    (result,) = bench.backend.apply(job.start_plan())
    assert result.applied
    plan = job.plan(End(State.FAILED, error=job.refusal))
    assert [type(each) for each in plan.operations] == [Record, Delete]
    job.settle(End(State.FAILED, error=job.refusal))
    assert everything(bench.backend) == before
    return job.record_uuid


FORGED: list[dict[str, Any]] = [
    {"unique": LOCK},
    {"track": 60},
    {"debounce": {"key": "debounce:app.Demo:1", "for": 60}},
    {"chain": {"id": "c1"}},
    {"batch": {"id": "b1", "n": 0}},
    {"unique": LOCK, "track": 60, "chain": {"id": "c1"}, "batch": {"id": "b1", "n": 0}},
]


@pytest.mark.parametrize("keys", FORGED)
def test_an_unsigned_payload_acts_on_nothing_it_names(bench: Bench, keys: dict[str, Any]) -> None:
    bench.push("victim", unique=LOCK, track=60)
    raw = json.dumps({"uuid": "victim", "job": "app.Demo", "data": {}, **keys}).encode()
    record = refuse(bench, raw)
    assert record != "victim"
    assert bench.backend.read(LOCK["key"]) == ["victim"]
    found = status.read(bench.backend, "victim")
    assert found is not None
    assert found.state is State.WAITING


def test_one_signed_for_another_queue_is_as_good_as_unsigned(bench: Bench) -> None:
    bench.push("victim", unique=LOCK)
    raw = bench.pushing("victim", "other", unique=LOCK).raw
    assert refuse(bench, raw) != "victim"
    assert bench.backend.read(LOCK["key"]) == ["victim"]


def test_the_record_of_a_failed_job_is_not_overwritten(bench: Bench) -> None:
    bench.push("victim")
    bench.run(state=State.FAILED)
    kept = bench.backend.find_failed("victim")
    refuse(bench, b'{"uuid":"victim","job":"app.Demo","data":{"mine":1}}')
    assert bench.backend.find_failed("victim") == kept
    assert bench.backend.count_failed() == 2


@pytest.mark.parametrize(
    "raw",
    [b"", b"no json", b"[]", b"\xff", b'{"uuid":"\\ud800","job":"app.Demo"}',
     b'{"uuid":"victim","unique":{"key":"\\udfff"}}', b"[" * 5000],
)  # fmt: skip
def test_one_that_never_parses_has_a_record_of_its_own(raw: bytes) -> None:
    bench = Bench(FEATURES)
    bench.push("victim", unique=LOCK)
    first, second = refuse(bench, raw), refuse(bench, raw)
    assert first != second
    records = [bench.backend.find_failed(uuid) for uuid in (first, second)]
    assert [record and record.payload for record in records] == [raw, raw]
