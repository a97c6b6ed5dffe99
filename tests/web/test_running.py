"""Jobs that run: what a filter finds of them on each backend, and what it says it cannot see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from qframe.contracts.backend import Capability
from qframe.features.reserved import ReservedJob
from qframe.features.status import cancel_key
from qframe.payload import tags
from qframe.worker import WorkerOptions, roster
from tests.support.process import wait_for
from tests.web.conftest import Site, bulk_page
from tests.web.test_pages import post, text_of


class Runs:
    """Jobs that are started here, and a worker's entry that names them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.jobs: list[ReservedJob] = []
        name = site.queue.name
        self.entry = roster.introduced(WorkerOptions(concurrency=9), name, ("default",))

    def start(self, uuid: str, user: int, *tagged: str) -> None:
        payload = {"uuid": uuid, "job": "app.Send", "data": {"user": user}, "tags": [*tagged]}
        self.site.queue.push_raw(json.dumps(payload))
        (job,) = self.site.queue.reserve(["default"])
        self.site.queue.backend.apply(job.start_plan())
        self.jobs.append(job)
        running = [
            roster.RunningJob(
                uuid=each.uuid, name=each.name, queue="default", attempt=1, since=time.time(),
                tags=tuple(tags.of_reserved(each)),
            )
            for each in self.jobs
        ]  # fmt: skip
        told = self.entry.model_copy(update={"jobs": tuple(running), "beat_at": time.time()})
        self.site.queue.store.set(told.key, told.model_dump_json(), 60)

    def found(self, text: str) -> list[str]:
        page = self.site.client().get("/jobs", params={"place": "running", "filter": text}).text
        return [each.uuid for each in self.jobs if f'value="{each.uuid}"' in page]


@pytest.fixture
def runs(site: Site) -> Iterator[Runs]:
    made = Runs(site)
    made.start("u-1", 7, "tenant:7", "slow")
    made.start("u-2", 8, "tenant:8")
    yield made
    for each in made.jobs:
        each.delete()


def test_they_are_found_by_tag_on_each_backend(runs: Runs) -> None:
    assert runs.found("") == ["u-1", "u-2"]
    assert runs.found("tag:tenant:7") == ["u-1"]
    assert runs.found("!tag:tenant:7") == ["u-2"]
    assert runs.found("tag:other") == []
    said = text_of(runs.site.client(), "/jobs?place=running")
    assert "tenant:7, slow" in said


def test_they_are_found_by_their_data_or_it_is_said_that_it_is_not_seen(runs: Runs) -> None:
    client = runs.site.client()
    can = runs.site.able(Capability.SEARCH)
    assert runs.found("args.user:8") == (["u-2"] if can else [])
    assert runs.found("!args.user:8") == (["u-1"] if can else [])
    said = text_of(client, "/jobs?place=running&filter=args.user:8")
    unseen = f"the data of 2 jobs, as {runs.site.queue.name} does not show it"
    assert (unseen in said) is not can
    found = client.get("/api/v1/jobs?place=running&filter=args.user:8").json()
    assert [each["uuid"] for each in found["jobs"]] == (["u-2"] if can else [])
    assert bool(found["note"]) is not can
    assert "there is no filter error: of jobs that run" in text_of(
        client, "/jobs?place=running&filter=error:x"
    )


def test_all_that_are_chosen_are_told_to_end(runs: Runs) -> None:
    client, store = runs.site.client(), runs.site.queue.store
    at = {"place": "running", "filter": "tag:tenant:7"}
    asked = client.get("/confirm/cancel", params=at).text
    assert "<dd>1</dd>" in asked
    bulk = bulk_page(post(client, "cancel", **at))
    wait_for(lambda: "1 of the 1 looked at" in text_of(client, bulk), "the end of it")
    assert store.get(cancel_key("u-1"), cancel_key("u-2")) == ["1", None]
    assert "cancelled+1+of+1" in post(client, "cancel", uuids="u-2").headers["location"]
    assert store.get(cancel_key("u-2")) == ["1"]


def test_where_none_can_be_cancelled_there_is_no_button_for_it(site: Site) -> None:
    site.queue.push_raw('{"uuid": "u", "job": "app.A"}')
    client = site.client()
    assert ("Cancel" in text_of(client, "/jobs?queue=default")) is site.able(Capability.SEARCH)
    at = {"connection": site.queue.name, "queue": "default", "place": "ready", "filter": ""}
    code = post(client, "cancel", **at).status_code
    assert code == (303 if site.able(Capability.SEARCH) else 422)


def test_jobs_of_a_worker_that_has_died_do_not_run(runs: Runs) -> None:
    store, key = runs.site.queue.store, runs.entry.key
    (text,) = store.get(key)
    assert text is not None
    store.set(key, json.dumps(json.loads(text) | {"born": "1"}), 60)
    assert runs.found("") == []
