"""The page of one job: its attempts wherever it is, its chain and batch, and what stays hidden."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from qframe import Queueable, QueueManager, Worker, batch, chain, dispatch, manager
from qframe.contracts.backend import Capability
from qframe.contracts.history import History
from qframe.contracts.recording import Recording, SeenStack, UsedPoint
from qframe.contracts.status import State
from qframe.exceptions import JobSuspended
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.payload.secret import SHOWN, Secret
from qframe.payload.timing import iso
from qframe.worker.limits import JobFacts, Limits
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import decide
from tests.web.conftest import FROM_HERE, Site
from tests.web.test_pages import post, push, text_of

RECORDED = Recording(
    attempt=1,
    summary="killed by SIGKILL, 1.9 GB of 2 GB",
    log=("<b>&\0",),
    stacks=(SeenStack((0.3, 1.3), ("at import.py:88",)),),
    curve=(UsedPoint(2.0, 900.0, 0.5), UsedPoint(1.0, 1900.0, 1.0)),
    memory_events={"oom_kill": 1},
    limit=2048.0,
)


class Step(Queueable):
    number: int = 0
    tags = ("tenant:7",)

    def handle(self) -> None: ...


class Told(Queueable):
    keep_log = 5

    def handle(self) -> None: ...


class Hidden(Queueable):
    token: Secret[str]
    encrypted = False

    def handle(self) -> None: ...


class Sealed(Queueable):
    token: Secret[str]
    note: str
    encrypted = True

    def handle(self) -> None: ...


def start(site: Site, queue: str = "default") -> ReservedJob:
    (job,) = site.queue.reserve([queue])
    site.queue.backend.apply(job.start_plan())
    return job


def asked(site: Site, uuid: str) -> Any:
    said = site.client().get(f"/api/v1/jobs/{quote(uuid, safe='')}")
    assert said.status_code == 200, said.text
    return said.json()


def searches(site: Site) -> None:
    if not site.able(Capability.SEARCH):
        pytest.skip("it cannot look for jobs")


def test_attempts_are_shown_of_jobs_that_run_wait_again_and_are_delayed(site: Site) -> None:
    searches(site)
    uuid = push(site, "Often")
    assert asked(site, uuid)["attempts"] == []
    job = start(site)
    (first,) = asked(site, uuid)["attempts"]
    assert (first["number"], first["ended"]) == (1, "runs")
    assert first["host"]
    assert first["pid"]
    assert first["ended_at"] is None
    before = iso(time.time())
    job.settle(End(State.RELEASED, how="error", error=ValueError("no <b>luck</b>")))
    (first,) = asked(site, uuid)["attempts"]
    assert (first["ended"], first["error"]) == ("error", "ValueError: no <b>luck</b>")
    assert before <= first["ended_at"] <= iso(time.time())
    page = site.client().get(f"/jobs/{uuid}").text
    assert f'<b>Attempt 1 ended: error</b> <time datetime="{first["ended_at"][:10]}T' in page
    assert f'title="{first["ended_at"]} UTC"' in page
    assert asked(site, uuid)["waiting"]["place"] == "ready"
    start(site).settle(End(State.RELEASED, 600))
    seen = asked(site, uuid)
    assert [each["number"] for each in seen["attempts"]] == [1, 2]
    assert seen["waiting"]["place"] == "delayed"
    said = text_of(site.client(), f"/jobs/{uuid}")
    assert "ValueError: no <b>luck</b>" in said
    assert "<b>luck" not in site.client().get(f"/jobs/{uuid}").text


def test_a_delayed_job_is_made_ready_without_an_attempt(site: Site) -> None:
    searches(site)
    uuid = push(site, "Later", delay=600)
    assert "Run now" in text_of(site.client(), f"/jobs/{uuid}")
    done = post(site.client(), "run-now", uuids=uuid, back=f"/jobs/{uuid}")
    assert done.headers["location"].startswith(f"/jobs/{uuid}?said=made+1+of+1")
    assert asked(site, uuid)["waiting"]["place"] == "ready"
    assert "Run now" not in text_of(site.client(), f"/jobs/{uuid}")
    assert post(site.client(), "run-now", uuids=uuid).headers["location"].endswith("jobs+ready")
    assert start(site).attempts() == 1


def test_one_that_failed_or_is_tracked_is_found_by_its_end(site: Site) -> None:
    site.keep("0199c8f0-cafe")
    site.keep("0199c8f0-beef")
    site.queue.store.set("status:0199c8f0-0001", '{"state": "RUNNING"}', 600)
    assert asked(site, "cafe")["uuid"] == "0199c8f0-cafe"
    assert site.client().get("/api/v1/failed/BEEF").json()["uuid"] == "0199c8f0-beef"
    assert asked(site, "0001")["uuid"] == "0199c8f0-0001"
    several = site.client().get("/api/v1/jobs/0199c8f0")
    assert several.status_code == 422
    assert "0199c8f0-cafe" in several.text
    assert "0199c8f0-beef" in several.text
    assert "0199c8f0-cafe" in site.client().get("/jobs/cafe").text


@pytest.mark.parametrize("uuid", ["a/b", "/a//b/", "a?b=c#d", "a b&c", "\u00e9/<b>", "a/../b"])
def test_any_uuid_can_be_opened(small: Site, uuid: str) -> None:
    small.queue.push_raw(json.dumps({"uuid": uuid, "job": "app.Odd", "data": {}}), "default", 600)
    client = small.client()
    link = f"/jobs/{quote(uuid, safe='')}"
    listed = client.get("/jobs?place=delayed").text
    assert f'href="{link}' in listed
    assert client.get(link).status_code == 200
    assert asked(small, uuid)["uuid"] == uuid
    small.keep(uuid)
    assert client.get(f"/failed/{quote(uuid, safe='')}").status_code == 200
    assert client.get(f"/api/v1/failed/{quote(uuid, safe='')}").json()["uuid"] == uuid
    form = client.get(link).text
    back = form.split('name="back" value="')[1].split('"')[0]
    assert client.get(back).status_code == 200
    done = client.post("/actions/forget", data={"uuids": uuid, "back": back}, headers=FROM_HERE)
    assert client.get(done.headers["location"]).status_code == 200


def test_its_chain_is_shown_with_what_is_left(site: Site) -> None:
    searches(site)
    uuid = chain([Step(number=1), Step(number=2), Step(number=3)]).dispatch()
    (found,) = site.client().get("/api/v1/jobs").json()["jobs"]
    first = asked(site, found["uuid"])["chain"]
    assert (first["position"], len(first["following"]), first["is_whole"]) == (1, 2, True)
    start(site).settle(End(State.COMPLETE))
    (found,) = site.client().get("/api/v1/jobs").json()["jobs"]
    second = asked(site, found["uuid"])["chain"]
    assert (second["position"], second["at"]) == (2, found["uuid"])
    assert second["following"] == first["following"][1:]
    said = text_of(site.client(), f"/jobs/{found['uuid']}")
    assert "at link 2 of 3, which is this one" in said
    assert "tenant:7" in said
    assert uuid


def test_its_batch_is_linked_with_its_progress(site: Site) -> None:
    searches(site)
    begun = batch([Step(number=1), Step(number=2)]).name("two <i>").dispatch()
    start(site).settle(End(State.COMPLETE))
    (found,) = site.client().get("/api/v1/jobs").json()["jobs"]
    shown = asked(site, found["uuid"])["batch"]
    assert (shown["id"], shown["done"], shown["total"]) == (begun.id, 1, 2)
    page = site.client().get(f"/jobs/{found['uuid']}").text
    assert f'href="/batches/{begun.id}"' in page
    assert "two &lt;i&gt;" in page


def test_the_progress_of_a_running_job_is_shown_as_it_is(site: Site) -> None:
    searches(site)
    uuid = dispatch(Step(number=1)).track().send()
    job = start(site)
    job.progress(0.25, "row <1>")
    seen = asked(site, uuid)["status"]
    assert (seen["state"], seen["progress"], seen["message"]) == ("RUNNING", 0.25, "row <1>")
    page = site.client().get(f"/jobs/{uuid}").text
    assert '<progress max="1" value="0.25">' in page
    assert "row &lt;1&gt;" in page


def test_what_is_logged_in_it_is_shown(site: Site) -> None:
    searches(site)
    uuid = dispatch(Told()).track().send()
    job = start(site)
    job.note_log("09:00 INFO shop: <b>sent</b> \u202e")
    job.settle(End(State.RELEASED))
    page = site.client().get(f"/jobs/{uuid}").text
    assert "#1 09:00 INFO shop: &lt;b&gt;sent&lt;/b&gt; \\u202e" in page
    assert "<h2>Log</h2>" in page


KEY = "vTwM3vbPc0RjOYyrcIrQfvMIqgD2zZ1Cw8mEobFDgOQ="


def test_secrets_are_stars_and_what_is_encrypted_stays_so(
    open_site: Callable[..., Site], fresh: Path
) -> None:
    open_site(database={"driver": "database"})  # which lets go of what is used here
    site = Site(QueueManager({"root": fresh, "encryption_keys": [KEY]}))
    manager.use(site.queues)
    delays = {"ready": 0, "delayed": 600}
    uuids = []
    for delay in delays.values():
        uuids.append(dispatch(Hidden(token=Secret("hush-1"))).delay(delay).send())
        uuids.append(
            dispatch(Sealed(token=Secret("hush-2"), note="plain words")).delay(delay).send()
        )
    failed = start(site)
    failed.settle(End(State.FAILED, error=ValueError("bad")))
    for uuid in uuids:
        for path in (f"/jobs/{uuid}", f"/failed/{uuid}", f"/api/v1/jobs/{uuid}"):
            text = site.client().get(path).text
            assert uuid in text
            assert "hush" not in text
            assert "plain words" not in text
    assert SHOWN in asked(site, failed.uuid)["payload"]
    assert SHOWN in asked(site, uuids[2])["payload"]
    assert "token" not in json.loads(asked(site, uuids[3])["payload"])["data"]


def test_steps_are_shown_and_an_event_is_sent_from_the_page(site: Site) -> None:
    searches(site)
    uuid = push(site, "Often")
    job = start(site)
    job.step("charge", lambda: {"id": "<b>7"})
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 600)
    limits = Limits(None, job.payload, WorkerOptions())
    job.settle(decide(raised.value, JobFacts.of(job), limits).end)
    seen = asked(site, uuid)
    assert [(each["name"], each["kind"], each["value"]) for each in seen["steps"]] == [
        ("charge", "step", {"id": "<b>7"}),
        ("paid", "wait", None),
    ]
    assert seen["waits_for"] == "paid"
    assert "<b>7" not in site.client().get(f"/jobs/{uuid}").text
    refused = post(site.client(), "send-event", uuids=uuid, id="paid", data="{")
    assert refused.status_code == 422
    sent = {"uuids": uuid, "id": "paid", "data": '{"by":"card"}', "back": f"/jobs/{uuid}"}
    done = post(site.client(), "send-event", **sent)
    assert "to+1+of+1+jobs" in done.headers["location"]
    assert asked(site, uuid)["waiting"]["place"] == "ready"
    assert start(site).wait_for_event("paid", 600) == {"by": "card"}
    assert asked(site, uuid)["steps"][1]["value"] == {"by": "card"}


def test_its_timeline_has_all_in_order_and_what_is_next(site: Site) -> None:
    searches(site)
    chain([Step(number=1), Step(number=2)]).dispatch()
    job = start(site)
    job.step("charge", lambda: {"id": 7})
    job.settle(End(State.RELEASED, 600, how="error", error=ValueError("no luck")))
    page = site.client().get(f"/jobs/{job.uuid}").text
    timeline = page.partition('class="timeline"')[2].partition("</ol>")[0]
    titles = [each.partition("</b>")[0] for each in timeline.split("<b>")[1:]]
    name = f"{Step.__module__}.Step"
    begun = ["Dispatched", "Attempt 1 started", "Step charge", "Attempt 1 ended: error"]
    assert titles == [*begun, "Due", f"Then {name}"]
    assert '<span class="badge warn">delayed</span></h1>' in page


TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 4, in handle
    send(<message>)
  File "/srv/shop/mail.py", line 9, in send
    with SMTP() as server:
         ^^^^^^
  File "/usr/lib/python3.12/smtplib.py", line 255, in __init__
    connect()
TimeoutError: no reply"""


