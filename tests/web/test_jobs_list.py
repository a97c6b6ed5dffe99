"""Jobs: a filter chooses over queues and connections, for what is listed and what is cancelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qframe.contracts.status import State
from qframe.contracts.step import Step
from qframe.features.status import Tracked
from qframe.operations import waiting
from qframe.web import job_pages
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site, bulk_page

TWO = {"driver": "database", "url": "sqlite:///two.sqlite3"}
AWAY = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}
WITHIN = ["one/mail", "one/sms", "two/mail"]


@pytest.fixture
def two(open_site: Callable[..., Site]) -> Site:
    """Give a page over two connections, with 30 jobs of two classes in three queues."""
    site = open_site(one={"driver": "database"}, two=TWO)
    for number in range(30):
        for within in WITHIN:
            connection, _, queue = within.partition("/")
            job = "app.Even" if number % 2 == 0 else "app.Odd"
            raw = f'{{"uuid": "{within}/{number:02}", "job": "{job}", "data": {{}}}}'
            site.queues.connection(connection).push_raw(raw, queue)
    return site


def uuids(within: str, numbers: range = range(0, 30, 2)) -> list[str]:
    return [f"{within}/{number:02}" for number in numbers]


def shown(page: str) -> list[str]:
    return re.findall(r'name="uuids" value="([^"]+)"', page)


def left(site: Site) -> list[int]:
    return [
        site.queues.connection(within.split("/")[0]).size(within.split("/")[1]) for within in WITHIN
    ]


def tabs_of(page: str) -> list[str]:
    (_, tabs) = re.findall(r'<div class="tabs"[^>]*>(.*?)</div>', page, re.DOTALL)
    return re.findall(r">([^<>]+?) *(?:<span>[^<]*</span>)?</a>", tabs)


def paged(client: TestClient, path: str) -> tuple[list[str], int]:
    """Give what all pages show, and how many there are: more on a busy machine."""
    pages = [*pages_of(client, path)]
    return [uuid for page in pages for uuid in shown(page)], len(pages)


def pages_of(client: TestClient, path: str) -> Iterator[str]:
    """Give a page and those that follow: one ends after 100 ms, however few jobs it has."""
    while path:
        page = client.get(path).text
        yield page
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = unescape(following[1]) if following else ""


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("filter=class:*.Even", WITHIN),
        ("filter=class:*.Even connection:one", ["one/mail", "one/sms"]),
        ("filter=class:*.Even connection:t*", ["two/mail"]),
        ("filter=class:*.Even queue:mail", ["one/mail", "two/mail"]),
        ("filter=class:*.Even queue:mail,sms connection:one", ["one/mail", "one/sms"]),
        ("filter=class:*.Even !queue:mail", ["one/sms"]),
        ("filter=class:*.Even&connection=two", ["two/mail"]),
        ("filter=class:*.Even&connection=one&queue=sms", ["one/sms"]),
        ("filter=class:*.Even connection:two&connection=one&queue=sms", []),
        ("filter=class:*.Even queue:mail&connection=one&queue=sms", ["one/mail"]),
        ("filter=class:*.Even connection:three", []),
    ],
)
def test_a_filter_chooses_over_all_queues_and_connections(
    two: Site, query: str, found: list[str]
) -> None:
    client = two.client()
    wanted = [uuid for within in found for uuid in uuids(within)]
    assert paged(client, f"/jobs?{query}")[0] == wanted
    listed = client.get(f"/api/v1/jobs?{query}").json()
    assert [each["uuid"] for each in listed["jobs"]] == wanted
    assert (listed["after"], listed["looked_at"]) == ("", 30 * len(found))


def test_without_a_filter_it_is_one_queue(two: Site) -> None:
    client = two.client()
    wanted = uuids("two/mail", range(30))
    assert shown(client.get("/jobs?connection=two&queue=mail").text) == wanted
    listed = client.get("/api/v1/jobs?connection=two&queue=mail").json()["jobs"]
    assert [each["uuid"] for each in listed] == wanted
    assert client.get("/api/v1/jobs").json()["jobs"] == []


def test_the_tabs_are_the_queues_that_the_filter_allows(two: Site) -> None:
    client = two.client()
    page = client.get("/jobs?filter=queue:mail").text
    assert tabs_of(page) == ["All queues", "one:mail", "two:mail"]
    assert ">one:mail</td>" in page, "each row says where it is"
    page = client.get("/jobs?filter=queue:mail&connection=two&queue=mail").text
    assert tabs_of(page) == ["All queues", "one:mail", "two:mail"]
    assert re.search(r'aria-current="true">two:mail <span>30<', page)
    assert ">two:mail</td>" not in page


def test_pages_go_on_from_queue_to_queue(two: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client = two.client()
    every = [uuid for within in WITHIN for uuid in uuids(within, range(30))]
    seen, after = list[str](), ""
    asked = {"filter": "class:app.*", "limit": "7"}
    while found := client.get("/api/v1/jobs", params={**asked, "after": after}).json():
        seen += [each["uuid"] for each in found["jobs"]]
        after = found["after"]
        if not after:
            break
    assert seen == every
    monkeypatch.setattr(job_pages, "LOOK", 0.0)
    monkeypatch.setattr(job_pages, "_LEAST", 0.0)
    # A queue without jobs is one more to look at: `default` of each connection is always there.
    seen, count = paged(client, "/jobs?filter=class:app.*")
    assert seen == every
    assert count >= 5


def test_a_page_goes_on_where_its_queue_is_gone(two: Site) -> None:
    client = two.client()
    first = client.get("/api/v1/jobs?connection=one&queue=sms&limit=20").json()
    asked = {"filter": "class:app.Even queue:mail,sms", "limit": "1", "after": first["after"]}
    two.queue.clear("sms")
    client = two.client()  # which has not seen the queue
    listed = client.get("/api/v1/jobs", params=asked).json()["jobs"]
    assert [each["uuid"] for each in listed] == uuids("two/mail")
    for wrong in ("three/sms/", "one", "one/sms"):
        assert client.get("/api/v1/jobs", params={**asked, "after": wrong}).status_code == 422


def test_one_page_looks_at_so_many_queues(two: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_MOST_QUEUES", 2)
    seen, count = paged(two.client(), "/jobs?filter=class:app.Odd")
    assert len(seen) == 45
    assert count >= 3


def done(client: TestClient, wanted: dict[str, str]) -> dict[str, Any]:
    """Cancel all that are chosen, and give how that ended."""
    said = client.post("/api/v1/actions/cancel", json=wanted, headers=FROM_HERE)
    assert said.status_code == 200, said.text
    at = f"/api/v1/bulks/{said.json()['bulk']}"
    wait_for(lambda: client.get(at).json()["state"] != "running", "its end")
    found: dict[str, Any] = client.get(at).json()
    return found


@pytest.mark.parametrize(
    ("text", "count", "remaining"),
    [
        ("class:app.Even", 45, [15, 15, 15]),
        ("class:app.Even queue:mail,none", 30, [15, 30, 15]),
        ("connection:one class:app.Odd", 30, [15, 15, 30]),
    ],
)
def test_all_that_are_chosen_are_cancelled_wherever_they_are(
    two: Site, text: str, count: int, remaining: list[int]
) -> None:
    client = two.client()
    page = client.get("/jobs", params={"filter": text}).text
    form = re.search(r'action="/confirm/cancel">((?:(?!</form>).)*)Cancel all', page, re.DOTALL)
    assert form
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form[1].rpartition("<form")[2]))
    asked = client.get("/confirm/cancel", params=fields).text
    assert f"<dt>Jobs</dt><dd>{count}</dd>" in asked
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.partition('class="confirm')[2]))
    said = client.post("/actions/cancel", data=fields, headers=FROM_HERE)
    bulk = bulk_page(said)
    wait_for(lambda: "Done after" in client.get(bulk).text, "the end of it")
    assert left(two) == remaining


def test_a_named_queue_alone_is_cancelled_in(two: Site) -> None:
    client = two.client()
    wanted = {"place": "ready", "filter": "class:app.Even", "connection": "one", "queue": "mail"}
    assert done(client, wanted)["changed"] == 15
    assert left(two) == [15, 30, 30]
    ruled_out = {**wanted, "filter": "class:app.Odd connection:two"}
    assert done(client, ruled_out)["changed"] == 0
    everything = {"place": "ready", "filter": "", "connection": "one"}
    assert done(client, everything)["changed"] == 0, "that is the default queue"
    assert left(two) == [15, 30, 30]


def test_a_connection_that_is_away_is_named_and_the_others_are_looked_at(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(away=AWAY, one={"driver": "database"})
    site.queues.connection("one").push_raw('{"uuid": "a", "job": "app.A"}', "mail")
    client = site.client()
    for text in ("class:app.A", "queue:mail"):
        page = client.get("/jobs", params={"filter": text}).text
        assert "away does not answer" in page
        assert paged(client, f"/jobs?filter={text}")[0] == ["a"]
        listed = client.get("/api/v1/jobs", params={"filter": text}).json()
        assert "away does not answer" in listed["note"]
    assert client.get("/api/v1/jobs?filter=connection:away").status_code == 503
    state = done(client, {"place": "ready", "filter": "queue:mail"})
    assert (state["state"], state["changed"]) == ("done", 1)
    assert "away" in state["troubles"][0]
    assert site.queues.connection("one").size("mail") == 0


def test_finished_jobs_are_of_the_connection_that_is_chosen(
    open_site: Callable[..., Site], fresh: Path
) -> None:
    site = open_site(one={"driver": "database"}, two=TWO)
    for name in ("one", "two"):
        tracked = Tracked.of({"uuid": f"of-{name}", "track": 60, "job": "app.A"}, name, "mail")
        assert tracked is not None
        backend = site.queues.connection(name).backend
        backend.apply(Step(None, tracked.write(State.COMPLETE, 1, 60)))
    client = site.client()
    for query, name in [
        ("", "one"),
        ("connection=two", "two"),
        ("filter=connection:two", "two"),
        ("filter=connection:two&connection=one", "two"),
        ("filter=connection:t*,nowhere", "two"),
    ]:
        page = client.get(f"/jobs?place=finished&{query}").text
        assert [f"of-{each}" in page for each in ("one", "two")] == [name == "one", name == "two"]
        assert f"</code>) of {name} that have ended" in page
        (job,) = client.get(f"/api/v1/finished?{query}").json()["jobs"]
        assert job["uuid"] == f"of-{name}"
    page = client.get("/jobs?place=finished").text
    assert tabs_of(page) == ["one", "two"]
    assert re.search(r'aria-current="true">one<', page)
    link = re.search(r'href="([^"]+)">two<', page)
    assert link
    assert "of-two" in client.get(unescape(link[1])).text
    assert client.get("/api/v1/finished?filter=connection:none").json()["jobs"] == []
    assert client.get("/jobs?place=finished&filter=connection:none").status_code == 200
