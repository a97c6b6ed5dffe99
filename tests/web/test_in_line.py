"""Jobs that stand in the line of their group: in lists, by their id, and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from starlette.testclient import TestClient

from qframe import Queueable, QueueManager, bulk, manager
from qframe.contracts.status import State
from qframe.features.base import End
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site
from tests.web.test_jobs_list import done, paged, pages_of
from tests.web.test_pages import text_of


class Sync(Queueable):
    number: int = 0
    group: ClassVar[str] = "shop:<1>"
    queue: ClassVar[str | None] = "mail"

    def handle(self) -> None: ...


@pytest.fixture
def ids() -> list[str]:
    return []


@pytest.fixture
def lined(fresh: Path, ids: list[str]) -> Iterator[Site]:
    """Give a page over SQLite with 60 jobs in a strict group, of which one has a message."""
    queues = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {"here": {"driver": "database"}},
            "groups": {"mail": {"order": "strict"}},
        }
    )
    manager.use(queues)
    ids += bulk(Sync(number=number) for number in range(60))
    yield Site(queues)
    manager.use(None)


def cancel(client: TestClient, *uuids: str) -> int:
    said = client.post("/api/v1/actions/cancel", json={"uuids": uuids}, headers=FROM_HERE)
    changed: int = said.json()["changed"]
    return changed


def test_the_list_of_ready_jobs_ends_with_them(lined: Site, ids: list[str]) -> None:
    client = lined.client()
    assert paged(client, "/jobs?connection=here&queue=mail")[0] == ids
    text = "".join(pages_of(client, "/jobs?connection=here&queue=mail"))
    assert text.count(" of shop:&lt;1&gt;</span>") == 59
    assert "number 49 of shop:&lt;1&gt;<" in text
    listed = client.get("/api/v1/jobs?queue=mail&limit=2").json()
    assert [(each["place"], each["group"], each["position"]) for each in listed["jobs"]] == [
        ("ready", "", None),
        ("in line", "shop:<1>", 1),
    ]
    found = client.get("/api/v1/jobs?filter=args.number:59&limit=2").json()["jobs"]
    assert [(each["uuid"], each["position"]) for each in found] == [(ids[59], 59)]


def is_there(client: TestClient, path: str) -> bool:
    return client.get(path).status_code == 200


def test_one_of_them_has_its_page(lined: Site, ids: list[str]) -> None:
    client = lined.client()
    pages = "".join(pages_of(client, "/jobs?queue=mail"))
    link = re.search(rf'href="(/jobs/{ids[7]}[^"]*)"', pages)
    assert link
    for path in (link[1].replace("&amp;", "&"), f"/jobs/{ids[7]}"):
        # A page looks for 100 ms, and says that it did not look everywhere.
        wait_for(partial(is_there, client, path), "the job to be found")
        text = text_of(client, path)
        assert re.search(r"Is in line .*in here:mail, number 7 of shop:<1>", text), text
        assert 'action="/confirm/cancel"' in client.get(path).text
    assert client.get(f"/api/v1/jobs/{ids[7]}").json()["waiting"]["position"] == 7


def test_they_are_cancelled_by_their_ids_or_by_a_filter(lined: Site, ids: list[str]) -> None:
    client = lined.client()
    assert cancel(client, ids[3], ids[50]) == 2
    assert cancel(client, ids[3]) == 0
    assert paged(client, "/jobs?connection=here&queue=mail")[0] == [
        uuid for number, uuid in enumerate(ids) if number not in {3, 50}
    ]
    asked = {"place": "ready", "filter": "", "connection": "here", "queue": "mail"}
    assert "<dt>Jobs</dt><dd>58</dd>" in client.get("/confirm/cancel", params=asked).text
    assert done(client, asked)["changed"] == 58
    assert lined.queue.size("mail") == 0


def test_a_queue_of_which_all_wait_behind_a_failed_one_is_listed(
    lined: Site, ids: list[str]
) -> None:
    (job,) = lined.queue.reserve(["mail"])
    lined.queue.backend.apply(job.start_plan())
    job.settle(End(State.FAILED, error=ValueError("no")))
    assert lined.queue.queues() == []
    client = lined.client()
    sizes = {each["queue"]: each["ready"] for each in client.get("/api/v1/queues").json()["queues"]}
    assert sizes["mail"] == 59
    assert paged(client, "/jobs?connection=here&queue=mail")[0] == ids[1:]
    assert done(client, {"place": "ready", "filter": "queue:mail"})["changed"] == 59
