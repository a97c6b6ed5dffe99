"""Browser: each page and each action, as a person does it, with real workers on three backends."""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module

import pytest

from qframe import batch, manager
from tests.support.process import Project, wait_for
from tests.web.browser.conftest import Open, Window, begin, failed, serve, working

pytestmark = pytest.mark.slow

SLOWLY = """
import time
from qframe import events

def slowly(event: events.JobRetryRequested) -> None:
    time.sleep(0.1)
"""


def confirm(window: Window, button: str) -> None:
    """Say yes to what the page asks."""
    question = window.page.locator(".confirm")
    question.get_by_role("button", name=re.compile(button)).click()


def rows(window: Window) -> int:
    return window.page.locator("input[name=uuids]").count()


def has_rows(window: Window, count: int) -> bool:
    return rows(window) == count


def test_stored_jobs_are_checked_with_the_code_of_the_page(
    project: Project, open_window: Open
) -> None:
    project.push("Quick", queue="mail")
    project.push("Gone", queue="mail")
    window = open_window(project)
    page = window.go("/payloads")
    window.sees("No check has left a report")
    page.get_by_role("button", name="Check now").click()
    window.sees("cannot run 1 of 2")
    window.sees("1 of jobs.Gone are unknown")
    page.get_by_role("link", name="Details").click()
    page.get_by_role("link", name="To the checks of stored jobs").click()
    window.go("/")
    page.locator("#wrong summary").click()
    page.get_by_role("link", name="cannot run 1 stored job").click()
    window.sees("ready in")
    window.is_clean()


def test_a_queue_is_paused_resumed_and_cleared(project: Project, open_window: Open) -> None:
    for _ in range(3):
        project.push("Quick", queue="mail")
    project.push("Quick", queue="mail", delay=600)
    name = f"{project.queue.name}:mail"
    window = open_window(project)
    page = window.go("/queues")
    row = page.locator("tr", has_text=name)
    counts = row.locator("td")
    wait_for(lambda: counts.all_inner_texts()[:3] == ["3", "1", "0"], "the counts")
    row.get_by_role("button", name="Pause").click()
    window.sees("paused mail of")
    row.get_by_text("paused", exact=True).wait_for()
    window.go("/")
    window.sees(f"{name} is paused, and 3 jobs wait")
    window.go("/queues")
    row.get_by_role("button", name="Resume").click()
    window.sees("resumed mail of")
    row.get_by_role("button", name="Clear").click()
    window.sees("Delete all ready and delayed jobs of this queue?")
    page.get_by_role("link", name="No, go back").click()
    row.get_by_role("button", name="Clear").click()
    confirm(window, "^Clear 4 jobs$")
    window.sees("deleted 4 jobs")
    assert project.empty("mail")
    window.is_clean()


def test_jobs_are_filtered_paged_selected_and_cancelled(
    project: Project, open_window: Open
) -> None:
    for number in range(120):
        project.push("Breaks", {"number": number % 10}, queue="mail")
    window = open_window(project)
    page = window.go("/jobs")
    page.get_by_role("link", name=f"{project.queue.name}:mail").click()
    wait_for(lambda: rows(window) == 50, "the first page")
    for left in (50, 20):
        page.get_by_role("link", name="Next page").click()
        page.wait_for_url("**after=*")
        wait_for(partial(has_rows, window, left), "the next page")
    assert page.get_by_role("link", name="Next page").count() == 0
    page.get_by_role("link", name="From the beginning").click()
    wait_for(lambda: rows(window) == 50, "the first page")
    page.keyboard.press("/")
    page.keyboard.type("args.number:3")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=args.number*")
    wait_for(lambda: rows(window) == 12, "the rest")
    for number in (0, 1):
        page.locator("input[name=uuids]").nth(number).check()
    page.get_by_role("button", name=re.compile("^Cancel .*selected$")).click()
    confirm(window, "^Cancel 2 jobs$")
    window.sees("cancelled 2 of 2 jobs")
    assert project.sizes("mail").ready == 118
    wait_for(lambda: rows(window) == 10, "those of the filter")
    page.get_by_role("button", name=re.compile("^Cancel all")).click()
    confirm(window, "^Cancel 10 jobs$")
    window.sees("10 of the 10 looked at")
    assert project.sizes("mail").ready == 108
    window.go("/jobs?queue=mail")
    page.get_by_label("select all on this page").check()
    page.get_by_role("button", name=re.compile("^Cancel .*selected$")).click()
    confirm(window, "^Cancel 50 jobs$")
    wait_for(lambda: project.sizes("mail").ready == 58, "the end of a page of jobs")
    window.is_clean()


