"""Lists: rows that a filter chooses, and one clear line for what is no filter of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from qframe.exceptions import ConfigurationError
from qframe.operations import lists
from qframe.operations.batches import BatchState
from qframe.operations.queues import QueueState
from qframe.operations.workers import RunningState, WorkerState
from qframe.payload.timing import iso

QUEUES = [
    QueueState(connection="redis", queue="mail", paused=True),
    QueueState(connection="redis", queue="mail:high"),
    QueueState(connection="database", queue="default"),
]
JOB = RunningState(
    uuid="u-1",
    job="app.Send",
    queue="mail",
    attempt=1,
    since="2026-01-01 00:00:00",
    seconds=1,
    tags=["tenant:7"],
)
WORKER = WorkerState(
    id="w1", name="default", host="web-1", pid=7, pool=None, connection="redis",
    queues=["mail", "sms"], state="running", concurrency=1, scales=False, used=1, memory_mb=1,
    qframe="1", python="3", started_at=iso(1_000_000.0), seen_seconds=0, processed=0, failed=0,
    jobs=[JOB],
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["mail", "mail:high", "default"]),
        ("queue:mail*", ["mail", "mail:high"]),
        ("queue:mail", ["mail"]),
        ("state:paused", ["mail"]),
        ("!state:paused connection:redis", ["mail:high"]),
        ("HIGH", ["mail:high"]),
        ("text:mail,def", ["mail", "mail:high", "default"]),
    ],
)
def test_queues(text: str, names: list[str]) -> None:
    assert [each.queue for each in lists.QUEUES.chosen(QUEUES, text)] == names


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("tag:tenant:7", True), ("tag:tenant:*", True), ("tag:other", False),
        ("host:web-* state:running class:app.* queue:sms id:w1", True),
        ("older:1w", True), ("newer:1w", False), ("!newer:1w", True), ("host:db", False),
    ],
)  # fmt: skip
def test_workers(text: str, *, fits: bool) -> None:
    assert bool(lists.WORKERS.chosen([WORKER], text)) is fits


def test_batches_with_failures_are_failed_whatever_else_they_are() -> None:
    common: dict[str, Any] = {"connection": "redis", "progress": 0.5, "done": 1, "pending": 1}
    common |= {"total": 2, "created_at": iso(1_000_000.0), "cancelled_at": None}
    common |= {"finished_at": None, "state": "running"}
    good = BatchState(id="a", name="import", failed=0, **common)
    bad = BatchState(id="b", name="import 2", failed=1, **common)
    assert lists.BATCHES.chosen([good, bad], "state:running name:import*") == [good, bad]
    assert lists.BATCHES.chosen([good, bad], "state:failed older:1h") == [bad]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (lists.QUEUES, "queu:mail", "there is no filter queu: (did you mean 'queue'?); there are"),
        (lists.QUEUES, "older:5m", "there is no filter older:"),
        (lists.WORKERS, "hots:a", "did you mean 'host'?"),
        (lists.BATCHES, "older:soon", "older: takes a time"),
        (lists.CLASSES, "class:", "cannot be read"),
        (lists.CLASSES, "state:fial", "there is no state 'fial'"),
        (lists.QUEUES, "state:pausd", "there is no state 'pausd' (did you mean 'paused'?)"),
        (lists.WORKERS, "state:dead", "there are idle, running, paused, gone"),
        (lists.BATCHES, "state:over", "there is no state 'over'"),
        (lists.SCHEDULES, "older:5m", "there is no filter older:"),
    ],
)
def test_what_is_no_filter_of_it_is_said_in_a_line(
    kind: lists.RowKind[Any], text: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        kind.chosen([], text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
