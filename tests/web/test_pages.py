"""Pages: what each shows of each kind of connection, and what is done on them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from html import unescape
from typing import Any, Literal

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from qframe import events
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.contracts.step import Step
from qframe.features.status import Tracked
from qframe.metrics.deploys import Deploys
from qframe.operations.activity import Activity
from qframe.operations.board import Board
from qframe.web import app, rendering, values
from qframe.web.markup import dotted
from qframe.web.pages import PAGES
from qframe.worker import WorkerOptions, roster
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site, bulk_page

PLAIN = [path for path in PAGES if "{" not in path]


def text_of(client: TestClient, path: str, code: int = 200) -> str:
    """Give what a page says, without its tags."""
    said = client.get(path)
    assert "Still loading" not in said.text
    assert said.status_code == code, said.text
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", said.text)))


def push(site: Site, job: str, queue: str = "default", delay: float = 0, **data: object) -> str:
    uuid = f"u-{job}"
    payload = {"uuid": uuid, "job": f"app.{job}", "data": data, "createdAt": int(time.time())}
    site.queue.push_raw(json.dumps(payload), queue, delay)
    return uuid


def post(client: TestClient, action: str, **form: object) -> Any:
    return client.post(f"/actions/{action}", data=form, headers=FROM_HERE)


@pytest.mark.parametrize("path", PLAIN)
def test_an_empty_page_says_what_to_do(site: Site, path: str) -> None:
    said = site.client().get(path)
    assert said.status_code == 200
    assert said.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>" in said.text
    words = {"/workers": "qframe work", "/batches": "batch([", "/failed": "No job has failed"}
    assert words.get(path, "") in said.text


def test_queues_are_counted_paused_and_cleared(site: Site) -> None:
    client = site.client()
    for number in range(3):
        push(site, f"A{number}", "mail")
    push(site, "Later", "mail", delay=600)
    name = f"{site.queue.name}:mail"
    said = text_of(client, "/queues")
    assert re.search(rf"{name} 3 1 0 0", said), said
    assert re.search(rf"No worker processes {name}, but 3 jobs wait", text_of(client, "/"))
    at = {"connection": site.queue.name, "queue": "mail"}
    assert post(client, "pause", **at).status_code == 303
    assert f"{name} paused" in text_of(client, "/queues")
    assert f"{name} is paused, and 3 jobs wait" in text_of(client, "/")
    assert post(client, "resume", **at).status_code == 303
    assert "paused" not in text_of(client, "/queues")
    asked = client.get("/confirm/clear", params=at)
    assert "4" in re.findall(r"<dd>(.*?)</dd>", asked.text)
    assert site.queue.size("mail") == 4
    done = post(client, "clear", **at, back="/queues?x=1")
    assert done.headers["location"].startswith("/queues?x=1&said=deleted+4+jobs")
    assert site.queue.size("mail") == 0


def test_waiting_jobs_are_listed_page_by_page_and_cancelled(site: Site) -> None:
    if not site.able(Capability.SEARCH):
        pytest.skip("it cannot look for jobs")
    client = site.client()
    for number in range(120):
        push(site, f"N{number}", user=number % 10)
    seen: list[str] = []
    path = "/jobs?queue=default"
    while path:
        page = client.get(path).text
        seen += re.findall(r'name="uuids" value="([^"]+)"', page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = unescape(following[1]) if following else ""
    assert seen == [f"u-N{number}" for number in range(120)]
    chosen = client.get("/jobs", params={"queue": "default", "filter": "args.user:3"}).text
    assert len(re.findall(r'name="uuids"', chosen)) == 12
    assert post(client, "cancel", uuids=["u-N5", "u-N7"]).status_code == 303
    assert site.queue.size() == 118
    at = {"connection": site.queue.name, "queue": "default", "place": "ready"}
    asked = client.get("/confirm/cancel", params={**at, "filter": "args.user:3"})
    assert "12" in re.findall(r"<dd>(.*?)</dd>", asked.text)
    done = post(client, "cancel", **at, filter="args.user:3")
    bulk = bulk_page(done)
    wait_for(lambda: "Done" in text_of(client, bulk), "the end of it")
    assert "12 of the 12 looked at" in text_of(client, bulk)
    assert site.queue.size() == 106


def test_one_job_is_shown_wherever_it_is(site: Site) -> None:
    client = site.client()
    if site.able(Capability.SEARCH):
        uuid = push(site, "Waits", name="x")
        said = text_of(client, f"/jobs/{uuid}")
        assert "app.Waits" in said
        assert '"name": "x"' in said
    site.keep("failed-1", "KeyError: 'a'")
    said = text_of(client, "/failed/failed-1")
    assert "KeyError: 'a'" in said
    assert '"user": 7' in said
    assert "No job nobody" in text_of(client, "/jobs/nobody", 404)


def test_failed_jobs_by_cause_and_one_by_one(site: Site) -> None:
    client = site.client()
    for number in range(60):
        site.keep(f"v-{number:03}", f"ValueError: bad {number}", failed_at=time.time() - number)
    site.keep("k", "KeyError: 'a'", failed_at=time.time() - 90_000)
    said = text_of(client, "/failed")
    assert "61 failed jobs." in said
    assert "60 app.Send ValueError: bad *" in said
    assert "New since yesterday, 60 times" in text_of(client, "/")
    assert "KeyError" not in text_of(client, "/")
    known = client.get("/api/v1/causes").json()["causes"][0]
    cause = known["cause"]
    assert f'href="/failed/{known["example"]}"' in client.get("/failed").text
    page = client.get("/failed", params={"filter": f"cause:{cause}"}).text
    assert re.findall(r'name="uuids" value="([^"]+)"', page) == [f"v-{n:03}" for n in range(50)]
    following = re.search(r'rel="next" href="([^"]+)"', page)
    assert following
    rest = client.get(unescape(following[1])).text
    assert re.findall(r'name="uuids" value="([^"]+)"', rest) == [f"v-{n:03}" for n in range(50, 60)]
    asked = client.get("/confirm/forget", params={"cause": cause})
    assert "60" in re.findall(r"<dd>(.*?)</dd>", asked.text)
    heard: list[events.OperatorActed] = []
    events.listen(events.OperatorActed)(heard.append)
    bulk = bulk_page(post(client, "forget", cause=cause))
    wait_for(lambda: "Done" in text_of(client, bulk), "the end of it")
    assert site.failed() == ["k"]
    assert "1 failed job." in text_of(client, "/failed")
    wait_for(lambda: heard, "what was said of it")
    assert [(each.action, each.count) for each in heard] == [("forget", 60)]
    assert f"cause {cause}" in heard[0].what


def test_a_silenced_cause_is_told_no_more(small: Site) -> None:
    client = small.client()
    small.keep("a")
    assert "New since yesterday" in text_of(client, "/")
    (cause,) = (each["cause"] for each in client.get("/api/v1/causes").json()["causes"])
    post(client, "silence", cause=cause)
    assert "New since yesterday" not in text_of(client, "/")
    assert "silenced" in text_of(client, "/failed")
    post(client, "unsilence", cause=cause)
    assert "New since yesterday" in text_of(client, "/")


def test_failed_jobs_are_queued_again(site: Site) -> None:
    client = site.client()
    for name in ("a", "b", "c"):
        site.keep(name)
    done = post(client, "retry", uuids=["a", "b", "gone"])
    assert "2+of+3" in done.headers["location"]
    assert "gone+is+no+failed+job" in done.headers["location"]
    assert site.failed() == ["c"]
    assert site.queue.size() == 2


def test_what_fails_or_goes_elsewhere_is_seen(small: Site) -> None:
    client = small.client()

    def counted() -> int:
        small.queues.close()
        return int(client.get("/api/v1/causes").json()["counted"])

    small.keep("a")
    assert counted() == 1
    for number in range(30):
        small.keep(f"b-{number}", "KeyError: 'b'")
    wait_for(lambda: counted() == 31, "what failed since")
    small.queue.failed.forget(next(small.queue.failed.all()))
    wait_for(lambda: counted() == 30, "that one is gone")
    small.queue.failed.flush()
    wait_for(lambda: counted() == 0, "that all are gone")


def test_two_places_of_failed_jobs_are_one_list(open_site: Callable[..., Site], fresh: Any) -> None:
    two = {"driver": "database", "url": "sqlite:///two.sqlite3"}
    site = open_site(one={"driver": "database"}, two=two)
    site.keep("a")
    other = Site(site.queues)
    other.queue = site.queues.connection("two")
    other.keep("b")
    client = site.client()
    assert "2 app.Send ValueError: bad" in text_of(client, "/failed")
    page = client.get("/failed?by=time").text
    assert sorted(re.findall(r'name="uuids" value="([^"]+)"', page)) == ["a", "b"]


def test_a_connection_that_is_away_keeps_no_other_from_being_shown(
    open_site: Callable[..., Site],
) -> None:
    away = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}
    site = open_site(database={"driver": "database"}, away=away)
    push(site, "Here")
    client = site.client()
    for path in PLAIN:
        text_of(client, path)
    said = text_of(client, "/")
    assert "away does not answer" in said
    assert "No worker processes database:default" in said
    assert post(client, "pause", connection="away", queue="x").status_code == 503
    assert client.get("/api/v1/jobs?connection=away").status_code == 503


@pytest.mark.parametrize("action", ["retry", "forget", "cancel", "run-now"])
def test_where_nothing_is_selected_nothing_is_asked_or_done(small: Site, action: str) -> None:
    client = small.client()
    small.keep("a")
    push(small, "Waits")
    said = text_of(client, f"/confirm/{action}?back=/failed", 422)
    assert "No job is selected" in said
    assert post(client, action).status_code == 422
    assert client.post(f"/api/v1/actions/{action}", json={}, headers=FROM_HERE).status_code == 422
    assert (small.failed(), small.queue.size()) == (["a"], 1)


def test_a_wrong_filter_is_one_line_on_the_page(small: Site) -> None:
    client = small.client()
    small.keep("a")
    said = text_of(client, "/failed?filter=colour:red")
    assert "there is no filter colour:" in said
    assert "there is no filter colour:" in text_of(client, "/jobs?filter=colour:red")


@pytest.mark.parametrize("path", PLAIN)
def test_a_page_renews_itself(small: Site, path: str) -> None:
    small.keep("a")
    page = small.client().get(path)
    address = re.search(r'data-live="([^"]+)"', page.text)
    assert address, page.text
    still = small.client(live=False)
    assert "data-live" not in still.get(path).text
    assert still.get(unescape(address[1])).status_code == 404


def all_links_stay_under(prefix: str, client: TestClient, sent: str) -> None:
    """Look at each page, asked for at `sent` and its path."""
    for path in PLAIN:
        page = client.get(f"{sent}{path}")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', page.text)
        assert links
        assert [each for each in links if not each.startswith(f"{prefix}/")] == []


def test_mounted_under_a_prefix_all_links_stay_under_it(small: Site) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    small.keep("a")
    outer = Starlette(routes=[Mount("/jobs-view", app(small.queues, lambda _: "act"))])
    client = TestClient(outer, base_url="http://localhost", follow_redirects=False)
    all_links_stay_under("/jobs-view", client, "/jobs-view")
    done = client.post("/jobs-view/actions/retry", data={"uuids": "a"}, headers=FROM_HERE)
    assert done.headers["location"].startswith("/jobs-view/")
    assert small.failed() == []


@pytest.mark.parametrize("sent", ["", "/ops"], ids=["prefix taken off", "prefix kept"])
def test_behind_a_proxy_links_begin_with_its_root_path(small: Site, sent: str) -> None:
    small.keep("a")
    made = app(small.queues, lambda _: "act")
    client = TestClient(made, base_url="http://localhost", root_path="/ops", follow_redirects=False)
    all_links_stay_under("/ops", client, sent)
    done = client.post(f"{sent}/actions/retry", data={"uuids": "a"}, headers=FROM_HERE)
    assert done.headers["location"].startswith("/ops/")
    assert small.failed() == []


def test_what_is_done_is_a_line_of_the_log(small: Site, caplog: pytest.LogCaptureFixture) -> None:
    small.keep("a")
    with caplog.at_level("INFO", "qframe"):
        post(small.client(), "retry", uuids=["a"])
    lines = [each.getMessage() for each in caplog.records if each.name == "qframe"]
    assert [line for line in lines if "retry" in line and line.endswith("(1)")], lines


def test_it_is_a_wsgi_application_as_well(small: Site) -> None:
    from wsgiref.util import setup_testing_defaults

    from qframe.web import wsgi

    small.keep("a")
    seen: list[Any] = []

    def authorize(request: Request) -> Literal["read"]:
        seen.append(request.scope)
        return "read"

    application = wsgi(small.queues, authorize)
    environ: dict[str, Any] = {"PATH_INFO": "/failed", "HTTP_HOST": "localhost"}
    setup_testing_defaults(environ)
    said: list[str] = []
    body = b"".join(application(environ, lambda status, _headers, *_: said.append(status)))
    assert said[0].startswith("200")
    assert b"1 failed job." in body
    assert seen[0]["wsgi_environ"]["PATH_INFO"] == "/failed"


LISTS = ["queues", "workers", "batches", "classes", "schedules", "failed"]
PLACES = ["ready", "delayed", "running", "buried", "finished"]


@pytest.mark.parametrize(
    "page", [*LISTS, pytest.param("jobs", id="jobs"), *(f"jobs?place={place}" for place in PLACES)]
)
def test_each_list_takes_a_filter_and_says_what_is_wrong_with_it(small: Site, page: str) -> None:
    browser = small.client()
    page += "&" if "?" in page else "?"
    assert browser.get(f"/{page}filter=text:zzz").status_code == 200
    said = browser.get(f"/{page}filter=sate:x%3Cb%3E")
    assert said.status_code == 200
    assert "there is no filter sate:" in said.text
    assert "x<b>" not in said.text


def test_a_filter_chooses_queues(small: Site) -> None:
    for name in ("mail", "sms"):
        small.queue.push_raw("{}", name)
    page = small.client().get("/queues?filter=queue:ma*").text
    assert "database:mail" in page
    assert "database:sms" not in page
    found = small.client().get("/api/v1/queues?filter=queue:ma*").json()["queues"]
    assert [each["queue"] for each in found] == ["mail"]
    assert small.client().get("/api/v1/workers?filter=sate:x").status_code == 422


def test_supervisors_are_shown_with_why(site: Site) -> None:
    name = site.queue.name
    entry = roster.introduced_pool(WorkerOptions(name="mails"), name, 5, 2, 10)
    told = {"beat_at": time.time(), "shares": {"mail": 4}, "why": {"mail": "40 <b>ready"}}
    entry = entry.model_copy(update=told)
    site.queue.store.set(entry.key, entry.model_dump_json(), 60)
    client = site.client()
    assert re.search(rf"mails \S+:\d+ {name}:mail 4 10 40 <b>ready", text_of(client, "/workers"))
    (found,) = client.get("/api/v1/workers").json()["supervisors"]
    assert (found["name"], found["processes"], found["least"], found["most"]) == ("mails", 5, 2, 10)
    assert found["queues"] == [{"queue": "mail", "processes": 4, "why": "40 <b>ready"}]
    dead = entry.model_copy(update={"born": "1"})
    site.queue.store.set(entry.key, dead.model_dump_json(), 60)
    assert site.client().get("/api/v1/workers").json()["supervisors"][0]["gone"]


def test_what_goes_on_in_the_background_tells_how_far_it_is_and_can_be_stopped(small: Site) -> None:
    for number in range(20):
        small.keep(f"f-{number}")
    client, go_on = small.client(), threading.Semaphore(3)
    events.listen(events.JobRetryRequested)(lambda _: go_on.acquire(timeout=20))
    try:
        said = client.post("/api/v1/actions/retry", json={"filter": ""}, headers=FROM_HERE).json()
        at = f"/api/v1/bulks/{said['bulk']}"
        wait_for(lambda: client.get(at).json()["changed"] == 3, "three of them")
        state = client.get(at).json()
        assert (state["state"], state["looked_at"], state["action"]) == ("running", 4, "retry")
        assert "Stop" in text_of(client, f"/bulk/{said['bulk']}")
        reader = small.client(lambda _: "read")
        assert post(reader, "stop", id=said["bulk"]).status_code == 403
        assert post(client, "stop", id=said["bulk"]).status_code == 303
    finally:
        go_on.release(20)
    wait_for(lambda: client.get(at).json()["state"] == "cancelled", "its end")
    assert client.get(at).json()["changed"] == 4
    assert len(small.failed()) == 16
    assert small.queue.size() == 4


def test_deploys_are_shown_with_what_was_measured(small: Site) -> None:
    Deploys(small.queue.store).mark("2.4.1", "<b>prices</b>")
    browser = small.client()
    for page in ("/", "/classes"):
        shown = browser.get(page).text
        assert "2.4.1" in shown
        assert "<b>prices" not in shown
    assert 'class="mark"' in browser.get("/").text
    (found,) = browser.get("/api/v1/deploys").json()["deploys"]
    assert (found["version"], found["text"]) == ("2.4.1", "<b>prices</b>")
    assert browser.get("/api/v1/overview").json()["deploys"] == [
        {**found, "seconds_ago": pytest.approx(found["seconds_ago"], abs=30)}
    ]


def test_tracked_jobs_that_have_ended_are_listed_by_pages(small: Site) -> None:
    step = [
        Tracked.of(
            {"uuid": f"u-{n}", "track": 60, "job": "app.A", "tags": [f"t:{n}"]}, name, "mail"
        )
        for n in range(5)
        for name in ["database"]
    ]
    for number, each in enumerate(step):
        assert each is not None
        state = State.RUNNING if number == 3 else State.COMPLETE
        small.queue.backend.apply(Step(None, each.write(state, 1, 60)))
    browser = small.client()
    page = browser.get("/jobs?place=finished").text
    assert [f"u-{n}" in page for n in range(5)] == [True, True, True, False, True]
    assert "t:4" in page
    page = browser.get("/jobs?place=finished&filter=tag:t:2").text
    assert [f"u-{n}" in page for n in range(5)] == [False, False, True, False, False]
    seen, after = [], ""
    while found := browser.get(f"/api/v1/finished?limit=2&after={after}").json():
        seen += [each["uuid"] for each in found["jobs"]]
        after = found["after"]
        if not after:
            break
    assert seen == ["u-4", "u-2", "u-1", "u-0"], "the last one first"


def test_an_address_without_a_page_is_told_on_one(small: Site) -> None:
    client = small.client()
    as_browser = {"Accept": "text/html,application/xhtml+xml"}
    said = client.get("/nothing/here", headers=as_browser)
    assert said.status_code == 404
    assert "There is no page at this address" in said.text
    assert 'aria-label="Pages"' in said.text
    assert client.get("/nothing").text == "not found\n", "to programs in one line"
    assert client.get("/static/x", headers=as_browser).text == "not found\n"
    assert small.client(None).get("/nothing", headers=as_browser).status_code == 403


def test_the_classes_do_not_wait_for_slow_measurements(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slowly(*_: object, **__: object) -> dict[str, Activity]:
        go_on.wait(20)
        return {}

    monkeypatch.setattr(Board, "activity", slowly)
    monkeypatch.setattr(rendering, "_PATIENCE", 0.0)
    client = small.client()
    page = client.get("/classes?hours=336").text
    assert "Still loading: what was measured in this time." in page
    go_on.set()
    monkeypatch.setattr(rendering, "_PATIENCE", 60.0)
    assert "No job has run in this time" in text_of(client, "/classes?hours=336")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.033, "0.03"), (0.88, "0.9"), (2.44, "2.4"), (214.6, "215"), (12345, "12,345")],
)
def test_numbers_have_digits_enough(value: float, shown: str) -> None:
    assert values.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.000199, "0.199 ms"), (0.0338, "33.8 ms"), (0.5, "500 ms"), (1.046, "1.05 s"),
        (10.46, "10.5 s"), (75, "1 min 15 s"), (3659, "1 h 1 min"), (7190, "2 h"),
        (93784, "26 h 3 min"), (604800, "168 h"),
    ],
)  # fmt: skip
def test_times_are_shown_as_exactly_as_they_are_known(seconds: float, shown: str) -> None:
    assert values.took(seconds) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("no job is selected", "No job is selected"), ("redis does not answer",) * 2, ("", "")],
)
def test_a_sentence_begins_with_a_capital_but_a_name_stays(text: str, shown: str) -> None:
    assert values.sentence(text) == shown


def test_a_long_name_of_a_class_breaks_behind_its_dots() -> None:
    assert dotted("app.jobs.SendWelcome") == "app.jobs.SendWelcome"
    name = f"app.<b>.{'x' * 30}"
    assert dotted(name) == f"app.<wbr>&lt;b&gt;.<wbr>{'x' * 30}"