def test_the_lines_of_the_application_come_first(small: Site) -> None:
    record = small.keep("f")
    small.queue.failed.forget(record)
    small.queue.failed.add(replace(record, exception=TRACEBACK))
    page = small.client().get("/failed/f").text
    frames = page.partition('class="frames"')[2].partition("</ol>")[0]
    assert re.findall(r'<span class="id">(.*?)</span><code>(.*?)</code>', frames) == [
        ("/srv/shop/mail.py:9 in send", "with SMTP() as server:"),
        ("/srv/shop/jobs.py:4 in handle", "send(&lt;message&gt;)"),
    ]
    assert "smtplib.py&#34;, line 255" in page.partition('id="traceback"')[2]
    small.queues.settings.root = Path("/srv")
    again = small.client().get("/failed/f").text.partition('class="frames"')[2]
    assert '<span class="id">shop/mail.py:9 in send</span>' in again, "from the project's root"


def test_lists_show_arguments_with_secrets_as_stars(small: Site) -> None:
    dispatch(Hidden(token=Secret("hush"))).on_connection("database").send()
    small.queue.push_raw('{"uuid": "a", "job": "app.A", "data": {"to": "<b>", "n": [1]}}')
    small.queue.push_raw(json.dumps({"uuid": "b", "job": "app.B", "data": {"x": "y" * 60_000}}))
    small.keep("f")
    client = small.client()
    page = client.get("/jobs").text
    assert f"token: &#34;{SHOWN}&#34;" in page
    assert "to: &#34;&lt;b&gt;&#34;, n: [1]" in page
    assert re.search(r'class="args">\(60,\d+ bytes\)<', page)
    assert "hush" not in page
    assert "user: 7" in client.get("/failed?by=time").text
    listed = client.get("/api/v1/jobs").json()["jobs"]
    assert listed[0]["arguments"] == f'token: "{SHOWN}"'


