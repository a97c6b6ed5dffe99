"""Jobs that no worker runs: deferred until the response, or in a process of their own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from qframe import (
    Queueable,
    QueueManager,
    Unsupported,
    background,
    bulk,
    chain,
    dispatch,
    dispatch_sync,
    events,
    foreign,
    manager,
)
from qframe.contracts.step import Push
from qframe.deferred import DeferredAsgiMiddleware, DeferredJobs, DeferredWsgiMiddleware
from qframe.dispatch.deferred import run_at_end
from qframe.drivers import heartbeat
from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidJob
from qframe.failed.retry import retry
from qframe.payload.envelope import uuid_of
from tests.support.process import Project, wait_for

ran: list[Any] = []


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> Iterator[QueueManager]:
    ran.clear()
    made = QueueManager({"default": "deferred"})
    manager.use(made)
    yield made
    run_at_end()


class Note(Queueable):
    word: str

    def handle(self) -> None:
        ran.append(self.word)
        if self.word == "fails":
            raise ValueError("no use")
        if self.word == "exits":
            raise SystemExit(3)
        if self.word == "dispatches":
            Note.dispatch(word="inner").send()
            ran.append("dispatched")


class Awaiting(Queueable):
    async def handle(self) -> None:
        await asyncio.sleep(0)
        ran.append("awaited")


class Written(Queueable):
    path: str
    word: str

    def handle(self) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{self.word}\n")


class Only(Note):
    unique = True


# -- a block --------------------------------------------------------------------------------------


def test_jobs_run_when_their_block_ends_in_order_and_chains_with_them() -> None:
    with DeferredJobs():
        Note.dispatch(word="a").send()
        Note.dispatch(word="dropped")
        bulk([Note(word="b"), Note(word="c")])
        chain([Note(word="d"), Note(word="e")]).dispatch()
        Awaiting.dispatch().send()
        assert ran == []
    assert ran == ["a", "dropped", "b", "c", "d", "e", "awaited"]


def test_they_run_also_if_the_block_raises() -> None:
    def fails() -> None:
        with DeferredJobs():
            Note.dispatch(word="a").send()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert ran == ["a"]


def test_on_a_loop_they_run_in_a_thread() -> None:
    places: list[int] = []

    async def main() -> None:
        listener = events.listen(events.JobProcessed)(
            lambda _: places.append(threading.get_ident())
        )
        try:
            async with DeferredJobs():
                await dispatch(Note(word="a"))
                await dispatch(Awaiting())
                assert ran == []
        finally:
            events.forget(listener)

    asyncio.run(main())
    assert ran == ["a", "awaited"]
    assert threading.get_ident() not in places


def test_what_a_task_defers_that_outlives_its_block_runs_at_the_end_of_the_process() -> None:
    async def late(over: asyncio.Event) -> None:
        await over.wait()
        await dispatch(Note(word="late"))

    async def main() -> None:
        over = asyncio.Event()
        async with DeferredJobs():
            await dispatch(Note(word="a"))
            task = asyncio.create_task(late(over))
        over.set()
        await task

    asyncio.run(main())
    assert ran == ["a"]
    run_at_end()
    assert ran == ["a", "late"]


def test_they_run_also_if_the_task_is_cancelled_while_they_do() -> None:
    async def request(begun: asyncio.Event) -> None:
        async with DeferredJobs():
            for word in "abc":
                await dispatch(Note(word=word))
            begun.set()
            await asyncio.Event().wait()

    async def main() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(request(begun))
        await begun.wait()
        for _ in range(2):  # the second one reaches it where it waits for its jobs
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_for(lambda: len(ran) == 3, "they have run")
    assert ran == ["a", "b", "c"]


def test_a_fork_leaves_the_jobs_of_a_block_to_its_parent(tmp_path: Path) -> None:
    written, child = tmp_path / "ran", -1
    try:
        with DeferredJobs():
            Written.dispatch(path=str(written), word="parent").send()
            child = os.fork()
            if not child:
                Written.dispatch(path=str(written), word="child").send()
    finally:
        if not child:
            run_at_end()
            os._exit(0)
    os.waitpid(child, 0)
    assert sorted(written.read_text().split()) == ["child", "parent"]


def test_a_job_that_exits_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture) -> None:
    with DeferredJobs():
        Note.dispatch(word="exits").send()
        Note.dispatch(word="a").send()
    assert ran == ["exits", "a"]
    assert "SystemExit" in caplog.text


def test_a_response_may_be_closed_in_another_thread() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        Note.dispatch(word="a").send()
        return [b""]

    response = DeferredWsgiMiddleware(app)({}, lambda *_: None)
    thread = threading.Thread(target=response.close)
    thread.start()
    thread.join()
    assert ran == ["a"]
    Note.dispatch(word="later").send()
    run_at_end()
    assert ran == ["a", "later"]


def test_in_a_running_job_it_runs_at_once() -> None:
    dispatch_sync(Note(word="dispatches"))
    assert ran == ["dispatches", "inner", "dispatched"]


def test_blocks_of_two_threads_are_apart() -> None:
    def other() -> None:
        with DeferredJobs():
            Note.dispatch(word="other").send()

    with DeferredJobs():
        Note.dispatch(word="mine").send()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert ran == ["other"]
    assert ran == ["other", "mine"]


def test_a_failure_is_logged_recorded_and_can_be_retried(
    queues: QueueManager, caplog: pytest.LogCaptureFixture
) -> None:
    with DeferredJobs(), caplog.at_level(logging.ERROR, "qframe"):
        Note.dispatch(word="fails").send()
        Note.dispatch(word="next").send()
    assert ran == ["fails", "next"]
    assert "Note failed after it was deferred" in caplog.text
    store = queues.failed_store()
    (record,) = store.all()
    assert (record.connection, record.name) == ("deferred", f"{__name__}.Note")
    assert "no use" in record.exception
    with DeferredJobs(), caplog.at_level(logging.CRITICAL, "qframe"):
        assert retry(queues, store, record)
    assert ran == ["fails", "next", "fails"]
    assert store.count() == 1


def test_a_lock_is_held_until_the_job_has_run() -> None:
    with DeferredJobs():
        first = Only.dispatch(word="a").send()
        assert Only.dispatch(word="a").send() == first
    assert ran == ["a"]
    with DeferredJobs():
        assert Only.dispatch(word="a").send() != first


def test_many_without_a_block_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        Note.dispatch(word="a").send()
    assert ran == []
    assert "100 deferred jobs wait for the end of this process" in caplog.text
    run_at_end()
    assert len(ran) == 100


def test_a_job_of_another_program_is_refused() -> None:
    for name in ("deferred", "background"):
        with pytest.raises(Unsupported):
            dispatch(foreign("App\\Import")).on_connection(name).send()


# -- responses ------------------------------------------------------------------------------------


def _request(request: Request) -> PlainTextResponse:
    Note.dispatch(word="sync").send()
    ran.append("returned")
    if request.query_params:
        raise RuntimeError
    return PlainTextResponse("done")


async def _streamed(request: Request) -> StreamingResponse:
    async def body() -> Any:
        await dispatch(Note(word="in the body"))
        yield b"one"
        ran.append("sent")
        yield b"two"

    return StreamingResponse(body())


def test_after_an_asgi_response() -> None:
    sent: list[Any] = []

    class Watch:
        """Notes when the last part of a response is sent."""

        def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def watched(message: Any) -> None:
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    ran.append("response")

            await self.app(scope, receive, watched)

    routes = [Route("/sync", _request), Route("/streamed", _streamed)]
    app = Starlette(routes=routes, middleware=[Middleware(DeferredAsgiMiddleware)])
    with TestClient(Watch(app), raise_server_exceptions=False) as client:
        assert client.get("/sync").text == "done"
        assert client.get("/streamed").text == "onetwo"
        assert client.get("/sync?fails=1").status_code == 500
    assert ran[:6] == ["returned", "response", "sync", "sent", "response", "in the body"]
    assert sorted(ran[6:]) == ["response", "returned", "sync"]
    assert sent == []


def test_after_a_wsgi_response() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/raises":
            Note.dispatch(word="raised").send()
            raise RuntimeError
        start_response("200 OK", [])
        Note.dispatch(word="before").send()
        return body()

    def body() -> Iterator[bytes]:
        yield b"one"
        Note.dispatch(word="in the body").send()
        yield b"two"

    wrapped = DeferredWsgiMiddleware(app)
    response = wrapped({"PATH_INFO": "/"}, lambda *_: None)
    assert (b"".join(response), ran) == (b"onetwo", [])
    response.close()
    assert ran == ["before", "in the body"]
    with pytest.raises(RuntimeError):
        wrapped({"PATH_INFO": "/raises"}, lambda *_: None)
    assert ran == ["before", "in the body", "raised"]
    Note.dispatch(word="outside").send()
    assert len(ran) == 3
    run_at_end()


# -- the end of a process, and one of its own -----------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path) as made:
        yield made


PROGRAM = """
import os, sys
from jobs import Note
from qframe import dispatch
if __name__ == "__main__":
    connection, way = sys.argv[1:]
    dispatch(Note(word="first")).on_connection(connection).send()
    dispatch(Note(word="dropped")).on_connection(connection)
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print("end", flush=True)
    if way == "kill":
        os._exit(9)
