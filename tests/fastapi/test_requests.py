"""Routes: what they add is queued before they answer, or not at all."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Cookie, Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from qframe import QueueManager, dispatch, events, manager
from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidJob
from qframe.fastapi import BackgroundJobs, JobsOfRequest, lifespan, page
from qframe.web import Visitor
from tests.fastapi.conftest import ROOT
from tests.fastapi.dependencies import Call, plain


def test_what_a_route_adds_is_queued_before_its_answer_is_sent(queues: QueueManager) -> None:
    app, seen = FastAPI(lifespan=lifespan), list[int]()

    @app.post("/sync", status_code=202)
    def sync(jobs: BackgroundJobs) -> dict[str, int]:
        jobs.add_task(plain, 1)
        jobs.add_task(plain, number=2)
        jobs.add_task(Call, number=3)
        jobs.add_task(Call(number=4))
        seen.append(queues.connection().size("q"))
        return {"added": len(jobs)}

    @app.post("/async", status_code=202)
    async def on_loop(jobs: BackgroundJobs) -> None:
        jobs.add_task(plain, 5)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append(queues.connection().size("q"))
            await send(message)

        await app(scope, receive, sending)

    with TestClient(watched) as client:
        assert client.post("/sync").json() == {"added": 4}
        assert seen == [0, 4]
        assert client.post("/async").status_code == 202
        assert seen == [0, 4, 5]


def test_they_go_in_one_exchange_and_not_from_the_loop(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = FastAPI()
    backend = queues.connection().backend
    calls, original = list[tuple[int, int]](), backend.apply

    def counted(*steps: Any) -> Any:
        calls.append((len(steps), threading.get_ident()))
        return original(*steps)

    monkeypatch.setattr(backend, "apply", counted)

    @app.post("/")
    async def route(jobs: BackgroundJobs) -> int:
        for number in range(20):
            jobs.add_task(plain, number)
        return threading.get_ident()

    with TestClient(app) as client:
        loop = client.post("/").json()
    assert len(calls) == 1
    assert calls[0][1] != loop
    assert queues.connection().size("q") == 20


def test_nothing_is_queued_where_the_route_raised(queues: QueueManager) -> None:
    app = FastAPI()

    @app.post("/refused")
    def refused(jobs: BackgroundJobs) -> None:
        jobs.add_task(plain, 1)
        raise HTTPException(409)

    @app.post("/broken")
    async def broken(jobs: BackgroundJobs) -> None:
        jobs.add_task(plain, 1)
        raise RuntimeError

    @app.post("/unfit")
    async def unfit(jobs: BackgroundJobs) -> int:
        jobs.add_task(plain, 1)
        return "no number"  # type: ignore[return-value] # FastAPI refuses it

    client = TestClient(app, raise_server_exceptions=False)
    codes = [client.post(path).status_code for path in ("/refused", "/broken", "/unfit")]
    assert codes == [409, 500, 500]
    assert queues.connection().size("q") == 0


def test_what_cannot_be_queued_is_no_success(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = FastAPI()

    @app.post("/")
    def route(jobs: BackgroundJobs) -> None:
        jobs.add_task(plain, 1)

    def away(*_: object) -> Any:
        raise BackendUnavailable("it is away")

    monkeypatch.setattr(queues.connection().backend, "apply", away)
    client = TestClient(app, raise_server_exceptions=False)
    said = client.post("/")
    assert (said.status_code, said.json()) == (503, {"detail": "the work could not be queued"})


def test_a_session_that_commits_before_is_seen_by_the_job(queues: QueueManager) -> None:
    app, order = FastAPI(), list[str]()

    def session() -> Iterator[None]:
        yield
        order.append("committed")

    committed = Depends(session, scope="function")
    with events.kept():
        events.listen(events.JobQueued)(lambda _: order.append("queued"))

        @app.post("/")
        def route(jobs: BackgroundJobs, session: None = committed) -> None:
            jobs.add_task(plain, 1)

        assert TestClient(app).post("/").status_code == 200
    assert order == ["committed", "queued"]
    assert queues.connection().size("q") == 1


def some_function(number: int) -> None: ...


def test_only_jobs_are_added() -> None:
    jobs = JobsOfRequest()
    for func, args, text in [
        (some_function, (1,), "some_function is no job: put @queueable on it"),
        (plain, ("x",), "plain: number"),
        (plain, (), "missing a required argument: 'number'"),
        (Call, (1,), "its fields are given by keyword"),
        (Call(), (1,), "a job that is made takes no arguments"),
        (len, (), "len is no job"),
    ]:
        with pytest.raises(InvalidJob) as caught:
            jobs.add_task(func, *args)  # type: ignore[call-overload]
        assert text in str(caught.value)
    assert len(jobs) == 0


def test_starlette_has_it_as_a_block(queues: QueueManager) -> None:
    async def route(request: Request) -> JSONResponse:
        async with JobsOfRequest() as jobs:
            jobs.add_task(plain, 1)
            if request.query_params:
                raise ValueError
        return JSONResponse({})

    app = Starlette(routes=[Route("/", route, methods=["POST"])], lifespan=lifespan)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/?raise=1").status_code == 500
        assert queues.connection().size("q") == 0
        assert client.post("/").status_code == 200
    assert queues.connection().size("q") == 1


# -- lifespan -------------------------------------------------------------------------------------


def test_the_lifespan_goes_round_the_applications_own(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    backend = queues.connection().backend
    monkeypatch.setattr(backend, "check", lambda: order.append("checked"))
    monkeypatch.setattr(backend, "close", lambda: order.append("closed"))

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        order.append("own began")
        yield {"answer": 42}
        order.append("own ended")

    app = FastAPI(lifespan=lifespan(own))

    @app.get("/")
    def route(request: Request) -> int:
        return int(request.state.answer)

    with TestClient(app) as client:
        assert client.get("/").json() == 42
    assert order == ["checked", "own began", "own ended", "closed"]


def test_what_was_dropped_unsent_is_sent_before_the_end(queues: QueueManager) -> None:
    app = FastAPI(lifespan=lifespan)

    @app.post("/")
    async def route() -> None:
        dispatch(Call(number=1))

    with TestClient(app) as client:
        client.post("/")
    assert queues.connection().size("q") == 1


def test_an_application_starts_while_its_backend_is_away_and_not_with_wrong_settings(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise BackendUnavailable("no route")

    monkeypatch.setattr(queues.connection().backend, "check", away)
    with caplog.at_level(logging.WARNING, "qframe"), TestClient(FastAPI(lifespan=lifespan)):
        pass
    assert "'memory' does not answer yet: no route" in caplog.text
    wrong = {"default": "nowhere", "root": ROOT}
    manager.use(QueueManager(wrong))
    with (
        pytest.raises(ConfigurationError, match="unknown connection 'nowhere'"),
        TestClient(FastAPI(lifespan=lifespan)),
    ):
        pass


# -- the page -------------------------------------------------------------------------------------


def test_authorize_takes_what_a_route_takes(queues: QueueManager) -> None:
    app, order = FastAPI(), list[str]()

    def users() -> Iterator[dict[str, str]]:
        order.append("opened")
        try:
            yield {"k1": "Ada", "k2": "Bob"}
        finally:
            order.append("closed")

    async def may(
        key: Annotated[str | None, Cookie()] = None,
        known: dict[str, str] = Depends(users),
    ) -> Visitor | str:
        if key is None:
            raise HTTPException(401, "sign in", {"WWW-Authenticate": "Key"})
        name = known.get(key)
        return Visitor(name, "act" if name == "Ada" else "read") if name else "none"

    app.mount("/queues", page(may))
    plain.dispatch(1).send()
    client = TestClient(app)

    def get(path: str, key: str = "") -> Any:
        return client.get(path, headers={"Cookie": f"key={key}"} if key else {})

    refused = get("/queues/")
    assert (refused.status_code, refused.json()) == (401, {"detail": "sign in"})
    assert refused.headers["WWW-Authenticate"] == "Key"
    assert get("/queues/", "other").status_code == 403
    assert get("/queues/queues", "k2").status_code == 200
    assert 'href="/queues/' in get("/queues/", "k2").text
    assert get("/queues/healthz").text == "ok\n"
    form = {"connection": "memory", "queue": "q", "back": "/queues"}
    for key, code in (("k2", 403), ("k1", 303)):
        headers = {"Cookie": f"key={key}", "Sec-Fetch-Site": "same-origin"}
        url = "/queues/actions/pause"
        done = client.post(url, data=form, headers=headers, follow_redirects=False)
        assert done.status_code == code, done.text
    assert order.count("opened") == order.count("closed")
    app.dependency_overrides[users] = lambda: {"other": "Ada"}
    assert get("/queues/", "other").status_code == 200


def test_what_authorize_depends_on_is_closed_before_the_page_begins(queues: QueueManager) -> None:
    order: list[str] = []

    async def board(scope: Any, receive: Any, send: Any) -> None:
        order.append("page")
        await JSONResponse({})(scope, receive, send)

    def session() -> Iterator[str]:
        yield "read"
        order.append("closed")

    made: Any = page(lambda access=Depends(session): access)
    made._board = board
    app = FastAPI()
    app.mount("/queues", made)
    assert TestClient(app).get("/queues/").status_code == 200
    assert order == ["closed", "page"]
    assert queues.connection().name == "memory"


def test_the_event_loop_goes_on_while_jobs_are_queued(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, original = queues.connection().backend, queues.connection().backend.apply
    free = threading.Event()

    def slow(*steps: Any) -> Any:
        assert free.wait(60), "the loop did not go on"
        return original(*steps)

    monkeypatch.setattr(backend, "apply", slow)

    async def both() -> None:
        jobs = JobsOfRequest()
        jobs.add_task(plain, 1)
        sending = asyncio.ensure_future(jobs.send())
        await asyncio.sleep(0.01)
        assert not sending.done()
        free.set()
        assert len(await sending) == 1

    asyncio.run(both())
