"""Browser: without JavaScript, on phones, light and dark, by keyboard, and what axe-core says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from qframe import Flow, batch, manager
from qframe.contracts.recording import Recording, SeenStack, UsedPoint
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.operations import holds, payload_reports, retries
from qframe.operations.payloads import PayloadCheck, PayloadTrouble
from qframe.retries.terms import RetryTerms
from qframe.retries.watched import ChosenJob
from tests.support.process import Project, wait_for
from tests.support.projects import DatabaseProject
from tests.web.browser.batched import Fails
from tests.web.browser.conftest import Open, Window, begin, failed, serve, working
from tests.web.test_command import JOBS

pytestmark = pytest.mark.slow

PAGES = ["/", "/queues", "/jobs", "/jobs?place=delayed", "/jobs?place=running", "/failed"]
PAGES += [
    "/failed?by=time",
    "/failed?filter=colour:red",
    "/workers",
    "/batches",
    "/flows",
    "/classes",
    "/classes/jobs.Breaks",
    "/payloads",
]
PAGES += [
    "/why/mail",
    "/confirm/retry?filter=&back=/failed",
    "/why/jobs.Breaks",
    "/schedules",
    "/jobs?place=finished",
    "/jobs?place=running&filter=error:x",
]
LONG = "app.modules." + "VeryLongNameOfAJob" * 8
PHONE = {"width": 360, "height": 740}
AXE = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]}
AXE["runOnly"].append("best-practice")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Any]:
    """Give a page with something of everything on it, and with long names."""
    with DatabaseProject(tmp_path_factory.mktemp("looks")) as project:
        project.write("jobs.py", JOBS)
        failed(project, 3)
        gone = ChosenJob("gone", 1.0, 1)
        recorder = Recorder()
        for name, seconds in ((LONG, 0.955), (LONG, 3562.0), ("jobs.Long", 3562.0)):
            recorder.started(name, "mail", time.time() - seconds)
            recorder.ended(name, "mail", "done", seconds, memory=700.0)
        Metrics(project.manager.connection("database").store, "database").write(recorder)
        retries.start(project.manager, RetryTerms.read(), [gone], f"class {LONG}", "ops")
        recorded(project)
        checked(project)
        manager.use(project.manager)
        begin(batch(Fails(number=each) for each in range(3)).name("three").on_queue("x"))
        flow = Flow("a flow").on_queue("x")
        before = [flow.add(Fails(number=each), name=LONG) for each in range(3)]
        flow.add(Fails(number=4), after=before)
        begin(flow)
        holds.begin(project.manager.connection("database"), f"class:{LONG}", 600, "ops", "w" * 300)
        manager.use(None)
        project.push("Quick", queue="mail")
        project.push(LONG, queue="mail", user="x" * 300)
        project.push("Quick", queue="q" * 100, delay=600)
        project.push("Slow", queue="slow")
        working(project, "--queue", "slow", "--concurrency", 2)
        yield serve(project)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[str]:
    """Give a page of a project in which nothing has happened yet."""
    with DatabaseProject(tmp_path_factory.mktemp("bare")) as project:
        yield serve(project)


def recorded(project: DatabaseProject) -> None:
    """Give the failed jobs what is kept of a killed one."""
    kept = Recording(
        attempt=1,
        summary=f"killed by SIGKILL, 1.9 GB of 2 GB, in {LONG} at import.py:88",
        log=("x" * 400, "12:00:00.000 WARNING app: about to"),
        stacks=(SeenStack((0.3, 1.3), (f"/{'deep/' * 40}import.py:88 handle",)),),
        curve=tuple(UsedPoint(9.0 - n, 100.0 * n, n % 2 / 2) for n in range(10)),
        memory_events={"oom_kill": 1},
        limit=2048.0,
    )
    store = project.manager.failed_store("database")
    for record in [*store.all()]:
        store.add(replace(record, history=record.history.recorded(kept)))


def checked(project: DatabaseProject) -> None:
    """Give the page two checks of stored jobs: one with all kinds of lines, one of this page."""
    places = {f"ready in database:{'q' * 100}": 20, "failed in database:mail": 11}
    texts = ("lack `carrier`", "are unknown: " + "x" * 300)
    found = PayloadCheck(
        read=120_400,
        others=7,
        left_out={f"{LONG}.remark": 12},
        notes=["sqs: what waits there cannot be looked at without taking it"],
        silent={"redis": "Error 111 connecting to cache:6379. Connection refused."},
    )
    for text in texts:
        trouble = PayloadTrouble(job=LONG, kind="lacks", text=text, plain=text, count=31)
        trouble.places, trouble.example = places, "0" * 36
        found.troubles.append(trouble)
    for where, each in (("the command", found), ("the page", PayloadCheck(read=3))):
        report = payload_reports.report_of(
            each, who="deploy@ci-3", where=where, version="2.4.1", at_most=1000
        )
        payload_reports.keep(project.manager, report)


def one_failed(window: Window) -> str:
    window.go("/failed?by=time")
    found = window.page.locator("tbody th a").first.get_attribute("href")
    assert found
    return found


def one_flow(window: Window) -> str:
    window.go("/flows")
    found = window.page.locator("tbody th a").first.get_attribute("href")
    assert found
    return found


def asked(window: Window) -> str:
    return "/confirm/clear?connection=database&queue=mail&back=/queues"


@pytest.mark.parametrize(
    ("width", "look"),
    [
        pytest.param(1280, "light", marks=pytest.mark.long),
        (360, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(360, "light", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(400)  # forty looks of axe-core
def test_axe_finds_nothing(
    served: str, bare: str, open_window: Open, look: str, width: int
) -> None:
    options: Any = {"color_scheme": look, "viewport": {"width": width, "height": 800}}
    found: list[str] = []
    for address in (served, bare):
        window = open_window(address, **options)
        more = (
            [one_failed(window), one_flow(window), asked(window), "/bulk/nothing"]
            if address == served
            else []
        )
        for path in [*PAGES, *more]:
            page = window.go(path)
            result = Axe().run(page, options=AXE)
            for each in result.response["violations"]:
                nodes = [node["html"][:120] for node in each["nodes"][:3]]
                found.append(f"{path}: {each['id']}: {each['help']}: {nodes}")
    assert found == []


OVER_EACH_OTHER = """() => [...document.querySelectorAll('td[data-label]')].flatMap(cell => {
    const name = getComputedStyle(cell, '::before'), text = document.createRange();
    if (!cell.textContent.trim() || name.content === 'none' || name.display === 'none') return [];
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = `${name.fontSize} ${name.fontFamily}`;
    text.selectNodeContents(cell);
    const parts = [...text.getClientRects()], box = cell.getBoundingClientRect();
    const ends = box.left + pen.measureText(cell.dataset.label).width;
    return parts[0].left < ends - 1 || parts.some(each => each.right > box.right + 1)
        ? [`${cell.dataset.label}: ${cell.innerText}`] : [];
})"""
"""The cells whose name is over their value, or whose value is over the next cell."""


def test_on_a_phone_nothing_is_wider_than_it(served: str, open_window: Open) -> None:
    window = open_window(served, viewport=PHONE, is_mobile=True, has_touch=True)
    for path in [*PAGES, one_failed(window), one_flow(window), asked(window)]:
        page = window.go(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], path
        assert page.evaluate(OVER_EACH_OTHER) == [], path
        for hidden in page.locator(".wide").all():
            inner = hidden.evaluate("each => each.scrollWidth - each.clientWidth")
            assert inner <= 0, path
    page = window.go("/queues")
    label = page.locator("td[data-label=Ready]").first
    content = "each => getComputedStyle(each, '::before').content"
    wait_for(lambda: label.evaluate(content) == '"Ready"', "the name of the cell")
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        assert box
        assert box["height"] >= 30
    window.is_clean()


def test_it_is_light_or_dark_as_the_system_is(served: str, open_window: Open) -> None:
    brightness = {}
    for look in ("light", "dark"):
        options: Any = {"color_scheme": look}
        page = open_window(served, **options).go("/")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness[look] = sum(int(each) for each in re.findall(r"\d+", colour)[:3])
    assert brightness["light"] > 600
    assert brightness["dark"] < 150


@pytest.mark.parametrize("has_script", [True, False])
def test_a_theme_is_chosen_against_the_system(
    served: str, open_window: Open, has_script: bool
) -> None:
    window = open_window(served, color_scheme="light", java_script_enabled=has_script)
    page = window.go("/queues?filter=queue:mail")
    page.get_by_role("button", name="Dark").click()
    page.wait_for_url("**/queues?filter=queue*")
    assert page.get_by_role("button", name="Dark").get_attribute("aria-pressed") == "true"
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(each) for each in re.findall(r"\d+", colour)[:3]) < 150
    window.is_clean()


def test_the_chart_says_its_numbers(served: str, open_window: Open) -> None:
    window = open_window(served, timezone_id="Asia/Kolkata")
    page = window.go("/")
    page.locator(".chart").focus()
    page.keyboard.press("ArrowLeft")
    said = page.locator(".tip").inner_text()
    assert re.search(r"ended, .* pushed\n.* failed\n.*UTC\n\d\d:\d\d Asia/", said, re.DOTALL), said
    page.keyboard.press("Tab")
    assert page.locator(".tip").is_hidden()
    window.is_clean()


def test_a_project_without_jobs_says_what_to_do(bare: str, open_window: Open) -> None:
    window = open_window(bare)
    for path, words in {
        "/": "qframe work",
        "/failed": "No job has failed",
        "/workers": "Start one: qframe work",
        "/batches": "batch([...]).dispatch()",
        "/classes": "qframe work",
        "/jobs?place=running": "No job runs",
        "/jobs?place=finished": "No tracked job has ended",
        "/schedules": "There are no schedules that a worker knows",
    }.items():
        window.go(path)
        assert words in window.text(), path
    window.is_clean()


def test_it_is_used_by_keyboard_alone(served: str, open_window: Open) -> None:
    window = open_window(served)
    page = window.go("/failed?by=time")
    for key, title in {"o": "Overview", "q": "Queues", "j": "Jobs", "w": "Workers"}.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_function("title => document.title.startsWith(title)", arg=title)
    for key, title in {
        "b": "Batches",
        "l": "Flows",
        "c": "Classes",
        "s": "Schedules",
        "f": "Failed",
    }.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_function("title => document.title.startsWith(title)", arg=title)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("g")
    page.keyboard.type("q")
    assert page.title().startswith("Failed")  # it was typed into the filter
    page.keyboard.press("Escape")
    window.go("/failed?by=time")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#keys").is_hidden()
    window.go("/failed?by=time")
    order = []
    for _ in range(14):
        page.keyboard.press("Tab")
        order.append(page.evaluate("(document.activeElement.innerText || '').trim()"))
    assert order[0] == "Skip to the content"
    assert order[1:9] == ["qframe", "Overview", "Queues", "Jobs", "Failed", *order[6:9]]
    window.go("/failed")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Tab")
    assert page.evaluate(outline) != "none"
    window.is_clean()


def test_all_works_without_javascript(plain: Project, open_window: Open) -> None:
    failed(plain, 60)
    window = open_window(plain, java_script_enabled=False)
    page = window.go("/")
    (alone,) = page.locator(".two > *").all()
    box = alone.bounding_box()
    assert box
    assert box["width"] > 900, "what is alone has half of the page"
    plain.push("Quick", queue="mail")
    worker = working(plain, "--queue", "other", "--concurrency", 2)
    for path in PAGES:
        window.go(path)
        assert page.locator("h1").count() == 1, path
    window.go("/queues")
    row = page.locator("tr", has_text="database:mail")
    window.loads(row.get_by_role("button", name="Pause")).click()
    window.sees("paused mail of database")
    window.loads(row.get_by_role("button", name="Resume")).click()
    window.sees("resumed mail of database")
    window.loads(row.get_by_role("button", name="Clear")).click()
    page.get_by_role("button", name="Clear 1 job").click()
    window.sees("deleted 1 job")
    window.go("/failed?by=time")
    window.loads(page.get_by_role("link", name="Next page")).click()
    assert page.locator("input[name=uuids]").count() == 10
    page.get_by_role("link", name="From the beginning").click()
    page.locator("input[name=uuids]").first.check()
    page.get_by_role("button", name="Forget selected").click()
    page.get_by_role("button", name="Forget 1 job").click()
    window.sees("removed 1 of 1")
    page.get_by_label("Filter").fill("error:ValueError")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name=re.compile("^Retry all")).click()
    page.get_by_role("button", name="Retry 59 jobs").click()
    assert "bulk=" in page.url
    window.loads(page.get_by_text("Queued failed jobs again"))
    assert "59 of the 59 looked at" in window.text()
    window.go("/workers")
    window.loads(page.get_by_label("jobs at once")).fill("3")
    page.get_by_role("button", name="Scale").click()
    window.sees("to run 3 jobs at once")
    page.get_by_role("button", name="Stop").click()
    page.locator(".confirm").get_by_role("button", name="Stop").click()
    assert worker.wait() == 0
    window.is_clean()
