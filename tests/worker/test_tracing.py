"""What a real `qframe work` traces by its settings: with processes apart, and with many at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Project, wait_for

TELEMETRY = """
import json, os, pathlib
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from qframe import Queueable, dispatch

class File(SpanExporter):
    def export(self, spans):
        with open("spans.jsonl", "a") as file:
            for span in spans:
                file.write(json.dumps({
                    "name": span.name, "pid": os.getpid(), "id": span.context.span_id,
                    "trace": span.context.trace_id,
                    "parent": span.parent and span.parent.span_id,
                    "outcome": span.attributes.get("qframe.job.outcome"),
                    "error": span.attributes.get("error.type"),
                    "events": [dict(event.attributes) for event in span.events],
                }) + "\\n")
        return SpanExportResult.SUCCESS

def start():
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(File()))
    trace.set_tracer_provider(provider)

class OddError(Exception):
    pass

class Inner(Queueable):
    dies: bool = False
    raises: bool = False
    def handle(self):
        with trace.get_tracer("app").start_as_current_span("query"):
            pass
        dispatch(Inner()).on_queue("later").send()
        if self.dies:
            os._exit(3)
        if self.raises:
            raise OddError("odd")

class AsyncInner(Queueable):
    async def handle(self):
        with trace.get_tracer("app").start_as_current_span("query"):
            pass
"""

SETTINGS = 'jobs = ["jobs", "traced"]\n[otel]\nenabled = true\nsetup = "traced:start"\n'


@pytest.fixture
def spans(project: Project) -> Any:
    (project.root / "traced.py").write_text(TELEMETRY)

    def read() -> list[dict[str, Any]]:
        text = Path(project.root / "spans.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    return read


def of(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


@pytest.mark.parametrize("options", [(), ("--concurrency", 3)])
def test_without_a_line_of_code(project: Project, spans: Any, options: tuple[object, ...]) -> None:
    project.push("traced.Inner", {})
    project.push("traced.AsyncInner", {})
    project.configure(SETTINGS)  # now: what pushes is this process
    worker = project.work(*options, "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    attempts = of(spans(), "process default")
    assert [each["outcome"] for each in attempts] == ["done", "done"]
    assert {each["parent"] for each in of(spans(), "query")} == {each["id"] for each in attempts}


def test_an_isolated_job_is_within_the_attempt_of_its_worker(project: Project, spans: Any) -> None:
    project.push("traced.Inner", {})
    project.configure(SETTINGS)
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    (attempt,), (query,) = of(spans(), "process default"), of(spans(), "query")
    (sent,) = of(spans(), "send later")
    assert attempt["pid"] == worker.pid != query["pid"] == sent["pid"]
    assert query["parent"] == sent["parent"] == attempt["id"]
    assert query["trace"] == attempt["trace"]


def test_an_isolated_job_that_fails_has_a_span_that_says_how(project: Project, spans: Any) -> None:
    project.push("traced.Inner", {"dies": True})
    project.push("traced.Inner", {"raises": True})
    project.configure(SETTINGS)
    worker = project.work("--isolate", "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    died, raised = of(spans(), "process default")
    assert (died["outcome"], died["error"]) == ("failed", "DirtyExit")
    assert (raised["outcome"], raised["error"]) == ("failed", "traced.OddError")
    (event,) = raised["events"]
    assert event["exception.type"] == "traced.OddError"
    assert 'raise OddError("odd")' in event["exception.stacktrace"]


@pytest.mark.slow
def test_an_exporter_that_hangs_keeps_no_isolated_job(project: Project, spans: Any) -> None:
    file = project.root / "traced.py"
    hangs = "    def export(self, spans):\n        if os.getpid() != WORKER: time.sleep(600)\n"
    text = file.read_text().replace("    def export(self, spans):\n", hangs)
    file.write_text("import os, time\nWORKER = os.getpid()\n" + text)
    for _ in range(2):
        project.push("traced.Inner", {})
    project.configure(SETTINGS)
    worker = project.work("--isolate", "--preload", "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    assert [each["outcome"] for each in of(spans(), "process default")] == ["done", "done"]


BROKEN = {"hangs": "time.sleep(600)", "raises": "raise OSError('no collector')"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "options"),
    [("raises", ()), ("hangs", ()), ("hangs", ("--concurrency", 3)), ("hangs", ("--workers", 2))],
)
def test_an_exporter_that_is_broken_costs_no_job(
    project: Project, spans: Any, how: str, options: tuple[object, ...]
) -> None:
    file = project.root / "traced.py"
    exports = "    def export(self, spans):\n"
    broken = f"{exports}        open('asked', 'w').close()\n        {BROKEN[how]}\n"
    text = file.read_text().replace(exports, broken)
    text = text.replace("(File())", "(File(), max_queue_size=8, max_export_batch_size=2)")
    file.write_text("import time\n" + text)
    by = {"QFRAME_OTEL__ENABLED": "true", "QFRAME_OTEL__SETUP": "traced:start"}  # not this process
    worker = project.work("--grace", 1, *options, environment=by)
    for number in range(10):
        project.push("Note", {"word": f"w{number}"})
    project.wait_for_note("note", count=10)
    wait_for((project.root / "asked").exists, "the exporter")
    began = time.monotonic()
    for number in range(30):  # more than its queue holds
        project.push("Note", {"word": f"v{number}"})
    project.wait_for_note("note", count=40)
    assert time.monotonic() - began < 20
    wait_for(project.empty, "the end of each")
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 20, "grace is a second"
    assert (project.failed(), len({words[1] for words in project.notes("note")})) == ([], 40)


def test_a_setup_that_cannot_be_loaded_is_a_line(project: Project) -> None:
    project.configure('[otel]\nenabled = true\nsetup = "nowhere:start"\n')
    worker = project.work("--stop-when-empty")
    assert worker.wait() == 2
    assert "otel.setup: 'nowhere:start' cannot be loaded" in worker.err
    assert "Traceback" not in worker.err
