"""The code of observability.md, and what each SDK would have sent of a job that fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT, docs_page

pytestmark = pytest.mark.slow  # the imports of these SDKs take seconds

PAGE = docs_page("observability.md")
VENDORS = Path(sys.prefix) / "vendors"
"""What `make test-all` installs apart: installed, it loads with every import of pydantic."""
JOBS = """
import structlog
from opentelemetry import trace
from qframe import Queueable

def query():
    return trace.get_tracer("app").start_as_current_span("query")

class Charge(Queueable):
    order: int

    def handle(self) -> None:
        structlog.get_logger().warning("charging")
        with query():
            raise LookupError("no such order")
"""
WORK = """
import json
from qframe import QueueManager, dispatch, manager
from qframe import Worker, WorkerOptions
import telemetry, jobs
{before}
queues = QueueManager({{
    "default": "memory", "jobs": ["jobs"],
    "otel": {{"enabled": True, "setup": "telemetry:start"}},
}})
manager.use(queues)
uuid = dispatch(jobs.Charge(order=13)).on_queue("mail").send()
Worker(queues, WorkerOptions(queues=("mail",), stop_when_empty=True)).run()
{after}
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Give what runs a section's code with a job that fails, and what it printed."""

    def go(section: str, before: str = "", after: str = "", **environment: str) -> list[str]:
        path = [str(ROOT)]
        if section in {"logfire", "ddtrace"}:
            if not VENDORS.exists() and "CI" not in os.environ:
                pytest.skip("`make test-all` installs it")
            path.append(str(VENDORS))
        found = re.search(rf"```python {section}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        assert found is not None, section
        (tmp_path / "telemetry.py").write_text(found[1])
        (tmp_path / "jobs.py").write_text(JOBS)
        (tmp_path / "main.py").write_text(WORK.format(before=before, after=after))
        done = subprocess.run(
            [sys.executable, "main.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return go


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """Give the address of a collector, and what it was sent, by path."""
    got: dict[str, list[bytes]] = {}

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got.setdefault(self.path, []).append(body)
            self.send_response(200)
            self.end_headers()

        do_PUT = do_GET = do_POST  # noqa: N815 (the library's own)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_is_sent_spans_and_metrics(run: Any, collector: Any) -> None:
    address, got = collector
    run(
        "otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=address,
        OTEL_EXPORTER_OTLP_COMPRESSION="none",
        NO_PROXY="127.0.0.1",
    )
    spans = b"".join(got["/v1/traces"])
    for text in (b"send mail", b"process mail", b"jobs.Charge", b"no such order"):
        assert text in spans
    assert b"messaging.process.duration" in b"".join(got["/v1/metrics"])


def test_datadogs_agent_is_sent_spans_by_ddtrace(run: Any, collector: Any) -> None:
    address, got = collector
    before = """
from ddtrace.trace import TraceFilter, tracer
kept = []
class Keep(TraceFilter):
    def process_trace(self, spans):
        kept.extend(spans)
        return spans
tracer.configure(trace_processors=[Keep()])
jobs.query = lambda: tracer.trace("query")  # as its integrations do
"""
    after = """
import os, sys
from opentelemetry import trace
from qframe.jobs.tracing import active
names = {span.span_id: span.resource for span in kept}
print(json.dumps([[span.resource, names.get(span.parent_id), span.error] for span in kept]))
sys.stdout.flush()
trace.get_tracer("app").start_span("of an isolated job").end()
active.tracing.leaving()
os._exit(0)
"""
    lines = run(
        "ddtrace",
        before,
        after,
        DD_TRACE_AGENT_URL=address,
        DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
        DD_REMOTE_CONFIGURATION_ENABLED="false",
        PYDANTIC_DISABLE_PLUGINS="__all__",  # Logfire's, which imports OpenTelemetry
        NO_PROXY="127.0.0.1",
    )
    sent = b"".join(body for path, bodies in got.items() if "traces" in path for body in bodies)
    for text in (b"send mail", b"process mail", b"jobs.Charge", b"no such order", b"isolated job"):
        assert text in sent
    assert b"_dd.span_links" in sent, "the attempt to its dispatch"
    assert json.loads(lines[-1]) == [
        ["send mail", None, 0],
        ["process mail", None, 1],
        ["query", "process mail", 1],
    ]


def test_sentry_is_told_of_the_failure_within_its_trace(run: Any) -> None:
    before = """
from sentry_sdk.transport import Transport
class Kept(Transport):
    got = []
    def capture_envelope(self, envelope):
        Kept.got.append(envelope)
import sentry_sdk
real = sentry_sdk.init
telemetry.sentry_sdk.init = lambda **more: real(**{**more, "transport": Kept,
    "dsn": "http://key@127.0.0.1:9/1", "integrations": [
        telemetry.OTLPIntegration(setup_otlp_traces_exporter=False)]})
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
"""
    after = """
(event,) = [e.get_event() for e in Kept.got if e.get_event() and e.get_event().get("exception")]
(attempt,) = [s for s in spans.get_finished_spans() if s.name == "process mail"]
print(json.dumps([event["exception"]["values"][-1]["type"], event["tags"], uuid,
    event["contexts"]["trace"]["trace_id"], trace.format_trace_id(attempt.context.trace_id)]))
"""
    kind, tags, uuid, theirs, ours = json.loads(run("sentry", before, after)[-1])
    assert kind == "LookupError"
    assert (tags["job_uuid"], tags["job_name"]) == (uuid, "jobs.Charge")
    assert tags["job_queue"] == "mail"
    assert theirs == ours == tags["trace_id"]


def test_logfire_sees_the_spans(run: Any) -> None:
    before = """
import logfire
from logfire.testing import TestExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
kept, real = TestExporter(), logfire.configure
telemetry.logfire.configure = lambda **more: real(**more, send_to_logfire=False, console=False,
    additional_span_processors=[SimpleSpanProcessor(kept)])
"""
    after = """
print(json.dumps([[s["name"], s["attributes"].get("qframe.job.outcome"),
    [e["name"] for e in s.get("events", [])]] for s in kept.exported_spans_as_dict()]))
"""
    seen = json.loads(run("logfire", before, after)[-1])
    assert ["process mail", "failed", ["exception"]] in seen
    assert {"send mail", "query"} < {name for name, *_ in seen}


def test_structlog_has_the_job_and_its_trace(run: Any) -> None:
    before = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""
    lines = run("structlog", before, "print(uuid)")
    (said,) = [json.loads(line) for line in lines if line.startswith("{")]
    assert said["event"] == "charging"
    assert (said["job_uuid"], said["job_queue"], said["job_attempt"]) == (lines[-1], "mail", 1)
    assert len(said["trace_id"]) == 32
    assert len(said["span_id"]) == 16
