"""Checks of stored jobs: their reports on the page and in the API, and one begun from there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qframe import Queueable, QueueManager, manager
from qframe.contracts.step import Push, Step
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.jobs.registry import Registry
from qframe.metrics.deploys import Deploys
from qframe.operations import payload_reports
from qframe.operations.actions import of_payloads
from qframe.operations.payload_reports import KEYS, PayloadReport, keep, report_of
from qframe.operations.payloads import PayloadCheck, PayloadTrouble
from qframe.operations.stored_payloads import StoredPayloads
from qframe.payload import envelope
from tests.conftest import settings_of
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site, bulk_page

HOSTILE = '<script>alert("\U0001f480")</script>\u202e' + "\U0001f4a5" * 300


class Parcel(Queueable):
    order: int

    def handle(self) -> None: ...


@pytest.fixture(params=["memory", "database", "redis"])
def known(request: pytest.FixtureRequest, fresh: Path) -> Iterator[Site]:
    """Give a page whose process knows the jobs of this module."""
    queues = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {"here": settings_of(request)},
            "jobs": [__name__],
            "version": "2.4.1",
        }
    )
    manager.use(queues)
    yield Site(queues)
    manager.use(None)


def push(site: Site, count: int = 1, **changes: Any) -> None:
    def raw() -> bytes:
        return envelope.encode(envelope.create(Parcel(order=1)) | changes)

    site.queue.backend.apply(Step(None, *(Push("mail", raw(), 0.0) for _ in range(count))))


def begin(client: TestClient, **form: str) -> str:
    """Begin a check by the page's button; give the page of its progress."""
    said = client.post(
        "/actions/check-payloads", data={"back": "/payloads", **form}, headers=FROM_HERE
    )
    assert said.status_code == 303, said.text
    return bulk_page(said)


def ended(client: TestClient, page: str, how: str = "Done after") -> str:
    wait_for(lambda: "Running after" not in client.get(page).text, "the end of the check")
    text = client.get(page).text
    assert how in text
    return text


