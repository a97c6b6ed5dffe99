"""Unique jobs as they are declared and dispatched."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from qframe import (
    InvalidJob,
    JobDefinitionError,
    Queueable,
    QueueManager,
    bulk,
    dispatch,
    dispatch_sync,
    events,
    foreign,
    manager,
    queueable,
)
from qframe.dispatch.draft import flush
from qframe.features.unique import UniqueLock
from qframe.payload.envelope import Envelope, create


class Feed(Queueable):
    name: str = "news"
    more: dict[str, Any] = Field(default_factory=dict)
    unique = True

    def handle(self) -> None: ...


class Named(Queueable):
    name: Any = "news"
    number: int = 0
    unique = True
    unique_for = timedelta(minutes=2)
    unique_until = "started"

    def unique_id(self) -> Any:
        return self.name

    def handle(self) -> None: ...


class Nested(Queueable):
    connection = "sync"
    unique = True
    again: bool = False

    def unique_id(self) -> str:
        return "one"

    def handle(self) -> str:
        inner.append(dispatch(Nested(again=True)).send() if not self.again else "ran")
        return "done"


@queueable(unique=True, unique_id="the one", unique_for=5)
def work(number: int) -> None: ...


inner: list[str] = []


@pytest.fixture(autouse=True)
def queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueManager:
    made = QueueManager(
        {
            "root": tmp_path,
            "default": "database",
            "connections": {
                "database": {"driver": "database", "url": f"sqlite:///{tmp_path / 'jobs.sqlite3'}"}
            },
        }
    )
    monkeypatch.setattr(manager, "_default", made)
    inner.clear()
    return made


def key(job: Queueable) -> str:
    lock = UniqueLock.of(create(job))
    assert lock is not None
    return lock.key


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"unique": 1}, "unique must be True or False"),
        ({"unique": True, "unique_for": 0}, "unique_for must be more than 0 seconds"),
        ({"unique": True, "unique_for": None}, "unique_for must be more than 0 seconds"),
        ({"unique": True, "unique_until": "begun"}, "unique_until must be 'handled' or 'started'"),
        ({"unique": True, "unique_id": 1.5}, "unique_id must be a text, a whole number"),
        ({"unique_id": "x"}, "unique_id does nothing without unique = True"),
        ({"debounce": -1}, "debounce must be more than 0 seconds"),
        ({"unique": True, "debounce": 5}, "unique and debounce do not go together"),
        ({"uniqe": True}, "did you mean 'unique'"),
    ],
)
def test_what_is_declared_wrongly_is_one_clear_line(body: dict[str, Any], said: str) -> None:
    with pytest.raises(JobDefinitionError, match=said) as caught:
        type("Wrong", (Queueable,), {"handle": lambda self: None, **body})
    assert "\n" not in str(caught.value)


def test_the_same_fields_are_the_same_job_whatever_their_order() -> None:
    assert key(Feed(more={"a": 1, "b": {"x": 1, "y": 2}})) == key(
        Feed(more={"b": {"y": 2, "x": 1}, "a": 1})
    )
    assert key(Feed(more={"a": 1})) != key(Feed(more={"a": "1"}))
    assert key(Feed(name="a")) != key(Feed(name="b"))


def test_a_unique_id_is_what_counts_where_there_is_one() -> None:
    assert key(Named(number=1)) == key(Named(number=2))
    assert key(Named(name="7")) == key(Named(name=7))
    assert key(Named(name="a")) != key(Named(name="b"))
    assert key(work.job(1)) == key(work.job(2)) != key(Named(name="the one"))


def test_the_payload_says_which_lock_also_beside_other_keys() -> None:
    class Rich(Named):
        tags = ("a",)
        track = True
        job_name = "rich"

    for job in (Named(), Rich()):
        envelope = Envelope(create(job))
        lock = UniqueLock.of(envelope.payload)
        assert lock is not None
        said = {"key": lock.key, "for": 120, "until": "started"}
        assert envelope.payload["unique"] == said
        assert (lock.uuid, lock.seconds, lock.until) == (envelope.uuid, 120, "started")
        assert list(envelope.payload)[-2:] != ["unique", "delay"]
    assert "unique" not in create(PlainJob())


def test_bulk_tells_in_order_what_was_pushed_and_what_was_there(queues: QueueManager) -> None:
    heard: list[tuple[str, str]] = []
    with events.kept():
        for kind in (events.JobQueueing, events.JobQueued, events.JobDuplicate):
            events.listen(kind)(
                lambda event: heard.append((type(event).__name__, getattr(event, "id", "")))
            )
        first, again, plain = queues.connection().bulk([Feed(), Feed(), PlainJob()])
    assert (first, plain) == (again, heard[-1][1])
    assert heard[:3] == [("JobQueueing", "")] * 3
    assert heard[3:] == [("JobQueued", first), ("JobDuplicate", first), ("JobQueued", plain)]


class PlainJob(Queueable):
    def handle(self) -> None: ...


@pytest.mark.parametrize("given", [None, True, 1.5, ["x"]])
def test_an_id_that_is_none_is_refused_at_dispatch(given: object) -> None:
    with pytest.raises(InvalidJob, match="unique_id must give a text or a whole number"):
        dispatch(Named(name=given))


def test_a_long_name_makes_no_long_key() -> None:
    class Long(Feed):
        job_name = "x" * 500

    assert len(key(Long())) < 150


@pytest.mark.parametrize("option", ["unique", "unique_for", "debounce"])
def test_a_foreign_job_cannot_be_unique(option: str) -> None:
    options: dict[str, Any] = {option: 5}
    with pytest.raises(InvalidJob, match=f"{option} is for jobs that qframe runs"):
        foreign("App\\Import", {}, **options)


def test_a_dispatch_says_whether_it_is_a_duplicate(queues: QueueManager) -> None:
    first = dispatch(Feed())
    second = dispatch(Feed())
    assert not first.is_duplicate
    assert second.is_duplicate
    assert second.id == first.id
    assert asyncio.run(_awaited()) == first.id
    assert bulk([Feed(), PlainJob(), Feed(name="b")])[0] == first.id
    assert queues.connection().size() == 3


async def _awaited() -> str:
    return await dispatch(Feed())


def test_a_dropped_dispatch_goes_by_the_same_rule(queues: QueueManager) -> None:
    heard: list[events.JobDuplicate] = []
    with events.kept():
        events.listen(events.JobDuplicate)(heard.append)
        first = dispatch(Feed()).send()
        dispatch(Feed())
        flush()
    assert [event.id for event in heard] == [first]
    assert queues.connection().size() == 1


def test_on_sync_a_job_is_alone_while_it_runs(queues: QueueManager) -> None:
    given = dispatch(Nested()).send()
    assert inner == [given]  # what it dispatched of its kind was a duplicate of itself
    dispatch(Nested(again=True)).send()
    assert inner == [given, "ran"]
    assert dispatch_sync(Nested(again=True)) == "done"
    assert queues.connection("database").store.keys("unique:") == []


def test_a_job_that_raises_on_sync_frees_its_lock(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(self: Nested) -> str:
        raise ValueError("no")

    monkeypatch.setattr(Nested, "handle", raises)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            dispatch(Nested()).send()
    assert queues.connection("database").store.keys("unique:") == []


def test_null_keeps_no_lock(queues: QueueManager) -> None:
    pending = [dispatch(Feed()).on_connection("null") for _ in range(2)]
    assert len({each.send() for each in pending}) == 2
