"""Dispatching over HTTP: what is allowed is queued, once for a key, and nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Self

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, field_validator, model_validator
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.requests import Request
from starlette.testclient import TestClient

from qframe import Queueable, QueueManager, Secret
from qframe.jobs.registry import Registry
from qframe.web import access, app
from qframe.web.access import Passwords, Visitor
from qframe.web.dispatching import Rate
from tests.web.conftest import FROM_HERE, Site

SHOP, OWNER = "the-token-of-the-shop", "the-token-of-the-owner"
STOCK = "the-token-of-the-stock"
AS_SHOP = {"Authorization": f"Bearer {SHOP}"}
AS_OWNER = {"Authorization": f"Bearer {OWNER}"}


class Address(BaseModel):
    street: str


class HttpWelcome(Queueable):
    user_id: int
    day: date | None = None
    to: Address | None = None

    queue = "emails"
    job_name = "http.Welcome"

    def handle(self) -> None: ...


class HttpSecret(Queueable):
    token: Secret[str]
    number: int = 0
    codes: dict[str, int] = {}  # noqa: RUF012 (pydantic copies it)

    encrypted = False
    job_name = "http.Secret"

    def handle(self) -> None: ...


class HttpRaising(Queueable):
    size: str = "small"
    depth: int = 0
    both: str = ""
    word: str = ""

    job_name = "http.Raising"

    @field_validator("size")
    @classmethod
    def known(cls, size: str) -> str:
        return {"small": "small"}[size]

    @field_validator("depth")
    @classmethod
    def deep(cls, depth: int) -> int:
        return depth and cls.deep(depth + 1)

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.both:
            raise LookupError("no such pair")
        return self

    def unique_id(self) -> str:
        if self.word:
            raise ZeroDivisionError(self.word)
        return "1"

    unique = True

    def handle(self) -> None: ...


class HttpForbidden(Queueable):
    job_name = "http.Forbidden"

    def handle(self) -> None: ...


ALLOWED = {
    "jobs": ["http.Welcome", "http.Secret", "http.Raising"],
    "queues": ["mail.*"],
    "connections": ["other"],
    "max_delay": 3600,
    "tokens": {"shop": SHOP, "stock": STOCK},
}


@pytest.fixture
def open_shop(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TestClient]:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the classes above

    def open_it(driver: dict[str, Any] | None = None, **more: Any) -> TestClient:
        first = driver or {"driver": "database"}
        queues = QueueManager(
            {
                "default": "first",
                "root": fresh,
                "connections": {"first": first, "other": {"driver": "memory"}},
                "web": {"dispatch": {**ALLOWED, **more}},
            }
        )
        guards = Passwords("a-password", OWNER, "read", {"shop": SHOP, "stock": STOCK})
        client = TestClient(app(queues, guards, challenge=True), base_url="http://localhost")
        client.app_state = {"queues": queues}
        return client

    return open_it


def queues_of(client: TestClient) -> QueueManager:
    found: QueueManager = client.app_state["queues"]
    return found


def post(client: TestClient, job: str = "http.Welcome", **more: Any) -> Any:
    headers = more.pop("headers", AS_SHOP)
    body = {"job": job, "data": {"user_id": 7}, **more}
    return client.post("/api/v1/jobs", json=body, headers=headers)


def test_a_job_is_queued_as_if_python_had_dispatched_it(open_shop: Any) -> None:
    client = open_shop()
    said = post(client, data={"user_id": 7, "day": "2026-11-27", "to": {"street": "Ring 1"}})
    assert said.status_code == 201
    made = said.json()
    assert made == {
        "id": made["id"],
        "job": "http.Welcome",
        "queue": "emails",
        "connection": "first",
        "duplicate": False,
    }
    assert said.headers["location"] == f"/api/v1/jobs/{made['id']}"
    whole = client.get(said.headers["location"], headers=AS_OWNER).json()
    assert (whole["uuid"], whole["queue"]) == (made["id"], "emails")
    (job,) = queues_of(client).connection().reserve(["emails"])
    assert job.payload["data"] == {"user_id": 7, "day": "2026-11-27", "to": {"street": "Ring 1"}}
    assert job.uuid == made["id"]


def test_queue_delay_and_connection_are_chosen_within_what_is_allowed(open_shop: Any) -> None:
    client = open_shop()
    said = post(client, queue="mail.slow", delay=60, connection="other").json()
    assert (said["queue"], said["connection"]) == ("mail.slow", "other")
    assert queues_of(client).connection("other").sizes("mail.slow").delayed == 1
    for wrong, code in (
        ({"queue": "default"}, 403),
        ({"connection": "first"}, 403),
        ({"delay": 3601}, 422),
        ({"delay": -1}, 422),
        ({"delay": "5"}, 422),
        ({"queue": "mail.x y"}, 422),
        ({"colour": "red"}, 422),
        ({"job": "http.Forbidden"}, 403),
        ({"job": "os.system"}, 403),
    ):
        said = post(client, **wrong)
        assert said.status_code == code, (wrong, said.text)
        assert said.headers["content-type"] == "application/problem+json"
    assert queues_of(client).connection().sizes("emails").ready == 0


@pytest.mark.parametrize("key", ["order-7", '"order-7"'])
def test_a_key_queues_once_however_often_it_is_said(open_shop: Any, key: str) -> None:
    client = open_shop()
    headers = {**AS_SHOP, "Idempotency-Key": key}
    first, again = post(client, headers=headers), post(client, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert [each.json()["duplicate"] for each in (first, again)] == [False, True]
    assert again.headers["idempotent-replayed"] == "true"
    other = post(client, "http.Secret", data={"token": "x"}, headers=headers)
    assert other.json()["duplicate"] is False  # a key is of its class
    stock = {**headers, "Authorization": f"Bearer {STOCK}"}
    assert post(client, headers=stock).json()["duplicate"] is False  # and of its token
    assert queues_of(client).connection().sizes("emails").ready == 2
    assert post(client, headers={**AS_SHOP, "Idempotency-Key": "x" * 256}).status_code == 400


def test_a_key_is_of_the_visitor_whatever_an_application_calls_them(open_shop: Any) -> None:
    queues = queues_of(open_shop())

    def authorize(request: Request) -> Visitor:
        return Visitor(request.headers["x-user"], "dispatch", request.headers["x-from"])

    client = TestClient(app(queues, authorize), base_url="http://localhost")
    seen = []
    for user, place in [("Ada at sales", "1"), ("Ada at sales", "2"), ("Ada at stock", "1")]:
        headers = {**AS_SHOP, "x-user": user, "x-from": place, "idempotency-key": "k"}
        seen.append(post(client, headers=headers).json()["duplicate"])
    assert seen == [False, True, False]


def test_what_does_not_fit_the_class_is_a_problem_with_pydantics_errors(open_shop: Any) -> None:
    client = open_shop()
    said = post(client, data={"user_id": "seven", "to": {}, "colour": "red"})
    assert said.status_code == 422
    problem = said.json()
    assert (problem["status"], problem["title"][:13]) == (422, "Unprocessable")
    assert [(each["loc"], each["type"]) for each in problem["errors"]] == [
        (["data", "user_id"], "int_parsing"),
        (["data", "to", "street"], "missing"),
        (["data", "colour"], "unexpected_keyword_argument"),
    ]
    assert post(client, data=None).json()["errors"][0]["loc"] == ["data"]
    bad = client.post("/api/v1/jobs", content=b"{", headers=AS_SHOP)
    assert (bad.status_code, bad.json()["status"]) == (400, 400)
    nan = b'{"job": "http.Welcome", "data": {"user_id": NaN}}'
    assert client.post("/api/v1/jobs", content=nan, headers=AS_SHOP).status_code == 422


def test_a_problem_shows_no_secret(open_shop: Any) -> None:
    wrong = {"token": "opensesame", "number": "opensesame", "codes": {"opensesame": "x"}}
    said = post(open_shop(), "http.Secret", data=wrong)
    assert said.status_code == 422
    assert "opensesame" not in said.text
    places = sorted(each["loc"] for each in said.json()["errors"])
    assert places == [["data", "codes", "*"], ["data", "number"]]


@pytest.mark.parametrize(
    ("data", "field", "kind"),
    [
        ({"size": "opensesame"}, ["size"], "KeyError"),
        ({"depth": 1, "size": "small"}, ["depth"], "RecursionError"),
        ({"both": "opensesame", "size": "small"}, ["both"], "LookupError"),
        ({"word": "opensesame"}, [], "ZeroDivisionError"),
    ],
)
def test_code_of_a_class_that_raises_is_a_problem_without_its_text(
    open_shop: Any,
    caplog: pytest.LogCaptureFixture,
    data: dict[str, Any],
    field: list[str],
    kind: str,
) -> None:
    with caplog.at_level(logging.ERROR, "qframe"):
        said = post(open_shop(), "http.Raising", data=data)
    assert said.status_code == 422, said.text
    problem = said.json()
    where = "".join(f"{each}: " for each in field)
    assert problem["detail"] == f"HttpRaising: {where}the code of the class raised {kind}"
    assert [each["loc"] for each in problem["errors"]] == [["data", *field]]
    (record,) = caplog.records
    assert f"the code of HttpRaising raised {kind} for a request ({__file__}:" in record.message
    assert "opensesame" not in said.text + caplog.text


def test_who_may_not_dispatch_is_refused(open_shop: Any) -> None:
    client = open_shop()
    assert post(client, headers={}).status_code == 401
    assert post(client, headers={"Authorization": "Bearer wrong"}).status_code == 401
    refused = post(client, headers=AS_OWNER)  # who reads only
    assert (refused.status_code, refused.json()["detail"]) == (403, "you may not dispatch")
    assert queues_of(client).connection().sizes("emails").ready == 0


def test_the_role_does_nothing_else(open_shop: Any) -> None:
    client = open_shop()
    for path in ("/", "/jobs", "/api/v1/jobs", "/api/v1/overview", "/metrics", "/static/app.js"):
        assert client.get(path, headers=AS_SHOP).status_code == 403, path
    act = client.post("/api/v1/actions/clear", json={}, headers=AS_SHOP)
    assert act.status_code == 403
    assert client.get("/api/v1/openapi.json", headers=AS_SHOP).status_code == 200


@pytest.mark.parametrize(
    ("role", "code"),
    [("act", 403), ("dispatch", 403), (["dispatch"], 403), ("read", 403), (["retry"], 403)],
)
def test_a_cookie_dispatches_nothing(open_shop: Any, role: Any, code: int) -> None:
    queues = queues_of(open_shop())
    client = TestClient(app(queues, lambda _: role), base_url="http://localhost")
    assert post(client, headers=FROM_HERE).status_code == code
    bearer = post(client, headers={"Authorization": "Bearer of-the-application"})
    assert bearer.status_code == (201 if "dispatch" in role or role == "act" else 403)


def test_without_a_list_of_jobs_nothing_can_be_dispatched(small: Site) -> None:
    client = small.client()
    assert post(client).status_code == 403
    document = client.get("/api/v1/openapi.json").json()
    assert "post" not in document["paths"]["/api/v1/jobs"]


def test_an_endless_or_hasty_request_is_ended(open_shop: Any) -> None:
    client = open_shop(max_bytes=100, rate="2/h")
    assert post(client, data={"user_id": 7, "day": "x" * 100}).status_code == 413
    assert post(client).status_code == 201
    late = post(client)
    assert late.status_code == 429
    assert int(late.headers["retry-after"]) > 1000
    assert post(client, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_rate_lets_through_what_a_period_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("qframe.web.dispatching.time.monotonic", lambda: now[0])
    rate = Rate("60/m")
    assert [rate.wait("a") > 0 for _ in range(61)] == [False] * 60 + [True]
    assert not rate.wait("b")
    now[0] = 1.5
    assert [rate.wait("a") > 0 for _ in range(2)] == [False, True]


def test_a_payload_beyond_the_connections_limit_is_too_large(open_shop: Any) -> None:
    client = open_shop({"driver": "database", "max_payload": 400})
    assert post(client, data={"user_id": 7, "to": {"street": "x" * 400}}).status_code == 413


def test_a_backend_that_is_away_is_told(open_shop: Any) -> None:
    client = open_shop({"driver": "redis", "url": "redis://127.0.0.1:1/0"})
    said = post(client)
    assert (said.status_code, said.headers["retry-after"]) == (503, "1")


def test_the_document_has_the_schemas_of_what_is_allowed(open_shop: Any) -> None:
    document = open_shop().get("/api/v1/openapi.json", headers=AS_SHOP).json()
    schemas = document["components"]["schemas"]
    assert schemas["http.Welcome"]["required"] == ["user_id"]
    assert schemas["http.Welcome.Address"]["required"] == ["street"]
    assert schemas["http.Welcome.request"]["properties"]["job"] == {"const": "http.Welcome"}
    assert "http.Forbidden" not in str(document)


def test_a_fuzzer_is_answered_as_the_document_says(
    open_shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "TRIES", 10**9)
    page = open_shop(rate="1000000/s").app
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", page, headers=AS_SHOP)
    operation = schema["/api/v1/jobs"]["POST"]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy())
    def holds(case: Any) -> None:
        case.call_and_validate(headers=AS_SHOP, excluded_checks=[positive_data_acceptance])

    holds()
