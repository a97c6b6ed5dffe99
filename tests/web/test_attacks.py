"""Attacks: what somebody tries who may not, beyond what the guard's own tests say."""

from __future__ import annotations

import asyncio
import base64
import html
import importlib
import json
import re
import socket
import string
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from qframe.operations.actions.table import ACTIONS
from qframe.web import access, app
from qframe.web.access import LockedOut, Passwords
from qframe.web.api import ENDPOINTS
from qframe.web.pages import PAGES
from tests.support import requests
from tests.support.marks import slow
from tests.support.process import Project
from tests.web.conftest import FROM_HERE, Site
from tests.web.test_command import address_of

READ = [re.sub(r"\{\w+\}", "a", each) for each in PAGES]
READ += [re.sub(r"\{\w+\}", "a", f"/api{each}") for each in ENDPOINTS]
READ += ["/metrics", "/static/app.css", "/static/icon.svg", "/api/v1/openapi.json"]
READ += [f"/confirm/{each}" for each in ACTIONS]
BREAKOUT = "\"'><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"


def state(site: Site) -> object:
    """Give all that an action could change."""
    store = site.queue.store
    keys = sorted(store.keys(""))
    values = dict(zip(keys, store.get(*keys), strict=True)) if keys else {}
    return site.failed(), site.queue.sizes("default"), site.queue.sizes("mail"), values


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Project]:
    """Give a project on SQLite."""
    with Project(tmp_path, driver="database") as made:
        yield made


# -- requests that were not meant ------------------------------------------------------------------


OVERRIDES = [
    {"X-HTTP-Method-Override": "POST"},
    {"X-HTTP-Method": "POST"},
    {"X-Method-Override": "POST"},
]
EVERYTHING = {"uuids": "a", "filter": "", "cause": "a", "connection": "database", "queue": "mail"}
EVERYTHING |= {"id": "a", "number": "3", "place": "ready", "_method": "POST"}


@pytest.mark.slow
def test_no_get_of_any_route_changes_anything(small: Site) -> None:
    small.keep("a")
    small.queue.push_raw("{}", "mail")
    client = small.client()
    client.get("/")
    before = state(small)
    paths = [*READ, *(f"/actions/{each}" for each in ACTIONS)]
    paths += [f"/api/v1/actions/{each}" for each in ACTIONS]
    for path in paths:
        for headers in OVERRIDES:
            for method in ("GET", "HEAD"):
                given = {**headers, **FROM_HERE}
                said = client.request(method, path, params=EVERYTHING, headers=given)
                assert said.status_code < 500
    assert state(small) == before


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND"])
def test_no_other_method_does_anything(small: Site, method: str) -> None:
    small.keep("a")
    client = small.client()
    for path in ("/actions/forget", "/api/v1/actions/forget", "/failed", "/api/v1/failed"):
        said = client.request(method, path, params=EVERYTHING, headers=FROM_HERE)
        assert said.status_code == 405
    assert small.failed() == ["a"]


TYPES = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"]
TYPES += ["application/json", ""]


@pytest.mark.parametrize("kind", TYPES)
def test_no_type_of_content_gets_by_without_an_origin(small: Site, kind: str) -> None:
    small.keep("a")
    client = small.client()
    bodies = {"/actions/forget": "uuids=a", "/api/v1/actions/forget": '{"uuids": ["a"]}'}
    for path, body in bodies.items():
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {}):
            given = {**headers, "Content-Type": kind}
            assert client.post(path, content=body, headers=given).status_code == 403
    assert small.failed() == ["a"]


# -- who may what ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READ)
def test_nobody_reads_anything(small: Site, path: str) -> None:
    for authorize in (lambda _: "none", lambda _: None):
        said = small.client(authorize).get(path)
        assert (said.status_code, said.text) == (403, "forbidden\n")
    # what would never end is not begun
    assert small.client(lambda _: "none").get("/live?page=/").status_code == 403


@pytest.mark.parametrize(
    "may", ["read", "retry", *slow(*(each for each in ACTIONS if each != "retry"))]
)
def test_who_may_one_thing_may_no_other(small: Site, may: str) -> None:
    client = small.client(lambda _: "read" if may == "read" else {may})
    before = state(small)
    for name in set(ACTIONS) - {may}:
        asked = [
            client.post(f"/actions/{name}", data=EVERYTHING, headers=FROM_HERE),
            client.post(f"/api/v1/actions/{name}", json={"uuids": ["a"]}, headers=FROM_HERE),
            client.get(f"/confirm/{name}", params=EVERYTHING),
        ]
        assert {each.status_code for each in asked} == {403}, name
    assert state(small) == before
    assert [client.get(path).status_code for path in READ if "confirm" not in path].count(403) == 0
    for path in ("/queues", "/failed?by=time", "/workers", "/jobs"):
        shown = re.findall(r"/(?:actions|confirm)/([a-z-]+)", client.get(path).text)
        assert set(shown) - {"retry", "cancel"} <= {may}


