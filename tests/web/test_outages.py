"""A backend that is away, or hangs: the rest is shown and acted on as before, and nobody waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from qframe import Queueable, batch, manager
from qframe.features.status import cancel_key
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer
from tests.web.conftest import Site, bulk_page
from tests.web.test_pages import PLAIN, post, push, text_of
from tests.web.test_running import Runs

GONE = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}


class Count(Queueable):
    def handle(self) -> None: ...


def beside(site: Site, name: str = "database") -> Site:
    """Give the same page, to put something into another connection."""
    other = Site(site.queues)
    other.queue = site.queues.connection(name)
    return other


def test_what_is_first_and_away_keeps_nobody_from_acting(open_site: Callable[..., Site]) -> None:
    site = open_site(away=GONE, database={"driver": "database"})
    there = beside(site)
    for uuid in ("a", "b", "c"):
        there.keep(uuid)
    waiting = push(there, "Here")
    client = site.client()
    said = text_of(client, "/")
    assert said.count("does not answer") == 4, said  # with the address; in the headline and below
    assert "away does not answer" in said
    for page in ("/failed", "/failed?by=time", "/failed?filter=error:bad", "/queues"):
        assert "away does not answer" in text_of(client, page), page
    assert "3 failed jobs." in text_of(client, "/failed")
    assert "app.Here" in text_of(client, f"/jobs/{waiting}")
    assert "ValueError: bad" in text_of(client, "/failed/a")
    assert client.get("/api/v1/failed/a").json()["error"] == "ValueError: bad"
    said = text_of(client, "/jobs/nobody", 404)
    assert "away did not answer, and it may be there" in said
    assert "queued+1+of+1" in post(client, "retry", uuids="a").headers["location"]
    assert "cancelled+1+of+1" in post(client, "cancel", uuids=waiting).headers["location"]
    assert post(client, "cancel", uuids="elsewhere").status_code == 503
    later = push(there, "Later", delay=600)
    assert "made+1+of+1" in post(client, "run-now", uuids=later).headers["location"]
    manager.use(site.queues)
    begun = batch([Count(), Count()]).on_connection("database").dispatch()
    assert text_of(client, f"/batches/{begun.id}")
    assert client.get(f"/api/v1/batches/{begun.id}").json()["total"] == 2
    assert post(client, "cancel-batch", id=begun.id).status_code == 303
    (cause,) = client.get("/api/v1/causes").json()["causes"]
    assert post(client, "silence", cause=cause["cause"]).status_code == 303
    at = bulk_page(post(client, "forget", filter="error:bad"))
    wait_for(lambda: "Done" in text_of(client, at), "the end of it")
    assert "What could not be done away does not answer" in text_of(client, at)
    assert there.failed() == []


def test_a_job_that_runs_is_cancelled_where_its_worker_says_it_is(
    open_site: Callable[..., Site], backend: dict[str, Any]
) -> None:
    more = {} if backend["driver"] == "database" else {"database": {"driver": "database"}}
    site = open_site(**{backend["driver"]: backend}, **more, away=GONE)
    runs = Runs(site)
    runs.start("u-1", 7)
    try:
        told = post(site.client(), "cancel", uuids="u-1")
        assert "cancelled+1+of+1" in told.headers["location"]
        assert site.queue.store.get(cancel_key("u-1")) == ["1"]
    finally:
        runs.jobs[0].delete()


@pytest.mark.slow
def test_one_that_hangs_is_waited_for_once(
    open_site: Callable[..., Site], redis_running: RedisServer
) -> None:
    with Proxy("127.0.0.1", redis_running.port) as line:
        url = redis_running.url_at(line.port)
        site = open_site(database={"driver": "database"}, far={"driver": "redis", "url": url})
        site.keep("a")
        client = site.client()
        assert "far does not answer" not in text_of(client, "/")
        line.switch(Mode.BLACKHOLE)
        wait_for(lambda: "far does not answer" in text_of(client, "/"), "it to be noticed", 40)
        began = time.monotonic()
        for path in PLAIN:
            text_of(client, path)
        assert "ValueError: bad" in text_of(client, "/failed/a")
        assert "queued+1+of+1" in post(client, "retry", uuids="a").headers["location"]
        assert client.get("/api/v1/jobs?connection=far").status_code == 503
        assert time.monotonic() - began < 30, "each wait for an answer takes five seconds"
        line.switch(Mode.PASS)

        def is_back() -> Any:
            return "far does not answer" not in text_of(client, "/queues")

        wait_for(is_back, "its answers")
