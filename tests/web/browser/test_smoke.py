"""Browser: one walk through the page, quick enough for each change."""

from __future__ import annotations

from tests.support.process import Project
from tests.web.browser.conftest import Open


def test_a_failure_is_found_seen_and_retried(plain: Project, open_window: Open) -> None:
    plain.push("Breaks", {"number": 7})
    plain.drain()
    window = open_window(plain)
    page = window.go("/")
    page.get_by_text("1 new cause", exact=False).first.click()
    page.get_by_role("link", name="new since yesterday, once: jobs.Breaks").click()
    page.get_by_role("link", name="Breaks").click()
    window.sees("ValueError: bad 7")
    page.get_by_role("button", name="Retry").click()
    window.sees("Queue these failed jobs again?")
    page.get_by_role("button", name="Retry 1 job").click()
    window.sees("queued 1 of 1 failed jobs again")
    assert plain.failed() == []
    assert plain.sizes().ready == 1
    window.is_clean()
