"""Prometheus' page: what it says is what happened, on each kind of connection."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from tests.support import promtool
from tests.web.conftest import Site


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Read the page, by names and labels."""
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def happened(site: Site) -> None:
    """Let there be something of everything."""
    recorder = Recorder()
    recorder.pushed("app.A", "mail", 7)
    for seconds in (0.02, 0.3, 7000.0):
        recorder.started("app.A", "mail", None)
        recorder.ended("app.A", "mail", "done", seconds)
    recorder.ended("app.A", "mail", "given back")
    recorder.ended("app.A", "mail", "failed", 1.0, timed_out=True)
    Metrics(site.queue.store, site.queue.name).write(recorder)
    site.queue.push_raw("{}", "mail")
    site.keep("a")


@promtool.needed
def test_no_name_writes_to_a_terminal(site: Site) -> None:
    recorder, name = Recorder(), 'a\x1b[2J\r\u202e\u2028"\\\n# b'
    recorder.started(name, "mail", None)
    Metrics(site.queue.store, site.queue.name).write(recorder)
    text = site.client().get("/metrics").text
    assert all(map(str.isprintable, text.split("\n")))
    jobs = {each for key in samples(text) for each in key if each.startswith("job=")}
    assert jobs == {'job=a\\x1b[2J\\r\\u202e\\u2028"\\\n# b'}
    assert promtool.run("check", "metrics", said=text)[0] == 0


@promtool.needed
def test_promtool_finds_nothing_wrong(site: Site) -> None:
    happened(site)
    text = site.client().get("/metrics").text
    code, _, err = promtool.run("check", "metrics", said=text)
    assert (code, err) == (0, "")


def test_it_says_what_was_counted(site: Site) -> None:
    happened(site)
    said = site.client().get("/metrics")
    assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(said.text)
    own = (f"connection={site.queue.name}", "job=app.A")
    assert found["qframe_jobs_pushed_total", *own, "queue=mail"] == 7
    assert found["qframe_jobs_started_total", *own, "queue=mail"] == 3
    assert found["qframe_jobs_timed_out_total", *own, "queue=mail"] == 1
    done = {key[3]: value for key, value in found.items() if key[0] == "qframe_jobs_finished_total"}
    assert done == {"outcome=done": 3, "outcome=failed": 1, "outcome=given_back": 1}
    ran: dict[Any, float] = {
        key[3]: value
        for key, value in found.items()
        if key[0] == "qframe_job_duration_seconds_bucket" and "outcome=done" in key
    }
    assert (ran["le=0.01"], ran["le=0.025"], ran["le=0.5"]) == (0, 1, 2)
    assert (ran["le=1.0"], ran["le=3600.0"], ran["le=+Inf"]) == (2, 2, 3)
    sums = {
        key[3]: value for key, value in found.items() if key[0] == "qframe_job_duration_seconds_sum"
    }
    assert sums == {"outcome=done": 7000.32, "outcome=failed": 1.0}
    keeps = "database" if site.queue.name == "beanstalkd" else site.queue.name
    ready = (f"connection={site.queue.name}", "queue=mail", "state=ready")
    assert found["qframe_queue_jobs", *ready] == 1
    assert found["qframe_failed_jobs", f"connection={keeps}"] == 1
    assert found["qframe_backend_up", f"connection={site.queue.name}"] == 1


def test_a_backend_that_is_away_is_down(open_site: Any) -> None:
    away = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}
    site = open_site(database={"driver": "database"}, away=away)
    found = samples(site.client().get("/metrics").text)
    assert found["qframe_backend_up", "connection=away"] == 0
    assert found["qframe_backend_up", "connection=database"] == 1
