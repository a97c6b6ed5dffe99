"""The sync connection as the caller of dispatch sees it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    DontHandle,
    JobAlreadySettled,
    JobFailedByHand,
    Queueable,
    Unsupported,
    bulk,
    dispatch,
    events,
    manager,
)
from qframe.contracts.backend import Capability
from tests.support.process import Project

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _begin(fresh: object) -> None:
    ran.clear()


class Job(Queueable):
    connection = "sync"
    tries = 5
    backoff = 60

    error: str = ""
    does: str = ""

    def set_up(self) -> None:
        ran.append("set_up")

    def handle(self) -> None:
        ran.append(f"handle {self.attempts}")
        if self.error:
            raise ValueError(self.error)
        if self.does == "release":
            self.release(5)
        if self.does == "fail":
            self.fail("no use")
        if self.does == "fail with nothing":
            self.fail()
        if self.does == "delete":
            self.delete()
            self.delete()
        if self.does == "skip":
            raise DontHandle("not today")

    def tear_down(self) -> None:
        ran.append("tear_down")

    def succeeded(self) -> None:
        ran.append("succeeded")

    def failed(self, error: BaseException) -> None:
        ran.append(f"failed {type(error).__name__}: {error}")


class Async(Queueable):
    connection = "sync"

    async def set_up(self) -> None:
        ran.append("set_up")

    async def handle(self) -> None:
        await asyncio.sleep(0)
        ran.append("handle")

    async def succeeded(self) -> None:
        ran.append("succeeded")


def names(heard: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in heard]


@pytest.fixture
def heard() -> list[events.Event]:
    heard: list[events.Event] = []
    events.listen(events.Event)(heard.append)
    return heard


def test_the_job_runs_inside_send_in_the_caller(heard: list[events.Event]) -> None:
    pending = dispatch(Job())
    assert ran == []
    assert len(pending.send()) == 36
    assert ran == ["set_up", "handle 1", "tear_down", "succeeded"]
    pending.send()
    assert len(ran) == 4
    assert names(heard) == [
        *("JobQueueing", "JobQueued", "JobProcessing", "JobProcessed", "JobAttempted")
    ]


def test_it_is_one_attempt_then_failed_then_the_exception_reaches_send(
    heard: list[events.Event],
) -> None:
    with pytest.raises(ValueError, match="broken"):
        dispatch(Job(error="broken")).send()
    assert ran == ["set_up", "handle 1", "tear_down", "failed ValueError: broken"]
    assert names(heard) == [
        *("JobQueueing", "JobQueued", "JobProcessing", "JobExceptionOccurred", "JobFailed"),
        "JobAttempted",
    ]


def test_an_error_of_failed_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Job, error: BaseException) -> None:
        raise KeyError("in failed")

    monkeypatch.setattr(Job, "failed", broken)
    with pytest.raises(ValueError, match="broken"):
        dispatch(Job(error="broken")).send()


def test_a_delay_is_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        dispatch(Job()).delay(3600).send()
    assert ran.count("handle 1") == 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'sync' keeps no jobs: a delay is ignored" in record.getMessage()


def test_release_raises_and_the_job_fails_with_that() -> None:
    with pytest.raises(Unsupported, match="cannot be released: it runs only once"):
        dispatch(Job(does="release")).send()
    assert ran[-1].startswith("failed Unsupported")


@pytest.mark.parametrize(
    ("does", "said"), [("fail", "no use"), ("fail with nothing", "failed itself")]
)
def test_a_job_that_fails_itself_raises_in_send(
    does: str, said: str, heard: list[events.Event]
) -> None:
    with pytest.raises(Exception, match=said) as raised:
        dispatch(Job(does=does)).send()
    assert ran[-1] == f"failed {type(raised.value).__name__}: {raised.value}"
    assert "JobFailed" in names(heard)
    assert "JobProcessed" not in names(heard)
    if does != "fail":
        assert raised.type is JobFailedByHand


def test_a_second_settle_raises() -> None:
    with pytest.raises(JobAlreadySettled):
        dispatch(Job(does="delete")).send()


def test_a_skipped_job_neither_succeeds_nor_fails(heard: list[events.Event]) -> None:
    dispatch(Job(does="skip")).send()
    assert ran == ["set_up", "handle 1", "tear_down"]
    event = heard[-1]
    assert isinstance(event, events.JobSkipped)
    assert event.reason == "not today"


def test_the_fields_arrive_as_copies() -> None:
    class Changes(Queueable):
        connection = "sync"
        value: list[int]

        def handle(self) -> None:
            self.value.append(1)

    value: list[int] = []
    dispatch(Changes(value=value)).send()
    assert value == []


def test_async_jobs_run_also_inside_a_running_loop() -> None:
    dispatch(Async()).send()

    async def main() -> None:
        dispatch(Async()).send()
        await dispatch(Async())

    asyncio.run(main())
    assert ran == ["set_up", "handle", "succeeded"] * 3


def test_a_dropped_dispatch_runs_too_and_its_exception_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caught: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: caught.append(args.exc_value))
    dispatch(Job())
    assert "handle 1" in ran
    dispatch(Job(error="broken"))
    assert [str(error) for error in caught] == ["broken"]
    assert "could not be pushed" in caplog.text


def test_bulk_runs_them_in_order() -> None:
    assert len(bulk([Job(), Async()])) == 2
    assert ran == [
        *("set_up", "handle 1", "tear_down", "succeeded"),
        *("set_up", "handle", "succeeded"),
    ]


def test_bulk_ignores_a_delay_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    job.delay = 60  # type: ignore[misc] # of this one
    bulk([job])
    assert "a delay is ignored" in caplog.text
    assert "handle 1" in ran


def test_nothing_is_recorded_and_nothing_waits() -> None:
    queue = manager.default().connection("sync")
    assert Capability.RESERVE not in queue.capabilities
    with pytest.raises(ValueError, match="broken"):
        dispatch(Job(error="broken")).send()
    assert queue.failed.count() == 0
    with pytest.raises(Unsupported, match="runs jobs, not raw payloads"):
        queue.push_raw("{}")
    for call in (queue.size, queue.clear, lambda: queue.reserve(["default"])):
        with pytest.raises(Unsupported):
            call()


SCRIPT = """
from qframe import Queueable, batch, chain

class Say(Queueable):
    word: str
    def handle(self) -> None:
        print(self.word)

if __name__ == "__main__":
    chain([Say(word="a"), Say(word="b")]).on_connection("sync").dispatch()
    print(batch([Say(word="c")]).then(Say(word="d")).on_connection("sync").dispatch().done)
"""


def test_chains_and_batches_run_the_jobs_of_the_script_itself(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        finished = project.python(SCRIPT)
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.split() == ["a", "b", "c", "d", "1"]
