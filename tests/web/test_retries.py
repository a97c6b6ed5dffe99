"""Watched retries on the page and in the API: begun, seen and stopped."""

from __future__ import annotations

from qframe.retries.driver import RetryDriver
from tests.support.process import wait_for
from tests.web.conftest import FROM_HERE, Site, bulk_page


def test_a_retry_is_begun_seen_and_stopped(small: Site) -> None:
    for number in range(4):
        small.keep(f"u-{number}")
    client = small.client()
    asked = client.get("/confirm/retry?filter=error:bad&back=/failed").text
    assert 'action="/actions/watch-retry"' in asked
    form = {"filter": "error:bad", "first": "2", "then": "5/s", "back": "/failed"}
    done = client.post("/actions/watch-retry", data=form, headers=FROM_HERE)
    assert done.status_code == 303
    wait_for(lambda: "Done after" in client.get(bulk_page(done)).text, "that it is begun")
    RetryDriver(small.queues).turn()
    (seen,) = client.get("/api/v1/retries").json()["retries"]
    assert (seen["stage"], seen["total"], seen["retried"]) == ("first", 4, 2)
    assert (seen["of"], seen["stop_if"]) == ("filter error:bad", "failed > 20%")
    page = client.get("/failed").text
    assert "2 first, then 5/s, until failed &gt; 20%" in page
    assert "2 of 4" in page
    assert f'name="id" value="{seen["id"]}"' in page
    assert client.get(f"/confirm/stop-retry?id={seen['id']}").status_code == 200
    said = client.post("/actions/stop-retry", data={"id": seen["id"]}, headers=FROM_HERE)
    assert f"stopped+the+retry+{seen['id']}" in said.headers["location"]
    assert "stopping" in client.get("/failed").text
    assert len(small.failed()) == 2


def test_wrong_terms_are_said_and_begin_nothing(small: Site) -> None:
    small.keep("a")
    client = small.client()
    for terms, why in (
        ({"then": "fast"}, "then: "),
        ({"first": 2000}, "first: "),
        ({"stop_if": "x\ny"}, "stop-if: "),
    ):
        body = {"uuids": ["a"], **terms}
        said = client.post("/api/v1/actions/watch-retry", json=body, headers=FROM_HERE)
        assert said.status_code == 422
        assert why in said.json()["error"]
    said = client.post("/api/v1/actions/stop-retry", json={"id": "no"}, headers=FROM_HERE)
    assert said.status_code == 422
    assert client.get("/api/v1/retries").json() == {"retries": []}


def test_selected_jobs_are_retried_so_too(small: Site) -> None:
    small.keep("a")
    small.keep("b")
    body = {"uuids": ["a", "gone"], "first": 1}
    said = small.client().post("/api/v1/actions/watch-retry", json=body, headers=FROM_HERE).json()
    text = "retrying 1 failed job in the background; gone is no failed job (any more)"
    assert (said["changed"], said["text"]) == (1, text)
    RetryDriver(small.queues).turn()
    assert small.failed() == ["b"]
    none = {"uuids": ["gone"], "first": 1}
    said = small.client().post("/api/v1/actions/watch-retry", json=none, headers=FROM_HERE).json()
    assert said["changed"] == 0