# -- guessing --------------------------------------------------------------------------------------


def asking(address: str, password: str, **headers: str) -> Request:
    basic = base64.b64encode(f"me:{password}".encode()).decode()
    given = {"authorization": f"Basic {basic}", **headers}
    raw = [(key.encode(), value.encode()) for key, value in given.items()]
    return Request({"type": "http", "headers": raw, "client": (address, 1)})


def test_many_guesses_at_once_are_no_more_than_a_few() -> None:
    passwords = Passwords("a long password", None, "act")
    together, results = threading.Barrier(16), []

    def guess(number: int) -> None:
        together.wait()
        for each in range(20):
            try:
                passwords(asking("10.0.0.1", f"wrong {number} {each}"))
                results.append("looked at")
            except LockedOut:
                results.append("refused")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(guess, range(16)))
    assert results.count("looked at") == access.TRIES


@pytest.mark.parametrize(
    ("of", "is_one"),
    [("2001:db8:1:2::{:x}", True), ("::ffff:10.0.0.1", True), ("10.0.{}.7", False)],
)
def test_who_has_a_network_of_version_6_is_one_guesser(of: str, is_one: bool) -> None:
    passwords = Passwords("a long password", None, "act")
    refused = 0
    for number in range(30):
        try:
            passwords(asking(of.format(number), "wrong"))
        except LockedOut:
            refused += 1
    assert refused == (25 if is_one else 0)


def test_what_is_remembered_of_guessers_is_bounded() -> None:
    passwords = Passwords("a long password", None, "act")
    for number in range(access._MOST_ADDRESSES + 500):
        passwords(asking(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "wrong"))
    assert len(passwords._wrong) == access._MOST_ADDRESSES


def test_a_forged_address_does_not_make_a_new_guesser(plain: Project) -> None:
    plain.configure('[web]\npassword = "a long password"', driver="database")
    address = address_of(plain.start("web", "--port", 0))
    codes = []
    for number in range(access.TRIES + 3):
        forged = {"X-Forwarded-For": f"10.0.0.{number}", "X-Real-IP": f"10.0.0.{number}"}
        forged["Forwarded"] = f"for=10.0.0.{number}"
        said = requests.get(address, auth=("me", f"wrong {number}"), headers=forged)
        codes.append(said.status_code)
    assert codes == [401] * access.TRIES + [429] * 3


# -- a server that is held up ----------------------------------------------------------------------


def test_half_requests_keep_nobody_out(plain: Project) -> None:
    address = address_of(plain.start("web", "--port", 0))
    port = urlsplit(address).port
    assert port
    halves = []
    try:
        for number in range(100):
            each = socket.create_connection(("127.0.0.1", port), 5)
            halves.append(each)
            if number % 2:
                each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            else:
                each.sendall(
                    b"POST /actions/pause HTTP/1.1\r\nHost: localhost\r\n"
                    b"Sec-Fetch-Site: same-origin\r\nContent-Length: 100\r\n\r\nqueue"
                )
        assert requests.get(f"{address}/queues").status_code == 200
        huge = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000
        with socket.create_connection(("127.0.0.1", port), 5) as one:
            try:
                one.sendall(huge)
                said = one.recv(100)
            except ConnectionError:
                said = b""
        assert said == b"" or b" 400 " in said or b" 431 " in said
    finally:
        for each in halves:
            each.close()


def test_a_body_that_does_not_come_is_not_waited_for(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("qframe.web.app"), "_BODY_WITHIN", 0.05)
    scope = {"type": "http", "method": "POST", "path": "/actions/pause", "query_string": b""}
    scope |= {"headers": [(b"sec-fetch-site", b"same-origin")], "root_path": ""}
    said: list[int] = []

    async def receive() -> Any:
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        said.append(message.get("status"))

    page: Any = app(small.queues, lambda _: "act")
    asyncio.run(asyncio.wait_for(page(scope, receive, send), 30))
    assert said[0] == 408


# -- text of jobs ----------------------------------------------------------------------------------


_LINKS = {"href", "src", "action", "formaction", "data-live"}


