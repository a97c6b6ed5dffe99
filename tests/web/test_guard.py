"""Guard: an attacker tries each thing the page promises to refuse."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from qframe.operations.actions.table import ACTIONS
from qframe.web import access, app
from qframe.web.access import Passwords, Visitor
from tests.web.conftest import FROM_HERE, Site

PAGES = ["/", "/queues", "/jobs", "/failed", "/workers", "/batches", "/classes", "/metrics"]
DATA = ["/api/v1/overview", "/api/v1/failed", "/api/scale", "/api/v1/openapi.json", "/live?page=/"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202egnp\x1b[31m\x00"


def basic(password: str, name: str = "me") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.parametrize("path", [*PAGES, *DATA, "/static/app.js", "/confirm/retry", "/nothing"])
@pytest.mark.parametrize("authorize", [None, lambda _: "none", lambda _: None, lambda _: "all"])
def test_it_is_closed_until_somebody_is_let_in(small: Site, path: str, authorize: Any) -> None:
    client = small.client(authorize)
    assert client.get(path).status_code == 403
    assert client.post("/actions/retry", headers=FROM_HERE).status_code == 403
    assert client.get("/healthz").text == "ok\n"


def test_an_application_may_answer_later_and_name_who_it_is(
    small: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def authorize(request: Request) -> Visitor:
        return Visitor(f"{request.headers['x-user']}\nforged line", "act")

    small.keep("a")
    client = small.client(authorize)
    caplog.set_level("INFO", "qframe")
    headers = {**FROM_HERE, "x-user": "alice"}
    assert client.post("/actions/retry", data={"uuids": "a"}, headers=headers).status_code == 303
    assert "alice forged line: retry jobs a (1)" in caplog.messages


@pytest.mark.parametrize("role", ["read", (), ["retry"], ["pause", "resume"]])
def test_each_role_does_what_it_may_and_nothing_else(small: Site, role: Any) -> None:
    small.keep("a")
    client = small.client(lambda _: role)
    assert [client.get(path).status_code for path in PAGES] == [200] * len(PAGES)
    may = set(() if role == "read" else role)
    at = {"connection": "database", "queue": "default", "uuids": "a"}
    for name in ACTIONS:
        codes = {
            client.post(f"/actions/{name}", data=at, headers=FROM_HERE).status_code,
            client.post(f"/api/v1/actions/{name}", json={}, headers=FROM_HERE).status_code,
            client.get(f"/confirm/{name}").status_code,
        }
        assert (403 in codes) == (name not in may), (name, codes)
        if name not in may:
            assert codes == {403}
    assert small.failed() == ([] if "retry" in may else ["a"])
    shown = set(re.findall(r"/(?:actions|confirm)/([a-z-]+)", client.get("/queues").text))
    assert shown <= may


ELSEWHERE: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost:81"},
    {"Origin": "http://evil@localhost"},
    {"Origin": "file://localhost"},
    {"Origin": ""},
    {"Referer": "http://localhost/"},
    {"Authorization": "Basic x"},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
def test_what_comes_from_another_site_changes_nothing(small: Site, headers: dict[str, str]) -> None:
    small.keep("a")
    client = small.client()
    for path in ("/actions/retry", "/api/v1/actions/retry"):
        assert client.post(path, data={"uuids": "a"}, headers=headers).status_code == 403
    assert small.failed() == ["a"]


@pytest.mark.parametrize(
    "headers", [FROM_HERE, {"Origin": "http://localhost"}, {"Origin": "http://LOCALHOST:80"}]
)
def test_what_comes_from_the_page_itself_is_done(small: Site, headers: dict[str, str]) -> None:
    small.keep("a")
    done = small.client().post("/actions/retry", data={"uuids": "a"}, headers=headers)
    assert done.status_code == 303
    assert small.failed() == []


def test_looking_changes_nothing(small: Site) -> None:
    small.keep("a")
    client = small.client()
    for name in ACTIONS:
        for path in (f"/actions/{name}", f"/api/v1/actions/{name}"):
            for method in ("GET", "HEAD", "OPTIONS"):
                said = client.request(method, path, params={"uuids": "a"}, headers=FROM_HERE)
                assert said.status_code in {404, 405}
        client.get(f"/confirm/{name}", params={"uuids": "a", "connection": "database"})
    assert small.failed() == ["a"]


@pytest.mark.parametrize("path", [*PAGES, "/api/v1/overview", "/static/app.js", "/nothing"])
def test_each_answer_says_what_a_browser_may_do(small: Site, path: str) -> None:
    client = small.client()
    said = client.get(path)
    policy = said.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    nonce = re.search(r"script-src 'nonce-([\w-]{20,})'", policy)
    assert nonce
    assert nonce[1] not in client.get(path).headers["content-security-policy"]
    assert said.headers["x-frame-options"] == "DENY"
    assert said.headers["x-content-type-options"] == "nosniff"
    assert said.headers["referrer-policy"] == "same-origin"
    assert "access-control-allow-origin" not in said.headers
    if said.headers["content-type"].startswith("text/html"):
        scripts = re.findall(r"<script[^>]*>", said.text)
        assert scripts
        assert all(f'nonce="{nonce[1]}"' in each for each in scripts)
        assert not re.search(r"<[^>]*\s(?:on\w+|style)=", said.text)
        assert not re.search(r'(?:src|href)="(?:https?:)?//', said.text)


def test_a_refusal_says_so_as_well(small: Site) -> None:
    said = small.client(None).get("/")
    assert "frame-ancestors 'none'" in said.headers["content-security-policy"]
    assert said.headers["cache-control"] == "no-store"


def test_text_of_jobs_stays_text(small: Site) -> None:
    message = {"uuid": "h", "displayName": HOSTILE, "job": "app.X", "data": {"a": HOSTILE}}
    payload = json.dumps({**message, "tags": [HOSTILE]}).encode()
    small.queue.push_raw(payload, "default")
    small.keep("h", f"ValueError: {HOSTILE}", payload=payload, name=HOSTILE.replace("\x00", ""))
    client = small.client()
    paths = [*PAGES[:-1], "/jobs/h", "/failed/h", "/failed?by=time"]
    hostile = quote(HOSTILE, safe="")
    attacks = [f"/failed?filter={hostile}", f"/jobs?queue={hostile}", f"/?said={hostile}"]
    attacks += [f"/jobs/{hostile}", f"/jobs?place={hostile}", f"/confirm/retry?back={hostile}"]
    for path in [*paths, *attacks]:
        said = client.get(path)
        assert said.status_code < 500, path
        assert "<script>alert" not in said.text, path
        assert "<img" not in said.text, path
        assert not {"\u202e", "\x1b", "\x00"} & set(said.text), path


SECRETS = ["/static/../access.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py"]
SECRETS += ["/static//etc/passwd", "/static/%00", "/static/app.css%00", "/templates/base.html"]


@pytest.mark.parametrize("path", SECRETS)
def test_no_other_file_is_served(small: Site, path: str) -> None:
    said = small.client().get(path)
    assert said.status_code == 404
    assert "import" not in said.text


@pytest.mark.parametrize(
    "back",
    ["//evil.example", "https://evil.example", "/\\evil.example", "x", "//[", "//[a", "http://["],
)
def test_nothing_leads_to_another_site(small: Site, back: str) -> None:
    client = small.client()
    form = {"connection": "database", "queue": "x", "back": back}
    done = client.post("/actions/pause", data=form, headers=FROM_HERE)
    assert re.match(r"/\?said=", done.headers["location"])
    asked = client.get("/confirm/clear", params=form)
    assert "evil.example" not in "".join(re.findall(r'href="([^"]*)"', asked.text))


# -- passwords ------------------------------------------------------------------------------------


@pytest.fixture
def guarded(small: Site) -> Callable[[], TestClient]:
    """Give what opens a page that asks for a password."""
    passwords = Passwords("a long password", "a-long-token-of-theirs", "act")
    page = app(small.queues, passwords, challenge=True)
    return lambda: TestClient(page, base_url="http://qframe.example", follow_redirects=False)


def test_who_has_the_password_or_the_token_comes_in(guarded: Callable[[], TestClient]) -> None:
    client = guarded()
    asked = client.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert client.get("/", headers=basic("a long password")).status_code == 200
    token = {"Authorization": "Bearer a-long-token-of-theirs"}
    assert client.get("/", headers=token).status_code == 200
    done = client.post("/api/v1/actions/retry", json={"uuids": ["a"]}, headers=token)
    assert done.status_code == 200


WRONG = [basic("a long passwor"), basic(""), basic("a-long-token-of-theirs")]
WRONG += [{"Authorization": each} for each in ("Basic !", "Basic /w==", "Bearer x", "Digest a")]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_who_has_neither_does_not(
    guarded: Callable[[], TestClient], headers: dict[str, str]
) -> None:
    client = guarded()
    assert client.get("/", headers=headers).status_code == 401
    assert client.get("/?password=a+long+password&token=a-long-token-of-theirs").status_code == 401


@pytest.mark.parametrize("kind", ["password", "token"])
def test_what_is_given_is_compared_in_constant_time(
    guarded: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def spy(given: bytes, wanted: bytes) -> bool:
        compared.append((given, wanted))
        return compare(given, wanted)

    monkeypatch.setattr("qframe.web.access.hmac.compare_digest", spy)
    right = {"password": "a long password", "token": "a-long-token-of-theirs"}[kind]
    client = guarded()
    for given, code in ((right, 200), ("wrong", 401)):
        token = {"Authorization": f"Bearer {given}"}
        headers = basic(given) if kind == "password" else token
        assert client.get("/", headers=headers).status_code == code
    digests = [hashlib.sha256(each.encode()).digest() for each in (right, "wrong")]
    assert compared == [(each, digests[0]) for each in digests]


def test_guessing_is_slowed_down(
    guarded: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, clock = guarded(), [1000.0]
    monkeypatch.setattr("qframe.web.access.time.monotonic", lambda: clock[0])
    for number in range(access.TRIES):
        assert client.get("/", headers=basic(f"wrong {number}")).status_code == 401
    refused = client.get("/", headers=basic("a long password"))
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "10"
    clock[0] += 11
    assert client.get("/", headers=basic("wrong again")).status_code == 401
    clock[0] += 11
    assert client.get("/", headers=basic("a long password")).status_code == 429
    clock[0] += 10
    assert client.get("/", headers=basic("a long password")).status_code == 200
    assert client.get("/", headers=basic("wrong")).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "10.0.0.1"])
def test_without_a_password_a_name_that_leads_here_is_not_enough(small: Site, host: str) -> None:
    client = small.client(local=True)
    headers = {"Host": host, **FROM_HERE}
    assert client.get("/", headers=headers).status_code == 421
    form = {"connection": "database", "queue": "x"}
    assert client.post("/actions/pause", data=form, headers=headers).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8470", "127.0.0.1:8470", "[::1]:8470"])
def test_this_machine_is_let_in(small: Site, host: str) -> None:
    assert small.client(local=True).get("/", headers={"Host": host}).status_code == 200


def test_a_body_without_end_is_refused(small: Site) -> None:
    client = small.client()
    for path in ("/actions/pause", "/api/v1/actions/pause"):
        said = client.post(path, content=b"x" * 300_000, headers=FROM_HERE)
        assert said.status_code == 413


def test_wrong_tokens_keep_out_neither_the_password_nor_the_token(
    guarded: Callable[[], TestClient],
) -> None:
    client = guarded()
    wrong = [{"Authorization": f"Bearer wrong {number}"} for number in range(access.TRIES + 3)]
    codes = [client.get("/", headers=each).status_code for each in wrong]
    assert codes == [401] * access.TRIES + [429] * 3
    assert client.get("/", headers=basic("a long password")).status_code == 200
    right = {"Authorization": "Bearer a-long-token-of-theirs"}
    assert client.get("/", headers=right).status_code == 200
    assert client.get("/", headers=wrong[0]).status_code == 429


def test_wrong_passwords_do_not_keep_out_the_token(guarded: Callable[[], TestClient]) -> None:
    client = guarded()
    for number in range(access.TRIES + 1):
        client.get("/", headers=basic(f"wrong {number}"))
    assert client.get("/", headers=basic("a long password")).status_code == 429
    right = {"Authorization": "Bearer a-long-token-of-theirs"}
    assert client.get("/", headers=right).status_code == 200