def test_failed_jobs_by_cause_are_silenced_retried_and_forgotten(
    project: Project, open_window: Open
) -> None:
    failed(project, 60)
    window = open_window(project)
    page = window.go("/failed")
    window.sees("60 failed jobs.")
    page.get_by_role("button", name="Silence").click()
    window.sees("silenced the cause")
    window.go("/")
    assert "new cause" not in window.text()
    window.go("/failed")
    page.get_by_role("button", name="Tell again").click()
    window.sees("is no longer silenced")
    page.get_by_role("link", name="Breaks").click()
    page.wait_for_url("**filter=cause*")
    wait_for(lambda: rows(window) == 50, "the first page")
    page.locator("input[name=uuids]").first.check()
    page.get_by_role("button", name=re.compile("^Forget .*selected$")).click()
    confirm(window, "^Forget 1 job$")
    window.sees("removed 1 of 1")
    assert len(project.failed()) == 59
    window.go("/failed")
    page.get_by_role("button", name="Retry").click()
    window.sees("Queue these failed jobs again?")
    confirm(window, "^Retry 59 jobs$")
    window.sees("59 of the 59 looked at")
    assert project.sizes().ready == 59
    assert project.failed() == []
    window.is_clean()


def test_what_goes_on_in_the_background_shows_its_progress_and_is_stopped(
    project: Project, open_window: Open
) -> None:
    failed(project, 80)
    project.write("slow.py", SLOWLY)
    project.configure('[listeners]\nJobRetryRequested = ["slow:slowly"]')
    window = open_window(project)
    page = window.go("/failed?by=time")
    page.get_by_role("button", name=re.compile("^Retry all")).click()
    confirm(window, "^Retry 80 jobs$")
    page.wait_for_url("**bulk=*")
    assert "Queueing failed jobs again" in window.text()

    def looked_at() -> int:
        found = re.search(r"of the (\d+) looked at", window.text())
        return int(found[1]) if found else 0

    before = looked_at()
    wait_for(lambda: looked_at() > before, "progress")
    page.get_by_role("button", name="Stop").click()
    window.sees("Stopped:")
    left = len(project.failed())
    assert 0 < left < 80
    assert project.sizes().ready == 80 - left
    window.is_clean()


def test_a_running_job_is_seen_and_cancelled(project: Project, open_window: Open) -> None:
    uuid = project.push("Slow")
    working(project)
    window = open_window(project)
    page = window.page

    def runs() -> int:
        window.go("/jobs?place=running")
        return page.get_by_role("link", name="Slow").count()

    wait_for(runs, "the job")
    page.get_by_role("link", name="Slow").click()
    window.sees(uuid)
    window.sees("attempt")
    page.get_by_role("button", name=re.compile("^Cancel")).click()
    window.sees("One that runs is interrupted.")
    confirm(window, "^Cancel 1 job$")
    window.sees("cancelled 1 of 1 jobs")
    wait_for(project.empty, "the end of the job")
    window.is_clean()


def test_running_jobs_that_a_filter_finds_are_cancelled(
    project: Project, open_window: Open
) -> None:
    for tenant in (7, 8, 7):
        project.push("Slow", {"tenant": tenant}, tags=[f"tenant:{tenant}"])
    working(project, "--concurrency", 3)
    window = open_window(project)
    page = window.page

    def shown(count: int) -> bool:
        window.go("/jobs?place=running")
        return has_rows(window, count)

    wait_for(partial(shown, 3), "the jobs")
    for text, count in (("tag:tenant:8", 1), ("args.tenant:7", 2)):
        page.get_by_label("Filter").fill(text)
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**filter=*tenant*")
        wait_for(partial(has_rows, window, count), text)
    page.get_by_role("button", name=re.compile("^Cancel all")).click()
    confirm(window, "^Cancel 2 jobs$")
    window.sees("2 of the 2 looked at")
    wait_for(partial(shown, 1), "the end of two")
    page.locator("input[name=uuids]").first.check()
    page.get_by_role("button", name=re.compile("^Cancel .*selected$")).click()
    confirm(window, "^Cancel 1 job$")
    wait_for(partial(shown, 0), "the end of the last")
    window.is_clean()


def test_a_worker_is_quieted_scaled_and_stopped(project: Project, open_window: Open) -> None:
    worker = working(project, "--concurrency", 2)
    window = open_window(project)
    page = window.go("/workers")
    row = page.locator("tr", has_text=str(worker.pid))
    row.get_by_role("button", name="Quiet").click()
    window.sees("to take no more jobs")
    row.get_by_role("button", name="Go on").click()  # once it says that it is paused
    window.sees("to go on")
    row.get_by_label("jobs at once").fill("5")
    row.get_by_role("button", name="Scale").click()
    window.sees("to run 5 jobs at once")
    row.get_by_text("0 of 5").wait_for()
    row.get_by_role("button", name="Stop").click()
    confirm(window, "^Stop$")
    assert worker.wait() == 0
    window.is_clean()


