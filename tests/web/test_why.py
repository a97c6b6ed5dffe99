"""Why a job does not run, on its page, that of its queue and of its class, and by the API."""

from __future__ import annotations

import re
import threading
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from qframe import Queueable, dispatch
from qframe.operations import queues
from qframe.operations.why import of_job
from qframe.web import Visitor, rendering
from tests.support.clock import Clock
from tests.web.conftest import FROM_HERE, Site

pytestmark = pytest.mark.usefixtures("stopped_clock")


class Mail(Queueable):
    number: int = 0
    queue = "mail"

    def handle(self) -> None: ...


class Kept(Mail):
    track = True


def reasons(html: str) -> list[str]:
    """Give the sentences of a page, and what mends each."""
    lists = re.findall(r"<ol class=\"reasons\">(.*?)</ol>", html, re.DOTALL)
    items = [each for found in lists for each in found.split("<li")[1:]]
    return [" ".join(unescape(re.sub("<[^>]*>", " ", f"<{each}")).split()) for each in items]


def test_a_pause_from_the_page_names_who_made_it(small: Site) -> None:
    uuid = dispatch(Mail()).send()
    visitor = small.client(lambda _: Visitor("ops", "act"))
    form = {"connection": "database", "queue": "mail", "back": "/queues"}
    assert visitor.post("/actions/pause", data=form, headers=FROM_HERE).status_code == 303
    (found,) = visitor.get(f"/api/v1/why/{uuid}").json()["found"]
    assert found["reasons"][0]["text"] == "mail has been paused for 0s from the page by ops"
    for name in ("resume", "pause"):
        at = {"connection": "database", "queue": "mail"}
        answer = visitor.post(f"/api/v1/actions/{name}", json=at, headers=FROM_HERE)
        assert answer.status_code == 200
    (found,) = visitor.get("/api/v1/why/mail").json()["found"]
    assert found["reasons"][0]["text"] == "mail has been paused for 0s from the API by ops"


def test_the_pages_of_a_job_and_of_a_queue_say_what_holds_them_up(small: Site) -> None:
    uuid = dispatch(Mail()).send()
    queues.pause(small.queue, "mail", who="<b>ops</b>", where="the page")
    client = small.client()
    job = client.get(f"/jobs/{uuid}").text
    assert "Why it does not run" in job
    first, second, third = reasons(job)
    assert "mail has been paused for 0s from the page by <b>ops</b>" in first
    assert "qframe resume mail --connection database read" in first
    assert "No worker of database runs qframe work database --queue mail" in second
    assert "It is the next job of mail" in third
    assert "<b>ops" not in job
    queue = client.get("/jobs", params={"queue": "mail"}).text
    assert "What holds it up" in queue
    assert len(reasons(queue)) == 2
    assert f"/why/{uuid}?kind=job&amp;connection=database" in job
    small.queue.clear("mail")
    assert reasons(client.get("/jobs", params={"queue": "mail"}).text) == []


def test_the_page_of_a_class_says_what_holds_it_up(small: Site) -> None:
    dispatch(Mail()).send()
    assert small.queue.context.pushes is not None
    small.queue.context.pushes.write_at_the_end()
    html = small.client().get(f"/classes/{quote(f'{__name__}.Mail')}").text
    assert "What holds it up" in html
    assert "No worker of database runs" in reasons(html)[0]


def test_a_page_does_not_wait_long_for_it(small: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = dispatch(Mail()).send()
    monkeypatch.setattr(rendering, "_PATIENCE", 0.0)
    client, explained, goes_on = small.client(), of_job.of_page, threading.Event()

    def slow(*given: Any) -> Any:
        assert goes_on.wait(60)
        return explained(*given)

    monkeypatch.setattr(of_job, "of_page", slow)
    early = client.get(f"/jobs/{uuid}").text
    assert (reasons(early), "Still loading: why it does not run." in early) == ([], True)
    goes_on.set()
    monkeypatch.setattr(rendering, "_PATIENCE", 60.0)
    late = client.get(f"/jobs/{uuid}").text
    assert (len(reasons(late)), "Still loading" in late) == (2, False)


def test_a_later_look_explains_where_the_job_was_found_then(
    small: Site, stopped_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = dispatch(Mail()).send()
    client, explained, found_at = small.client(), of_job.of_page, list[float]()

    def noted(board: Any, uuid: str, found: Any, at: float) -> Any:
        found_at.append(at)
        return explained(board, uuid, found, at)

    monkeypatch.setattr(of_job, "of_page", noted)
    other = {"connection": "database", "queue": "other", "back": "/queues"}
    for _ in range(2):
        client.get(f"/jobs/{uuid}")
        client.post("/actions/pause", data=other, headers=FROM_HERE)  # all is read anew
        stopped_clock.now += 1
    first, second = found_at
    assert second > first


def test_the_whole_page_explains_what_an_address_names(small: Site) -> None:
    uuid = dispatch(Mail()).send()
    client = small.client()
    for name, shown in ((uuid, f"{__name__}.Mail"), ("mail", "database:mail")):
        page = client.get(f"/why/{name}")
        assert page.status_code == 200
        assert shown in page.text
        assert "data-live" not in page.text, "a search of seconds is not repeated by itself"
        assert "No worker of database runs" in reasons(page.text)[0]
    nothing = client.get(f"/why/{quote('<i>mial', safe='')}").text
    assert "Nothing is known of it" in nothing
    assert "<i>" not in nothing
    wrong = client.get("/why/mail", params={"kind": "thing"})
    assert wrong.status_code == 422


def test_the_api_gives_the_same(small: Site) -> None:
    uuid = dispatch(Mail()).send()
    client = small.client(lambda _: "read")
    given = client.get(f"/api/v1/why/{uuid}", params={"kind": "job"}).json()
    assert given["asked"] == uuid
    (found,) = given["found"]
    assert [each["kind"] for each in found["reasons"]] == ["no worker", "turn"]
    assert client.get("/api/v1/why/nowhere").json()["found"][0]["about"] == "nothing"
    assert client.get("/api/v1/why/mail", params={"kind": "x"}).status_code == 422
    assert client.get("/api/v1/why/mail", params={"connection": "x"}).status_code == 422
    assert small.client(lambda _: "none").get("/api/v1/why/mail").status_code in {401, 403}


def test_a_job_that_has_failed_or_is_done_has_no_such_part(small: Site) -> None:
    small.keep("f-1")
    assert "Why it does not run" not in small.client().get("/jobs/f-1").text
    uuid = dispatch(Kept()).send()
    small.queue.cancel(uuid)
    page = small.client().get(f"/jobs/{uuid}")
    assert page.status_code == 200
    assert "Why it does not run" not in page.text