def reports(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/payload-checks").json()["reports"]
    return found


def made(found: PayloadCheck, **more: Any) -> PayloadReport:
    about = {"who": "ops@ci-3", "where": "the command", "version": "2.4.1", **more}
    return report_of(found, **about)


def failing(**more: Any) -> PayloadCheck:
    of = {"job": "app.Ship", "kind": "lacks", "text": "lack `carrier`", **more}
    trouble = PayloadTrouble(**of, plain=of["text"], count=31, example="u-1")
    trouble.places = {"ready in here:mail": 20, "failed in here:mail": 11}
    return PayloadCheck(read=1204, troubles=[trouble])


# -- checked from here ----------------------------------------------------------------------------


def test_a_check_of_the_page_leaves_its_report(known: Site) -> None:
    push(known, 3)
    push(known, 2, data={})
    client = known.client()
    assert "No check has left a report" in client.get("/payloads").text
    page = begin(client)
    assert "2 of the 5 looked at cannot be run" in ended(client, page)
    (report,) = reports(client)
    (trouble,) = report["troubles"]
    assert trouble["sentence"] == f"2 of {Parcel.own_name()} lack `order`"
    assert trouble["where"] == "2 ready in here:mail"
    assert (report["read"], report["cannot"], report["version"]) == (5, 2, "2.4.1")
    assert (report["where"], report["at_most"], report["who"]) == ("the page", 1000, "somebody")
    text = client.get(f"/payloads?bulk={page.rpartition('/')[2]}").text
    assert "Checked stored jobs: <b>2</b> of the 5 looked at cannot be run, within" in text
    assert "Version 2.4.1 cannot run 2 of 5" in text
    assert "with the code of the page" in text
    assert "version 2.4.1, checked by somebody, cannot run 2" in client.get("/api/v1/overview").text
    assert known.queue.size("mail") == 5


def test_a_check_by_the_api_leaves_its_report(known: Site) -> None:
    push(known)
    client = known.client()
    body = {"connection": "here"}
    done = client.post("/api/v1/actions/check-payloads", json=body, headers=FROM_HERE).json()
    address = f"/api/v1/bulks/{done['bulk']}"
    wait_for(lambda: client.get(address).json()["state"] == "done", "the end of the check")
    (report,) = reports(client)
    assert (report["where"], report["connection"], report["cannot"]) == ("the API", "here", 0)
    assert "Version 2.4.1 can run all 1" in client.get("/payloads").text
    body = {"connection": "nowhere"}
    said = client.post("/api/v1/actions/check-payloads", json=body, headers=FROM_HERE)
    assert (said.status_code, "nowhere" in said.json()["error"]) == (422, True)


def test_it_needs_the_right_to(known: Site) -> None:
    for may, allowed in (("read", False), ({"retry"}, False), ({"check-payloads"}, True)):
        client = known.client(lambda _, may=may: may)  # type: ignore[misc] # bound here
        assert ('action="/actions/check-payloads"' in client.get("/payloads").text) is allowed
        said = client.post("/actions/check-payloads", headers=FROM_HERE)
        assert said.status_code == (303 if allowed else 403)
        assert client.get("/api/v1/payload-checks").status_code == 200


def test_it_reads_a_bounded_part_and_says_so(known: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_payloads, "AT_MOST", 4)
    push(known, 6)
    client = known.client()
    ended(client, begin(client))
    (report,) = reports(client)
    assert (report["read"], report["notes"]) == (
        4,
        ["ready in here:mail: only the first 4 were read"],
    )
    monkeypatch.setattr(of_payloads, "_IN_ALL", 3)
    ended(client, begin(client))
    assert reports(client)[0]["notes"] == ["only the first 3 payloads were read"]
    assert "only the first 3 payloads were read" in client.get("/payloads").text


def test_one_check_at_a_time_and_one_that_is_stopped_leaves_nothing(
    known: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(known, 5)
    goes_on, each = threading.Event(), StoredPayloads.__iter__

    def slowly(self: StoredPayloads) -> Iterator[Any]:
        for found in each(self):
            yield found
            goes_on.wait(60)

    monkeypatch.setattr(StoredPayloads, "__iter__", slowly)
    client = known.client()
    page = begin(client)
    assert begin(client) == page
    client.post("/actions/stop", data={"id": page.rpartition("/")[2]}, headers=FROM_HERE)
    goes_on.set()
    ended(client, page, "Cancelled after")
    assert reports(client) == []


def test_the_pages_answer_while_a_check_runs(small: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that checks rests for twice as long as it works."""
    rests = list[float]()
    monkeypatch.setattr(of_payloads, "_PART", 0.0)
    monkeypatch.setattr(of_payloads, "_rest", rests.append)
    push(small, 5)
    monkeypatch.setattr(Registry, "find", lambda *_: Parcel)
    client = small.client()
    ended(client, begin(client))
    assert len(rests) == 5
    assert min(rests) > 0


def test_a_page_without_the_code_calls_nothing_unknown(small: Site) -> None:
    push(small, 2, job="app.Ship")
    client = small.client()
    text = ended(client, begin(client), "Broken after")
    assert "nothing was checked: this process has none of the job classes (2 of app.Ship" in text
    assert reports(client) == []


def test_a_page_with_some_of_the_code_does(small: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    push(small, 2, job="app.Ship")
    push(small)
    find = Registry.find

    def found(self: Registry, name: str) -> Any:
        return Parcel if name == Parcel.own_name() else find(self, name)

    monkeypatch.setattr(Registry, "find", found)
    client = small.client()
    ended(client, begin(client))
    (trouble,) = reports(client)[0]["troubles"]
    assert trouble["sentence"].startswith("2 of app.Ship are unknown: app.Ship is not a job of")


def test_a_module_that_cannot_be_imported_is_named(
    known: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Registry) -> None:
        raise ConfigurationError("jobs: 'shop' cannot be imported: ImportError: pandas")

    monkeypatch.setattr(Registry, "load", fail)
    client = known.client()
    text = ended(client, begin(client), "Broken after")
    assert "nothing was checked: jobs: &#39;shop&#39; cannot be imported" in text


def test_a_report_that_no_store_takes_is_said(known: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BackendUnavailable("it is read-only")

    monkeypatch.setattr(payload_reports, "_keep_at", refuse)
    client = known.client()
    assert "it is read-only" in ended(client, begin(client), "Broken after")


# -- shown ----------------------------------------------------------------------------------------


def test_a_report_of_the_command_is_shown(known: Site) -> None:
    found = failing()
    found.others, found.left_out = 4, {"app.Report.remark": 12}
    found.notes, found.silent = ["sqs: not looked at"], {"redis": "refused"}
    keep(known.queues, made(found, connection="here", at_most=50, with_failed=False))
    text = known.client().get("/payloads").text
    for said in (
        "Version 2.4.1 cannot run 35 of 1,204",
        "31 of app.Ship lack `carrier`",
        "20 ready in here:mail, 11 failed in here:mail",
        'href="/jobs?filter=class%3A%22app.Ship%22"',
        'href="/jobs/u-1"',
        "4 more cannot be run for yet other reasons",
        "redis did not answer: refused",
        "12 of app.Report have `remark`, which is left out",
        "sqs: not looked at",
        "by ops@ci-3; only the connection here; without failed jobs; at most 50 of each place.",
        "1,204 payloads read",
    ):
        assert said in text, said
    assert "A deploy came after it" not in text
    Deploys(known.queue.store).mark("2.4.1", at=time.time() + 60)
    assert "A deploy came after it" in known.client().get("/payloads").text


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (PayloadCheck(), "The code: nothing was stored"),
        (PayloadCheck(read=2), "The code can run all 2"),
        (PayloadCheck(read=2, silent={"sqs": "x"}), "The code: not all could be read"),
        (failing(), "The code cannot run 31 of 1,204"),
    ],
)
def test_each_outcome_has_its_headline(small: Site, found: PayloadCheck, said: str) -> None:
    keep(small.queues, made(found, version=""))
    assert said in small.client().get("/payloads").text


def test_hostile_text_is_escaped(small: Site) -> None:
    found = failing(job=HOSTILE, text=HOSTILE)
    found.notes, found.silent = [HOSTILE], {HOSTILE: HOSTILE}
    found.left_out = {f"{HOSTILE}.{HOSTILE}": 1}
    found.troubles[0].places, found.troubles[0].example = {HOSTILE: 1}, HOSTILE
    report = made(found, who=HOSTILE, version=HOSTILE)
    fields = json.loads(report.model_dump_json())
    keep(small.queues, report)
    # Nobody has shortened it, or made it printable.
    raw = {**fields, "id": "raw", "who": HOSTILE * 3, "host": HOSTILE, "where": HOSTILE}
    raw["connection"] = HOSTILE
    small.queue.store.set(KEYS[1], json.dumps(raw), 60)
    client = small.client()
    for path in ("/payloads", "/"):
        text = client.get(path).text
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        assert "\u202e" not in text
    assert len(reports(client)) == 2


def test_the_page_reads_facts_and_scans_nothing(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(small.queues, made(failing()))
    read = list[Any]()

    def scanned(*given: object) -> Any:
        read.append(given)
        raise AssertionError

    monkeypatch.setattr(type(small.queue.backend), "scan", scanned)
    assert small.client().get("/payloads").status_code == 200
    assert read == []


def test_other_pages_lead_to_it(small: Site) -> None:
    keep(small.queues, made(failing()))
    client = small.client()
    for path in ("/classes", "/failed", "/"):
        assert 'href="/payloads"' in client.get(path).text, path
