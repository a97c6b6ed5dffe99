"""Actions that bring jobs back, on each backend: kick, and retry of a batch's failed members."""

from __future__ import annotations

import re

import pytest

from qframe import batch
from qframe.contracts.backend import Capability
from qframe.testing import drain
from tests.web.browser.batched import Fails
from tests.web.conftest import FROM_HERE, Site
from tests.web.test_pages import post, push, text_of


def test_buried_jobs_are_kicked(site: Site) -> None:
    if not site.able(Capability.BURY):
        pytest.skip("nothing is buried there")
    for name in ("A", "B"):
        push(site, name, "mail")
        (job,) = site.queue.reserve(["mail"])
        site.queue.backend.apply(job.start_plan())
        job.bury()
    client = site.client()
    name = f"{site.queue.name}:mail"
    assert f"2 jobs are buried in {name}" in text_of(client, "/")
    assert "Kick" in text_of(client, "/queues")
    at = {"connection": site.queue.name, "queue": "mail"}
    asked = client.get("/confirm/kick", params=at)
    assert "<dt>Jobs</dt><dd>2</dd>" in asked.text
    done = post(client, "kick", **at, back="/queues")
    assert done.headers["location"].startswith("/queues?said=made+2+buried+jobs")
    sizes = site.queue.sizes("mail")
    assert (sizes.ready, sizes.buried) == (2, 0)
    said = client.post("/api/v1/actions/kick", json=at, headers=FROM_HERE).json()
    assert said["changed"] == 0


def test_failed_members_of_a_batch_are_retried(site: Site) -> None:
    if not site.able(Capability.FACTS):
        pytest.skip("it keeps no batches")
    made = batch(Fails(number=each) for each in range(2)).name("two").allow_failures().dispatch()
    drain()
    assert len(site.failed()) == 2
    client = site.client()
    page = client.get(f"/batches/{made.id}").text
    assert "Retry failed" in page
    assert all(uuid in page for uuid in site.failed())
    done = post(client, "retry-batch", id=made.id, back=f"/batches/{made.id}")
    assert re.search(r"said=queued\+2\+failed\+jobs", done.headers["location"])
    assert site.failed() == []
    assert site.queue.size() == 2
    said = client.post("/api/v1/actions/retry-batch", json={"id": made.id}, headers=FROM_HERE)
    assert said.json()["changed"] == 0
