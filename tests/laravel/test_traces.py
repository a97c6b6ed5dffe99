"""A trace that begins in PHP, goes through Python and PHP again, and ends in Python."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.laravel.application import Application
from tests.support.pages import docs_page

DOCS = docs_page("observability.md")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACED = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from qframe import Queueable, dispatch, foreign

def line(span):
    context, parent = span.get_span_context(), span.parent
    return json.dumps([span.name, f"{context.trace_id:032x}", f"{context.span_id:016x}",
        parent and f"{parent.span_id:016x}"]) + "\\n"

def start():
    provider = TracerProvider()
    out = open("spans", "a", buffering=1)
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
    trace.set_tracer_provider(provider)

class First(Queueable):
    def handle(self):
        data = {"php_fails": 1, "push": "app.traced.Last"}
        dispatch(foreign("App\\\\Handlers\\\\Import@handle", data, tries=2)).on_queue("php").send()

class Last(Queueable):
    def handle(self):
        pass
"""
SETTINGS = {
    "QFRAME_JOBS": '["app.traced"]',
    "QFRAME_OTEL__ENABLED": "true",
    "QFRAME_OTEL__SETUP": "app.traced:start",
    "QFRAME_OTEL__RELATION": "child",
}


@pytest.fixture(params=["redis", "beanstalkd", "postgresql"])
def app(request: pytest.FixtureRequest) -> Application:
    made: Application
    if request.param == "redis":
        made = request.getfixturevalue("make")("laravel_database_")
    elif request.param == "beanstalkd":
        made = request.getfixturevalue("make_on_beanstalkd")()
    else:
        made = request.getfixturevalue("make_on_database")(request.param)
    (snippet,) = re.findall(r"```php\n(use Illuminate.*?)```", DOCS.read_text(), re.DOTALL)
    made.php_options["provider"] = str(made.write("provider.php", f"<?php\n{snippet}"))
    made.write("app/traced.py", TRACED)
    return made


def spans(app: Application) -> list[list[Any]]:
    return [json.loads(line) for line in (app.root / "spans").read_text().splitlines()]


def test_a_trace_goes_through_laravel_and_back(app: Application) -> None:
    steps = json.dumps([["push", "app.traced.First"]])
    request = {"HTTP_TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
    pushed = app.php("push.php", steps, environment=request).finished()
    assert pushed.code == 0, pushed.out + pushed.err
    for queue in ("default", "php", "default"):
        if queue == "php":
            app.php_drains(queue, tries=2)
        else:
            worker = app.work("--stop-when-empty", environment=SETTINGS).finished()
            assert worker.code == 0, worker.out + worker.err
    (sent, _, send, by), (first, _, process, origin), (last, _, _, parent) = spans(app)
    assert [sent, first, last] == ["send php", "process default", "process default"]
    assert (origin, by, parent) == (PARENT, process, send)
    assert {trace for _, trace, *_ in spans(app)} == {TRACE}
    starts = app.entries("start", side="php")
    assert [entry["attempts"] for entry in starts] == [1, 2], "also when Laravel tries it again"
    assert {entry["traceparent"] for entry in starts} == {f"00-{TRACE}-{send}-01"}