"""


@pytest.mark.parametrize("way", ["end", "kill"])
def test_at_the_end_of_a_process_or_never(project: Project, way: str) -> None:
    finished = project.python(PROGRAM, "deferred", way)
    assert finished.out.split() == ["end"], finished
    words = [each[1] for each in project.notes("note")]
    assert sorted(words) == (["dropped", "first"] if way == "end" else [])


def test_in_a_process_of_its_own_which_outlives_its_dispatcher(project: Project) -> None:
    finished = project.python(PROGRAM, "background", "kill")
    assert finished.code == 9
    for word in ("first", "dropped"):
        project.wait_for_note("note", word)
    assert len(project.notes("note")) == 2


def test_a_started_process_is_none_that_could_not_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python starts no thread while it ends: in a deferred job at the end of a process."""
    started: list[object] = []

    def ends(name: str, work: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("subprocess.Popen", lambda *given, **_: started.append(given))
    monkeypatch.setattr(heartbeat, "start_thread", ends)
    Note.dispatch(word="a").on_connection("background").send()
    assert len(started) == 1


def test_a_background_failure_is_recorded_and_can_be_retried(project: Project) -> None:
    project.qframe("dispatch", "jobs.Flaky", '{"failures": 1}', "--connection", "background")
    wait_for(project.failed, "the record of the failed job")
    failure = project.failure()
    assert failure.connection == "background"
    project.qframe("retry", failure.uuid)
    project.wait_for_note("start", "flaky", count=2)
    wait_for(project.failed, "the record of its second failure")
    assert project.empty()


def test_what_a_new_process_could_not_find_is_refused(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inside(Queueable):
        def handle(self) -> None: ...

    with pytest.raises(InvalidJob):
        dispatch(Inside()).on_connection("background")
    queues.settings.origin = queues.settings.origin._replace(framework="Flask's QFRAME")
    with pytest.raises(ConfigurationError, match="cannot read Flask's QFRAME"):
        dispatch(Note(word="a")).on_connection("background").send()
    queues.settings.origin = queues.settings.origin._replace(framework="")
    monkeypatch.setattr("sys.executable", os.devnull)
    with pytest.raises(BackendUnavailable, match="no process for a job could be started"):
        dispatch(Note(word="a")).on_connection("background").send()


def main_of_background(folder: Path, patch: pytest.MonkeyPatch, toml: str) -> str:
    """Run the process of a job here, in this project. Return the job's uuid."""
    pushed: list[Push] = []
    connection = manager.default().connection("background")
    patch.setattr(connection, "go_on", lambda waiting, first=None: pushed.extend(waiting))
    chain([Note(word="a"), Note(word="b")]).on_connection("background").dispatch()
    (push,) = pushed
    (folder / "qframe.toml").write_text(toml)
    (folder / "broken_app.py").write_text("1 / 0")
    raw = base64.b64encode(push.raw).decode()
    asked = {"connection": "background", "queue": push.queue, "raw": raw}
    patch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    patch.setenv("QFRAME_CONFIG", str(folder / "qframe.toml"))
    assert background.main() == 1
    return uuid_of(push.raw)


def test_a_background_job_whose_code_cannot_be_imported_is_recorded(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = main_of_background(fresh, monkeypatch, 'jobs = ["broken_app"]')
    records = list(manager.default().connection("background").failed.all())
    assert uuid in [each.uuid for each in records]
    assert all("'broken_app' cannot be imported" in each.exception for each in records)
    (line,) = [each for each in caplog.records if "was not run" in each.message]
    assert "recorded as failed" in line.message
    assert (uuid in line.message, "\n" in line.message, line.exc_info) == (True, False, None)


@pytest.mark.parametrize("toml", ["default = 1", "default = [", '[failed]\ndriver = "nowhere"\n'])
def test_a_background_job_without_a_configuration_is_lost_with_one_line(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, toml: str
) -> None:
    uuid = main_of_background(fresh, monkeypatch, toml)
    (line,) = [each for each in caplog.records if "was not run" in each.message]
    assert (uuid in line.message, "\n" in line.message, line.exc_info) == (True, False, None)
