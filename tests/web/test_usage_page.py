"""Who uses the workers, on the page of the classes and in the API."""

from __future__ import annotations

from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from tests.web.conftest import Site


def test_the_page_and_the_api_have_it(small: Site) -> None:
    recorder = Recorder()
    recorder.ended("app.Send<b>", "mail", "done", 3.0, processor=1.5, memory=700.0)
    recorder.ended("app.Wait", "mail", "done", 1.0)
    Metrics(small.queue.store, "database").write(recorder)
    client = small.client()
    page = client.get("/classes").text
    assert "Who uses the workers" in page
    assert "700 MB" in page
    assert "75%" in page
    assert "app.Send<b>" not in page
    (send, waits) = client.get("/api/v1/usage?hours=1").json()["usage"]
    assert (send["name"], send["processor_seconds"], send["share"]) == ("app.Send<b>", 1.5, 0.75)
    assert (waits["processor_seconds"], waits["memory_mb"]) == (None, None)
    assert client.get("/api/v1/usage?by=tag").json() == {"usage": []}
    assert client.get("/api/v1/usage?by=host").status_code == 422
    assert client.get("/api/v1/usage?hours=nan").status_code == 422
