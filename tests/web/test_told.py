"""Told: what comes of an action is a line on the page it came from, with undo if there is one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from starlette.testclient import TestClient

from qframe.worker import WorkerOptions, roster
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site
from tests.web.test_pages import post, push, text_of

QUEUE = {"connection": "database", "queue": "mail"}


def undone(client: TestClient, page: str) -> Any:
    """Send the form that undoes what a page tells of."""
    found = re.search(
        r'<form class="act" [^>]*action="/actions/([\w-]+)">(.*?)Undo', page, re.DOTALL
    )
    assert found, page
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', found[2]))
    return post(client, found[1], **{key: unescape(each) for key, each in fields.items()})


def test_a_pause_is_told_and_undone_where_it_was_asked(small: Site) -> None:
    client = small.client()
    push(small, "A", "mail")
    done = post(client, "pause", **QUEUE, back="/queues?filter=queue:mail")
    page = client.get(done.headers["location"]).text
    assert urlsplit(done.headers["location"]).path == "/queues"
    assert "Paused mail of database." in page
    assert 'value="queue:mail"' in page
    again = undone(client, page)
    assert "resumed mail" in parse_qs(urlsplit(again.headers["location"]).query)["said"][0]
    assert again.headers["location"].startswith("/queues?filter=queue%3Amail&said=")
    assert not client.get("/api/v1/queues?filter=queue:mail").json()["queues"][0]["paused"]


def test_what_was_removed_elsewhere_is_brought_back_from_the_page(small: Site) -> None:
    client = small.client()
    push(small, "A", "mail")
    post(client, "clear", **QUEUE, back="/jobs")
    page = client.get("/queues").text
    table = page[page.index("What can be taken back") :]
    assert "Clear <code>database:mail</code>" in table
    asked = re.search(r'action="(/confirm/undo)">(.*?)Undo', table, re.DOTALL)
    assert asked, table
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked[2]))
    assert "Bring back what this act has removed?" in client.get(asked[1], params=fields).text
    post(client, "undo", **fields)
    assert small.queue.size("mail") == 1
    assert "What can be taken back" not in client.get("/queues").text


@pytest.mark.parametrize(
    ("typed", "words"),
    [("2h", "Holds class:a.B of database"), ("soon", "takes a time like 90s, 5m, 2h")],
)
def test_a_hold_is_given_a_time_in_words(small: Site, typed: str, words: str) -> None:
    client = small.client()
    at = {"connection": "database", "filter": "class:a.B", "seconds": typed}
    done = post(client, "hold", **at, back="/queues")
    page = done.text
    if done.status_code == 303:
        page = client.get(done.headers["location"].partition("#")[0]).text
        (kept,) = client.get("/api/v1/holds").json()["holds"]
        assert kept["until"] > kept["since"]
    assert words in unescape(page)


def test_an_added_schedule_is_undone_after_a_question(small: Site) -> None:
    client = small.client()
    typed = {"connection": "database", "id": "nightly", "job": "app.Send", "when": "daily_at 3:30"}
    done = post(client, "add-schedule", **typed, foreign="yes", back="/schedules#main")
    to = urlsplit(done.headers["location"])
    assert to.fragment == "main", "the page would open at the form, below what is told"
    page = client.get(f"{to.path}?{to.query}").text
    asked = re.search(r'action="(/confirm/remove-schedule)">(.*?)Undo', page, re.DOTALL)
    assert asked, page
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked[2]))
    question = client.get(asked[1], params=fields).text
    assert "Remove this schedule?" in question
    assert "<dt>Schedule</dt><dd>nightly</dd>" in question


def test_a_scaled_worker_goes_back_to_what_it_had(small: Site) -> None:
    client = small.client()
    entry = roster.introduced(WorkerOptions(concurrency=2), "database", ("default",))
    entry = entry.model_copy(update={"beat_at": time.time()})
    small.queue.store.set(entry.key, entry.model_dump_json(), 60)
    done = post(client, "scale", id=entry.id, number=5, back="/workers")
    page = client.get(done.headers["location"]).text
    assert "Undo: back to 2</button>" in page
    again = undone(client, page.replace("Undo: back to 2", "Undo"))
    assert "run+2+jobs+at+once" in again.headers["location"]
    same = post(client, "scale", id=entry.id, number=2, back="/workers")
    assert "undo=" not in same.headers["location"]


@pytest.mark.parametrize("undo", ["clear", "forget", "stop-worker", "nothing", "pause<b>"])
def test_an_address_offers_no_other_action_as_undo(small: Site, undo: str) -> None:
    asked = {"said": "x", "undo": f"{undo}?{urlencode(QUEUE)}"}
    page = small.client().get("/queues", params=asked).text
    assert "Undo" not in page
    assert "<b>" not in page.partition('id="live"')[2].partition("<table")[0]


def test_who_may_only_read_undoes_nothing(small: Site) -> None:
    asked = {"said": "x", "undo": f"resume?{urlencode(QUEUE)}"}
    assert "Undo" in small.client().get("/queues", params=asked).text
    assert "Undo" not in small.client(lambda _: "read").get("/queues", params=asked).text


def test_what_goes_on_in_the_background_is_told_there_too(small: Site) -> None:
    for number in range(3):
        small.keep(f"f-{number}")
    client = small.client()
    done = post(client, "retry", filter="error:bad", back="/failed?by=time")
    at = done.headers["location"]
    assert at.startswith("/failed?by=time&bulk=")
    wait_for(lambda: "Queued failed jobs again" in client.get(at).text, "its end")
    assert "Queued failed jobs again: 3 of the 3 looked at" in text_of(client, at)


def test_an_impossible_action_is_told_on_its_page(small: Site) -> None:
    done = post(small.client(), "retry", back="/failed?by=time")
    assert done.status_code == 422
    assert "No job is selected" in done.text
    assert "<h1>Failed jobs</h1>" in done.text


def test_a_mistaken_form_keeps_what_was_typed(small: Site) -> None:
    typed = {
        "connection": "database", "id": "nightly <b>", "job": "app.Send", "when": "dayly_at 3:30",
        "data": '{"shop": 7}', "missed": "all", "maintenance": "yes", "back": "/schedules",
    }  # fmt: skip
    done = small.client().post("/actions/add-schedule", data=typed, headers=FROM_HERE)
    assert done.status_code == 422
    assert done.text.count('role="alert"') == 1
    assert 'role="alert"' in done.text.partition('id="form"')[2]
    assert 'value="nightly &lt;b&gt;"' in done.text
    assert 'value="dayly_at 3:30"' in done.text
    assert "{&#34;shop&#34;: 7}" in done.text
    assert "<option selected>all</option>" in done.text
    assert "<option selected>yes</option>" in done.text
    assert small.client().get("/api/v1/schedules").json()["schedules"] == []


def test_a_theme_is_kept_in_a_cookie(small: Site) -> None:
    client = small.client()
    assert "data-theme" not in client.get("/").text
    form = {"theme": "dark", "back": "/queues?filter=a"}
    done = client.post("/theme", data=form, headers=FROM_HERE)
    assert (done.status_code, done.headers["location"]) == (303, "/queues?filter=a")
    assert '<html lang="en" data-theme="dark">' in client.get("/").text
    client.post("/theme", data={"theme": "", "back": "/"}, headers=FROM_HERE)
    assert "data-theme" not in client.get("/").text
    client.cookies.set("qframe_theme", '"><script>')
    assert "data-theme" not in client.get("/").text
    assert client.post("/theme", data=form).status_code == 403, "from another site"
    away = client.post("/theme", data={"back": "//evil.example"}, headers=FROM_HERE)
    assert away.headers["location"] == "/"


def test_the_environment_is_on_every_page(open_site: Callable[..., Site]) -> None:
    site = open_site(database={"driver": "database"})
    site.queues.settings.web.name, site.queues.settings.web.color = "pro<duction", "red"
    for path in ("/", "/jobs"):
        page = site.client().get(path).text
        assert '<p class="environment red">pro&lt;duction</p>' in page
        assert "(pro&lt;duction)</title>" in page


def test_a_hold_is_listed_told_and_undone(small: Site) -> None:
    client = small.client()
    typed = {"connection": "database", "filter": "args.shop:7 <b>", "seconds": "600"}
    done = post(client, "hold", **typed, reason="<i>bank</i>", back="/queues#main")
    to = urlsplit(done.headers["location"])
    page = client.get(f"{to.path}?{to.query}").text
    assert "<code>args.shop:7 &lt;b&gt;</code>" in page
    assert "&lt;i&gt;bank&lt;/i&gt;" in page
    (listed,) = client.get("/api/v1/holds").json()["holds"]
    assert (listed["filter"], listed["why"]) == ("args.shop:7 <b>", "<i>bank</i>")
    again = undone(client, page)
    said = parse_qs(urlsplit(again.headers["location"]).query)["said"][0]
    assert said == f"ended the hold {listed['id']}: 0 jobs came back"
    assert client.get("/api/v1/holds").json()["holds"] == []
    refused = post(client, "hold", **{**typed, "filter": "state:ready"}, back="/queues#main")
    assert refused.status_code == 422
    assert 'value="state:ready"' in refused.text
    assert "There is no filter state: of jobs to hold" in refused.text


def asked(client: TestClient, page: str) -> dict[str, str]:
    """Give the fields of the form by which a page asks for an undo."""
    found = re.search(r'action="/confirm/undo">(.*?)Undo', page, re.DOTALL)
    assert found, page
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', found[1]))


def test_a_cleared_queue_is_brought_back(small: Site) -> None:
    client = small.client()
    push(small, "A", "mail")
    question = client.get("/confirm/clear", params={**QUEUE, "back": "/queues"}).text
    assert "<dt>Undo</dt><dd>within 60 min, up to 10,000 jobs</dd>" in question
    done = post(client, "clear", **QUEUE, back="/queues")
    page = client.get(done.headers["location"]).text
    fields = asked(client, page)
    (act,) = client.get("/api/v1/acts").json()["acts"]
    assert (act["id"], act["of"], act["jobs"]) == (fields["id"], "database:mail", 1)
    question = client.get("/confirm/undo", params=fields).text
    assert f"<dt>Act</dt><dd>clear database:mail, by {act['who']}</dd>" in question
    again = post(client, "undo", **fields)
    said = parse_qs(urlsplit(again.headers["location"]).query)["said"][0]
    assert said == "brought back 1 job"
    assert small.queue.sizes("mail").ready == 1
    assert post(client, "undo", **fields).status_code == 422


@pytest.mark.parametrize("action", ["forget", "cancel"])
def test_what_was_removed_in_the_background_is_brought_back(small: Site, action: str) -> None:
    client = small.client()
    push(small, "A", "mail")
    small.keep("f")
    typed = {"filter": "", "back": "/queues"}
    where = {**QUEUE, "place": "ready"} if action == "cancel" else {}
    done = post(client, action, **typed, **where)
    address = done.headers["location"]

    def page() -> str:
        return client.get(address).text

    wait_for(lambda: "/confirm/undo" in page(), "the offer of an undo")
    post(client, "undo", **asked(client, page()))
    assert (small.queue.sizes("mail").ready, small.failed()) == (1, ["f"])
