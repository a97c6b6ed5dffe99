"""The JSON API: what it gives, and that it is as its document says, whatever it is asked."""

from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from qframe.web import access, app, pages
from qframe.web.access import Passwords
from qframe.web.api import ENDPOINTS
from qframe.web.job_pages import PLACES
from qframe.web.pages import PAGES
from tests.web.conftest import FROM_HERE, Site

ODD = ["", "0", "-1", "1e9", "nan", "\x00", "x" * 5000, "%", "a:b", "cause:", '"', "\u202e", "[]"]
QUERIES = [
    "queue",
    "connection",
    "place",
    "filter",
    "after",
    "limit",
    "hours",
    "by",
    "said",
    "page",
]


def test_what_it_gives_is_what_the_pages_show(site: Site) -> None:
    client = site.client()
    site.queue.push_raw('{"uuid": "u", "job": "app.A"}', "mail")
    site.keep("f", "KeyError: 'a'")
    (mail,) = (q for q in client.get("/api/v1/queues").json()["queues"] if q["queue"] == "mail")
    assert (mail["ready"], mail["paused"]) == (1, False)
    (job,) = client.get("/api/v1/jobs?queue=mail").json()["jobs"]
    assert (job["uuid"], job["job"], job["place"]) == ("u", "app.A", "ready")
    listed = [
        client.get(f"/api/v1/failed?place={place}").json()["failed"]
        for place in range(client.get("/api/v1/failed").json()["places"])
    ]
    (failed,) = (each for several in listed for each in several)
    assert failed["error"] == "KeyError: 'a'"
    whole = client.get("/api/v1/failed/f").json()
    assert whole["exception"].endswith("KeyError: 'a'")
    assert '"user": 7' in whole["payload"]
    assert client.get("/api/v1/failed/none").status_code == 404
    (cause,) = client.get("/api/v1/causes").json()["causes"]
    assert (cause["count"], cause["cause"]) == (1, failed["cause"])
    done = client.post("/api/v1/actions/retry", json={"uuids": ["f"]}, headers=FROM_HERE)
    assert done.json()["changed"] == 1
    assert client.get("/api/v1/overview").json()["failed"] == 0


def test_an_autoscaler_is_told_what_is_to_be_done_now(site: Site) -> None:
    client = site.client()
    for number in range(3):
        site.queue.push_raw(f'{{"uuid": "{number}", "job": "app.A"}}', "mail")
    site.queue.push_raw("{}", "mail", 600)
    (job,) = site.queue.reserve(["mail"])
    site.queue.backend.apply(job.start_plan())
    said = client.get(f"/api/scale?queue=mail&connection={site.queue.name}").json()
    assert (said["needed"], said["ready"], said["running"]) == (3, 2, 1)
    assert client.get("/api/scale?queue=none").json()["needed"] == 0
    assert job.uuid == "0"


def test_a_backend_that_is_away_does_not_scale_to_zero(open_site: Any) -> None:
    away = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}
    client = open_site(away=away).client()
    assert client.get("/api/scale?queue=mail").status_code == 503


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("pause", {"connection": "database", "seconds": -1}),
        ("pause", {"connection": "nowhere"}),
        ("pause", {"colour": "red"}),
        ("retry", {"filter": "colour:red"}),
        ("retry", {"uuids": "a"}),
        ("silence", {"cause": "a b"}),
        ("scale", {"id": "x", "number": 0}),
        ("scale", {"id": "x"}),
        ("cancel", {"filter": "", "place": "bed", "connection": "database"}),
        ("cancel-batch", {"id": "x"}),
        ("pause", []),
    ],
)
def test_what_cannot_be_is_one_line(small: Site, path: str, body: object) -> None:
    said = small.client().post(f"/api/v1/actions/{path}", json=body, headers=FROM_HERE)
    assert said.status_code == 422
    assert set(said.json()) == {"error"}
    assert "\n" not in said.json()["error"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [f"/api{path}" for path in ENDPOINTS] + [*PAGES])
def test_odd_parameters_are_answered(small: Site, path: str) -> None:
    small.keep("a")
    small.queue.push_raw("{}")
    client = small.client()
    address = re.sub(r"\{\w+\}", "a", path)
    for key in QUERIES:
        for value in ODD:
            said = client.get(address, params={key: value})
            assert said.status_code in {200, 404, 422}, (key, value, said.text)


@pytest.mark.parametrize("place", PLACES)
def test_pages_and_api_know_the_same_places(small: Site, place: str) -> None:
    client = small.client()
    assert client.get(f"/jobs?place={place}").status_code == 200
    assert client.get(f"/api/v1/jobs?place={place}").status_code == 200


def test_each_page_is_found_by_its_path() -> None:
    for path, page in PAGES.items():
        found = pages.find(re.sub(r"\{\w+\}", "x", path))
        assert found
        assert found[0] is page
    assert pages.find("/jobs/a%2Fb") == (PAGES["/jobs/{uuid}"], {"uuid": "a/b"})
    assert pages.find("/nothing") is None


def test_a_fuzzer_finds_nothing_that_the_document_does_not_say(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "TRIES", 10**9)  # it expects 401 however many tokens it guesses
    small.keep("a")
    small.queue.push_raw('{"uuid": "u", "job": "app.A"}')
    token = {"Authorization": "Bearer a-long-token-of-theirs"}
    page = app(small.queues, Passwords(None, "a-long-token-of-theirs", "act"), challenge=True)
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", page, headers=token)
    # A schema does not say how a filter is written, nor which connections there are: 422 is right.
    found: list[Any] = list(schema.get_all_operations())
    operations = [each.ok() for each in found]
    assert len(operations) == len(ENDPOINTS) + len(["an action", "the doctor"])
    for operation in operations:

        @settings(max_examples=15, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:
            case.call_and_validate(headers=token, excluded_checks=[positive_data_acceptance])

        holds()