class _Tags(HTMLParser):
    """Notes what tags and attributes a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"img", "iframe", "object", "embed", "base", "style"}:
            self.wrong.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.wrong.append(f"{tag} {name}")
            if name in _LINKS and value and not re.match(r"#|/(?!/)", value):
                self.wrong.append(f"{tag} {name}={value}")
        if tag == "script" and ("nonce" not in dict(attrs) or "src" not in dict(attrs)):
            self.wrong.append("script")


def wrong_tags(text: str) -> list[str]:
    found = _Tags()
    found.feed(text)
    return found.wrong


def test_what_finds_wrong_tags_does() -> None:
    assert wrong_tags(BREAKOUT) == ["script", "img", "img src=x", "img onerror"]
    assert wrong_tags('<a href="javascript:x">') == ["a href=javascript:x"]
    assert wrong_tags(html.escape(BREAKOUT)) == []


HOSTILE = [
    BREAKOUT,
    "javascript:window.pwned=1",
    "</pre></td></table><script>window.pwned=1</script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202e\u2066\u200b\ufeff\u0085\u2028",
    "a\r\nSet-Cookie: x=1\r\n\r\n<script>window.pwned=1</script>",
    "&lt;script&gt;&#34;&#x27;",
    '<th scope="col">x</th></table><table><tbody><tr><td>',
    "x" * 20_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_field_of_a_job_gets_out_of_its_place(small: Site, text: str) -> None:
    body = {text: text, "n": [text, {text: [text]}]}
    payload = {"uuid": text[:60], "displayName": text, "job": text, "data": body, "tags": [text]}
    payload |= {"chain": [text], "batchId": text, "queue": text, text: text, "createdAt": text}
    raw = json.dumps(payload).encode()
    small.queue.push_raw(raw, "default")
    small.queue.push_raw(raw, "default", 600)
    trace = f'Traceback (most recent call last):\n  File "{text}", line 3, in {text}\n'
    more = {"payload": raw, "name": text, "connection": text, "queue": text}
    small.keep(text[:60], f"{trace}{text}: {text}", **more)
    client = small.client()
    cause = client.get("/api/v1/causes").json()["causes"][0]["cause"]
    paths = ["/", "/queues", "/jobs", "/jobs?place=delayed", "/failed", "/failed?by=time"]
    paths += [f"/failed?filter=cause:{cause}", "/workers", "/classes", "/metrics"]
    pages = {path: client.get(path) for path in paths}
    links = re.findall(r'href="(/(?:jobs|failed)/[^"]+)"', "".join(p.text for p in pages.values()))
    pages |= {link: client.get(html.unescape(link)) for link in set(links)}
    assert links
    for path, said in pages.items():
        assert said.status_code in {200, 404}, path
        assert wrong_tags(said.text) == [], path
        assert not set("\u202e\u2066\u200b\ufeff\u0085\u2028") & set(said.text), path
        assert "set-cookie" not in said.headers
    for path in ("/api/v1/failed", "/api/v1/jobs", "/api/v1/causes"):
        said = client.get(path)
        assert said.headers["content-type"] == "application/json"
        assert said.headers["x-content-type-options"] == "nosniff"


def test_names_of_workers_and_connections_are_text(open_site: Callable[..., Site]) -> None:
    site = open_site(**{BREAKOUT: {"driver": "database"}})
    site.keep("a")
    site.queue.push_raw("{}", "default")
    client = site.client()
    for path in ("/", "/queues", "/jobs", "/failed", "/jobs?place=buried", "/classes", "/workers"):
        assert wrong_tags(client.get(path).text) == [], path
    site.queue.push_raw('{"uuid": "u"}', "default")
    for path in set(re.findall(r'href="(/[^"#]+)"', client.get("/jobs").text)):
        assert client.get(html.unescape(path)).status_code == 200, path


@pytest.mark.parametrize(
    "back",
    [
        "/queues\r\nSet-Cookie: a=b",
        "//evil.example/",
        "/\t/evil.example",
        "/\\evil.example",
        "/%2f%2fevil.example",
        "/queues?x=\r\nLocation: http://evil.example",
        "javascript:alert(1)",
        "/.//evil.example",
        "/queues/..//evil.example",
        "///evil.example",
    ],
)
def test_no_return_address_leads_elsewhere_or_adds_a_header(small: Site, back: str) -> None:
    client = small.client()
    form = {"connection": "database", "queue": "x", "back": back}
    said = client.post("/actions/pause", data=form, headers=FROM_HERE)
    assert said.status_code == 303
    where = said.headers["location"]
    assert re.match(r"/[^/\\]|/$", where)
    assert not re.search(r"[\r\n\t]", where)
    assert "set-cookie" not in said.headers
    assert wrong_tags(client.get("/confirm/clear", params=form).text) == []
    named = {**form, "queue": "x\r\nSet-Cookie: a=b"}
    assert client.post("/actions/pause", data=named, headers=FROM_HERE).status_code == 422


@pytest.mark.parametrize("path", ["/jobs/a%00", "/failed/%00", "/batches/%00"])
def test_what_no_text_can_hold_is_nowhere(site: Site, path: str) -> None:
    client = site.client()
    assert client.get(path).status_code == 404
    api = [f"/api/v1{path}", "/api/v1/jobs?after=%00", "/api/v1/failed?filter=class:%00"]
    for each in api:
        assert client.get(each).status_code in {404, 422}, each
    for name in ("retry", "cancel", "cancel-batch", "pause", "stop-worker"):
        wanted = {"uuids": ["\0"], "id": "\0", "queue": "\0", "connection": site.queue.name}
        said = client.post(f"/api/v1/actions/{name}", json=wanted, headers=FROM_HERE)
        assert said.status_code == 422
        said = client.post(f"/actions/{name}", data=wanted, headers=FROM_HERE)
        assert said.status_code == 422


# -- a fuzz of every parameter ---------------------------------------------------------------------

_ODD = st.sampled_from([*HOSTILE[:-1], "", "0", "-1", "nan", "inf", "1e999", "\x00", "%", '"'])
_FILTER = st.sampled_from(
    ["queue:", "class:a*", "older:5m", "args.a:1", "cause:x", "error:[", "tag:"]
)
_TEXT = st.one_of(_ODD, _FILTER, st.text(max_size=40), st.text(string.punctuation, max_size=20))
_KEYS = ["filter", "after", "queue", "connection", "place", "by", "hours", "said", "page", "back"]
_KEYS += ["uuids", "cause", "id", "seconds", "number", "limit", "colour"]
_KEY = st.sampled_from(_KEYS)
_PAIRS = st.lists(st.tuples(_KEY, _TEXT), max_size=5)
_MANY = settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)


def fuzzed(site: Site, examples: int) -> None:
    site.keep("a")
    site.queue.push_raw('{"uuid": "u", "job": "app.A", "data": {"a": 1}}')
    client = site.client(live=False)
    paths = st.sampled_from([*PAGES, *(f"/confirm/{each}" for each in ACTIONS), "/live"])

    @settings(_MANY, max_examples=examples)
    @given(path=paths, pairs=_PAIRS, part=_TEXT)
    def pages(path: str, pairs: list[tuple[str, str]], part: str) -> None:
        filled = re.sub(r"\{\w+\}", lambda _: quote(part, safe="") or "a", path)
        address = f"{filled}?{urlencode(pairs, errors='surrogatepass')}"
        said = client.get(address)
        assert said.status_code in {200, 307, 404, 422}, said.text
        if said.headers.get("content-type", "").startswith("text/html"):
            assert wrong_tags(said.text) == []

    @settings(_MANY, max_examples=examples)
    @given(name=st.sampled_from(sorted(ACTIONS)), pairs=_PAIRS)
    def forms(name: str, pairs: list[tuple[str, str]]) -> None:
        body = str(httpx2.QueryParams([*pairs]))
        given = {**FROM_HERE, "Content-Type": "application/x-www-form-urlencoded"}
        said = client.post(f"/actions/{name}", content=body, headers=given)
        assert said.status_code in {303, 422}, said.text
        if said.status_code == 422:
            assert wrong_tags(said.text) == []
        else:
            assert re.match(r"/[^/\\]|/$", said.headers["location"])

    @settings(_MANY, max_examples=examples)
    @given(name=st.sampled_from(sorted(ACTIONS)), body=st.one_of(st.binary(max_size=60), _PAIRS))
    def bodies(name: str, body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(dict(body)).encode()
        said = client.post(f"/api/v1/actions/{name}", content=content, headers=FROM_HERE)
        assert said.status_code in {200, 422}, said.text
        assert said.headers["content-type"] == "application/json"

    for fuzz in (pages, forms, bodies):
        fuzz()


def test_a_fuzz_of_every_parameter_finds_nothing(small: Site) -> None:
    fuzzed(small, 60)


@pytest.mark.slow
def test_a_long_fuzz_of_every_parameter_finds_nothing(site: Site) -> None:
    fuzzed(site, 250)


def test_the_page_sets_no_cookie_and_takes_none(small: Site) -> None:
    page = app(small.queues, Passwords("a long password", None, "act"), challenge=True)
    client = TestClient(page, base_url="http://qframe.example", follow_redirects=False)
    secret = base64.b64encode(b"me:a long password").decode()
    for path in ("/", "/queues", "/failed", "/api/v1/overview"):
        said = client.get(path, headers={"Authorization": f"Basic {secret}"})
        assert said.status_code == 200
        assert "set-cookie" not in said.headers
        assert "a long password" not in said.text
        assert secret not in said.text
        assert client.get(path, headers={"Cookie": f"auth={secret}"}).status_code == 401
