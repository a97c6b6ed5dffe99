from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from qframe import Queueable, QueueManager, Worker, WorkerOptions, dispatch, events, manager
from qframe.exceptions import JobTimedOut
from tests.support.process import Project

pytestmark = pytest.mark.usefixtures("fresh")


class Traced(Queueable):
    def handle(self) -> None:
        pass


def fire_idle() -> bool:
    return events.fire(events.WorkerIdle, "database", ("default",))


def test_listeners_are_called_in_the_order_they_were_added_also_to_base_classes() -> None:
    heard: list[str] = []

    def noting(name: str) -> Any:
        return lambda _event: heard.append(name)

    events.listen(events.Event)(noting("first"))
    events.listen(events.WorkerIdle)(noting("second"))
    events.listen(events.WorkerEvent)(noting("third"))
    events.listen(events.Event)(noting("fourth"))
    events.listen(events.WorkerStarting)(noting("never"))
    fire_idle()
    assert heard == ["first", "second", "third", "fourth"]


def test_an_event_carries_its_fields_and_cannot_be_changed() -> None:
    heard: list[events.WorkerIdle] = []
    events.listen(events.WorkerIdle)(heard.append)
    fire_idle()
    (event,) = heard
    assert event == events.WorkerIdle("database", ("default",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.connection = "other"  # type: ignore[misc]


def test_listening_is_a_decorator_that_gives_the_function_back() -> None:
    def listener(event: events.WorkerIdle) -> None: ...

    assert events.listen(events.WorkerIdle)(listener) is listener


def test_a_listener_that_raises_is_logged_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []

    @events.listen(events.WorkerIdle)
    def bad(_event: events.WorkerIdle) -> None:
        raise SystemExit("a listener's own trouble")

    @events.listen(events.WorkerIdle)
    def good(_event: events.WorkerIdle) -> None:
        heard.append("good")

    assert fire_idle() is True
    assert heard == ["good"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "WorkerIdle" in record.getMessage()


def test_the_end_of_a_running_job_passes_through_a_listener() -> None:
    @events.listen(events.WorkerIdle)
    def interrupted(_event: events.WorkerIdle) -> None:
        raise JobTimedOut

    with pytest.raises(JobTimedOut):
        fire_idle()


def test_a_forgotten_listener_is_not_called_any_more() -> None:
    heard: list[object] = []
    events.listen(events.WorkerIdle)(heard.append)
    events.listen(events.Event)(heard.append)
    fire_idle()
    events.forget(heard.append)
    fire_idle()
    events.forget(heard.append)  # ignored
    assert len(heard) == 2


def test_a_listener_added_later_is_heard() -> None:
    heard: list[object] = []
    fire_idle()
    events.listen(events.WorkerIdle)(heard.append)
    fire_idle()
    assert len(heard) == 1


@pytest.mark.parametrize(("answers", "willing"), [((False, None), False), ((None, 0, ""), True)])
def test_only_false_is_a_veto_and_all_are_asked(answers: tuple[Any, ...], willing: bool) -> None:
    left = list(answers)
    for _ in answers:
        events.listen(events.Looping)(lambda _event: left.pop(0))
    assert events.fire(events.Looping, "database", ("default",)) is willing
    assert left == []


def test_an_event_nobody_hears_is_not_even_made() -> None:
    assert events.fire(events.Looping, "too", "many", "fields", "to", "be", "one") is True


@pytest.mark.parametrize("kind", events.kinds().values())
def test_every_event_is_a_frozen_dataclass_with_a_meaning(kind: Any) -> None:
    assert kind.__doc__
    values = [object() for _ in kind.__match_args__]
    event = kind(*values)
    named = kind(**dict(zip(kind.__match_args__, values, strict=True)))
    assert event == named
    assert hash(event) == hash(named)
    assert event == copy.copy(event)
    assert not values or event != kind(*reversed([*values[1:], None]))
    assert not values or event == dataclasses.replace(event)
    assert repr(event).startswith(f"{kind.__name__}(")
    assert "payload" not in repr(event)
    for name in kind.__match_args__:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(event, name)


def test_an_event_takes_each_of_its_fields_once() -> None:
    assert len(events.kinds()) > 25
    idle: Any = events.WorkerIdle
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        (("database",), {}),
        (("database",), {"connection": "redis"}),
        (("database", (), 3), {}),
        (("database",), {"queue": ()}),
        (("database", ()), {"queue": ()}),
    ]
    for values, named in wrong:
        with pytest.raises(
            TypeError, match=r"WorkerIdle takes each of \(connection, queues\) once"
        ):
            idle(*values, **named)


def test_what_a_listener_of_job_queueing_adds_is_seen_in_job_processing(fresh: Path) -> None:
    queues = QueueManager({"root": str(fresh), "jobs": ["tests.test_events"]})
    manager.use(queues)
    seen: list[Any] = []

    @events.listen(events.JobQueueing)
    def trace(event: events.JobQueueing) -> None:
        event.payload["traceId"] = "00-ab-01"

    @events.listen(events.JobProcessing)
    def see(event: events.JobProcessing) -> None:
        seen.append((event.job.payload["traceId"], event.job.uuid))

    uuid = dispatch(Traced()).send()
    options = WorkerOptions(stop_when_empty=True, memory=0)
    assert Worker(queues, options).run() == 0
    assert seen == [("00-ab-01", uuid)]


def test_the_events_of_one_dispatch_in_order() -> None:
    heard: list[events.Event] = []
    events.listen(events.Event)(heard.append)
    uuid = dispatch(Traced()).on_queue("a").delay(5).send()
    queueing, queued = heard
    assert isinstance(queueing, events.JobQueueing)
    assert isinstance(queued, events.JobQueued)
    for event in (queueing, queued):
        assert (event.connection, event.queue, event.delay) == ("database", "a", 5.0)
        assert isinstance(event.job, Traced)
        assert event.payload["uuid"] == uuid
    assert queued.id == uuid


def test_what_is_added_reaches_a_worker_in_another_process(tmp_path: Path) -> None:
    with Project(tmp_path / "app", '[listeners]\nJobProcessing = ["traced:see"]\n') as project:
        project.write(
            "traced.py",
            "import jobs\n"
            "from qframe import Queueable, dispatch, events\n"
            "class Job(Queueable):\n"
            "    def handle(self) -> None: ...\n"
            "def see(event):\n"
            "    jobs.note('tenant', event.job.payload['tenant'])\n"
            "@events.listen(events.JobQueueing)\n"
            "def add(event):\n"
            "    event.payload['tenant'] = 'acme'\n",
        )
        project.python("import traced\nif __name__ == '__main__': traced.dispatch(traced.Job())")
        project.drain()
        assert project.notes("tenant") == [["tenant", "acme"]]