def test_failed_jobs_that_are_selected_or_chosen_are_retried_and_forgotten(
    project: Project, open_window: Open
) -> None:
    failed(project, 5)
    window = open_window(project)
    page = window.go("/failed?by=time")
    for number in (0, 1):
        page.locator("input[name=uuids]").nth(number).check()
    page.get_by_role("button", name=re.compile("^Retry .*selected$")).click()
    confirm(window, "^Retry 2 jobs$")
    window.sees("queued 2 of 2")
    assert (project.sizes().ready, len(project.failed())) == (2, 3)
    page.get_by_role("button", name=re.compile("^Forget all")).click()
    confirm(window, "^Forget 3 jobs$")
    window.sees("3 of the 3 looked at")
    assert (project.sizes().ready, project.failed()) == (2, [])
    window.is_clean()


def test_a_batch_is_followed_retried_and_cancelled(
    project: Project, open_window: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project.root))
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    manager.use(project.manager)
    try:
        breaks = import_module("jobs").Breaks  # which the worker knows as well
        begin(batch(breaks(number=n) for n in range(3)).name("three").allow_failures())
        project.drain()
        assert len(project.failed()) == 3
        begin(batch([breaks(number=3)]).name("one more"))
    finally:
        manager.use(None)
        sys.modules.pop("jobs", None)
    window = open_window(project)
    page = window.go("/batches")
    page.get_by_role("link", name="three").click()
    window.sees("Jobs that failed")
    page.get_by_role("button", name="Retry failed").click()
    confirm(window, "^Retry failed$")
    window.sees("queued 3 failed jobs of the batch again")
    assert (project.sizes().ready, project.failed()) == (4, [])
    window.go("/batches")
    page.get_by_role("link", name="one more").click()
    window.sees("running")
    page.get_by_role("button", name=re.compile("^Cancel")).click()
    confirm(window, "^Cancel$")
    window.sees("cancelled the batch")
    window.is_clean()


def test_a_schedule_is_added_paused_run_and_removed(project: Project, open_window: Open) -> None:
    window = open_window(project)
    page = window.go("/schedules")
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Job").fill("jobs.Quick")
    page.get_by_label("When").fill("yearly_on 1 1 03:00")
    page.get_by_role("button", name="Add").click()
    window.sees("added the schedule nightly")
    row = page.locator("tr", has_text="nightly")
    row.get_by_role("button", name="Pause").click()
    window.sees("paused nightly")
    row.get_by_role("button", name="Resume").click()
    window.sees("resumed nightly")
    row.get_by_role("button", name="Run now").click()
    window.sees("a worker runs nightly within some seconds")
    working(project)
    row.get_by_text("(by hand)").wait_for()
    row.get_by_role("button", name="Remove").click()
    window.sees("Remove this schedule?")
    confirm(window, "^Remove$")
    window.sees("removed nightly")
    window.sees("There are no schedules")
    window.is_clean()


def test_every_page_is_there_on_every_backend(project: Project, open_window: Open) -> None:
    for number in range(2):
        project.push("jobs.Breaks", {"number": number})
    project.drain()
    project.push("Quick")
    window = open_window(project)
    page = window.go("/")
    for name in (
        "Queues",
        "Jobs",
        "Failed",
        "Workers",
        "Batches",
        "Classes",
        "Schedules",
        "Overview",
    ):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        page.get_by_role("heading", level=1, name=name).wait_for()
        assert page.locator("nav [aria-current=page]").inner_text() == name
    window.go("/classes")
    row = page.locator("tr", has_text="Breaks").filter(has_text="ValueError: bad *")
    assert row.locator("td").all_inner_texts()[3] == "2"
    window.is_clean()


def test_two_people_do_not_get_into_each_others_way(plain: Project, open_window: Open) -> None:
    failed(plain, 1)
    address = serve(plain)
    one, other = open_window(address), open_window(address)
    for window in (one, other):
        window.go("/failed?by=time")
        window.page.get_by_role("link", name="Breaks").click()
        window.page.get_by_role("button", name="Retry").click()
    confirm(one, "^Retry 1 job$")
    one.sees("queued 1 of 1")
    confirm(other, "^Retry 1 job$")
    other.sees("is no failed job (any more)")
    assert plain.sizes().ready == 1
