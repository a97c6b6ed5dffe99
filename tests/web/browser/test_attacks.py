"""Browser: what a page of somebody else, and text of jobs, can do in a real one: nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qframe import batch, manager
from qframe.contracts import FailedJob, History
from tests.support.process import Project
from tests.web.browser.batched import Fails
from tests.web.browser.conftest import Open, begin, serve, working
from tests.web.test_attacks import BREAKOUT, wrong_tags

pytestmark = pytest.mark.slow

TEXTS = [
    BREAKOUT,
    "javascript:window.pwned=1",
    "</script></pre></textarea></title><svg onload=window.pwned=1>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "\u202e<details open ontoggle=window.pwned=1>",
]


@pytest.fixture
def stranger() -> Iterator[Callable[[str], int]]:
    """Give what serves a page of somebody else, at the port that it gives."""
    servers: list[ThreadingHTTPServer] = []

    def serve_it(page: str) -> int:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield serve_it
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # same site; another site
def test_a_form_of_somebody_else_changes_nothing(
    plain: Project, open_window: Open, stranger: Callable[[str], int], host: str
) -> None:
    plain.push("Quick", queue="mail")
    address = serve(plain)
    fields = "".join(
        f'<input name="{key}" value="{value}">'
        for key, value in {"connection": "database", "queue": "mail"}.items()
    )
    port = stranger(f'<form method="post" action="{address}/actions/clear">{fields}</form>')
    window = open_window(address)
    page = window.page
    page.goto(f"http://{host}:{port}/")
    with page.expect_response("**/actions/clear") as answered:
        page.evaluate("document.forms[0].submit()")
    assert answered.value.status == 403
    page.wait_for_url("**/actions/clear")
    page.goto(f"http://{host}:{port}/")
    outcome = page.evaluate(
        """async (address) => {
            const tried = [];
            const body = "connection=database&queue=mail";
            for (const mode of ["no-cors", "cors"]) {
                for (const path of ["/actions/clear", "/api/v1/actions/clear"]) {
                    try {
                        const said = await fetch(address + path, { method: "POST", mode, body });
                        tried.push(said.type);
                    } catch (error) { tried.push("refused"); }
                }
            }
            try {
                await fetch(address + "/api/v1/queues").then((each) => each.text());
                tried.push("read");
            } catch (error) { tried.push("refused"); }
            return tried;
        }""",
        address,
    )
    assert "read" not in outcome
    assert set(outcome) <= {"opaque", "refused"}
    assert plain.sizes("mail").ready == 1


def test_it_is_not_shown_in_a_frame(
    plain: Project, open_window: Open, stranger: Callable[[str], int]
) -> None:
    address = serve(plain)
    port = stranger(f'<iframe src="{address}/queues"></iframe>')
    window = open_window(address)
    with window.page.expect_console_message(lambda each: "frame-ancestors" in each.text):
        window.page.goto(f"http://127.0.0.1:{port}/")
    assert window.page.frame_locator("iframe").locator("nav").count() == 0


def test_no_text_of_a_job_runs(plain: Project, open_window: Open) -> None:
    for number, text in enumerate(TEXTS):
        data = {text: text, "deep": [{text: [text]}], "long": text * 300}
        body = {"uuid": f"w-{number}", "displayName": text, "job": text, "data": data}
        body |= {"tags": [text], "chain": [text], "batchId": text}
        raw = json.dumps(body)
        plain.queue.push_raw(raw, "mail")
        error = f'Traceback (most recent call last):\n  File "{text}", line 3, in {text}\n{text}'
        record = FailedJob(
            uuid=f"f-{number}",
            connection=text,
            queue=text,
            payload=raw.encode(),
            name=text,
            exception=error,
            attempts=1,
            failed_at=time.time(),
            history=History(),
        )
        plain.queue.failed.add(record)
    manager.use(plain.manager)
    begin(batch([Fails(number=1)]).name(BREAKOUT).on_queue("x"))
    manager.use(None)
    working(plain, "--queue", "nothing", "--name", "<b onclick=x>'\"")
    window = open_window(plain)
    page = window.go("/")
    page.add_init_script("window.pwned = 0")
    paths = ["/", "/queues", "/jobs?queue=mail", "/failed", "/failed?by=time", "/workers"]
    paths += ["/batches", "/classes", *(f"/failed/f-{each}" for each in range(len(TEXTS)))]
    paths += [f"/jobs/w-{each}?queue=mail" for each in range(len(TEXTS))]
    for path in paths:
        with page.expect_response(lambda each: "/live?" in each.url):
            window.go(path)
        page.wait_for_function("document.getElementById('lost') !== null")
        assert page.evaluate("window.pwned") == 0, path
        assert wrong_tags(page.content()) == [], path
        assert "<script>" in window.text() or path not in {"/failed", "/batches"}
    window.is_clean()


def test_its_policy_stops_what_is_put_into_it(plain: Project, open_window: Open) -> None:
    window = open_window(plain)
    page = window.go("/")
    with page.expect_event("requestfailed", lambda each: each.url.endswith("/x")) as refused:
        page.evaluate(
            """() => {
            const script = document.createElement("script");
            script.textContent = "window.pwned = 1";
            document.body.append(script);
            const box = document.createElement("div");
            box.innerHTML = "<img src='http://127.0.0.1:1/x' onerror='window.pwned = 2'>";
            document.body.append(box);
        }"""
        )
    assert refused.value.failure == "csp"
    with page.expect_console_message(lambda each: "Content Security Policy" in each.text):
        page.evaluate("document.body.append(document.createElement('style'))")
        page.evaluate("document.querySelector('style').textContent = 'body { color: red }'")
    assert page.evaluate("window.pwned") is None


def test_a_password_is_asked_for_and_is_in_no_address(plain: Project, open_window: Open) -> None:
    plain.configure('[web]\npassword = "a long password"', driver="database")
    credentials = {"username": "ann", "password": "a long password"}
    address = serve(plain)
    assert open_window(address).page.request.get(f"{address}/").status == 401
    window = open_window(address, http_credentials=credentials)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    page = window.go("/queues")
    page.get_by_role("button", name="Pause").first.click()
    window.sees("paused default of database")
    assert asked
    assert not [each for each in asked if "password" in each or "ann" in each]