def test_a_job_that_waits_where_none_can_be_searched_for_is_noted(site: Site) -> None:
    if site.able(Capability.SEARCH):
        pytest.skip("its jobs can be searched")
    manager.use(site.queues)
    uuid = dispatch(Told()).track().send()
    client = site.client()
    assert "Cancel" in text_of(client, f"/jobs/{uuid}")
    told = post(client, "cancel", uuids=uuid).headers["location"]
    assert "noted+1+of+1+jobs" in told
    assert "noted+2+of+2+jobs" in post(client, "cancel", uuids=[uuid, "u-1"]).headers["location"]
    Worker(site.queues, WorkerOptions(stop_when_empty=True, memory=0)).run()
    assert asked(site, uuid)["status"]["state"] == "CANCELLED"
    assert "Cancel" not in text_of(client, f"/jobs/{uuid}").partition("Timeline")[0]


def test_what_was_recorded_of_a_killed_job_is_shown(small: Site) -> None:
    history = History().started(1, "h", 1, 1e9).ended("error").recorded(RECORDED)
    small.keep("killed", history=history)
    kept = asked(small, "killed")["recording"]
    assert kept["summary"] == RECORDED.summary
    assert kept["curve"][-1] == {"seconds_before_end": 1.0, "megabytes": 1900.0, "processor": 1.0}
    assert small.client().get("/api/v1/failed/killed").json()["recording"] == kept
    page = small.client().get("/failed/killed").text
    assert page.count('<line x1="0.00%"') == 2, "the curves of memory and processor"
    said = text_of(small.client(), "/failed/killed")
    for words in (
        "Attempt 1: killed by SIGKILL, 1.9 GB of 2 GB", "memory.events of its cgroup: oom_kill +1",
        "at import.py:88", "seen 2 times", "<b>&\\x00", "Memory 1,900 of 2,048 MB",
    ):  # fmt: skip
        assert words in said
    small.keep("plain")
    assert asked(small, "plain")["recording"] is None
    assert "last seconds" not in text_of(small.client(), "/failed/plain")
