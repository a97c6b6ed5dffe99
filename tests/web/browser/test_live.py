"""Browser: an open page renews itself while it is seen, and not under somebody's hands."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Request

from tests.support.process import Project
from tests.web.browser.conftest import Open, failed
from tests.web.test_command import address_of

pytestmark = pytest.mark.slow

HIDE = """
let hidden = false;
Object.defineProperty(document, "hidden", { get: () => hidden });
window.hideIt = (value) => {
    hidden = value;
    document.dispatchEvent(new Event("visibilitychange"));
};
"""


def is_live(request: Request) -> bool:
    return "/live?" in request.url


def test_what_changes_is_seen_without_a_click(project: Project, open_window: Open) -> None:
    window = open_window(project)
    window.go("/queues")
    for count in ("1", "2"):
        project.push("Quick", queue="mail")
        row = window.page.locator("tr", has_text="mail")
        row.locator("td").first.get_by_text(count, exact=True).wait_for()
    window.is_clean()


def test_it_is_paused_when_hidden(plain: Project, open_window: Open) -> None:
    window = open_window(plain)
    page: Page = window.page
    page.add_init_script(HIDE)
    with page.expect_request(is_live):
        window.go("/queues")
    with page.expect_event("requestfailed", is_live):  # closed by the page
        page.evaluate("hideIt(true)")
    plain.push("Quick", queue="mail")
    with page.expect_request(is_live):
        page.evaluate("hideIt(false)")
    window.sees("database:mail")
    assert not [each for each in window.troubles if "ERR_" not in each]


def test_what_somebody_has_selected_stays_selected(plain: Project, open_window: Open) -> None:
    failed(plain, 2)
    window = open_window(plain)
    page = window.go("/failed?by=time")
    page.locator("input[name=uuids]").first.check()
    page.evaluate(
        "window.heard = 0;"
        "const source = new EventSource(document.getElementById('live').dataset.live);"
        "source.onmessage = () => { window.heard += 1; };"
    )
    page.wait_for_function("window.heard >= 1")
    failed(plain, 1)
    page.wait_for_function("window.heard >= 2")
    assert page.locator("input[name=uuids]").count() == 2
    assert page.locator("input[name=uuids]").first.is_checked()
    page.locator("input[name=uuids]").first.uncheck()
    page.evaluate("document.activeElement.blur()")
    failed(plain, 1)
    page.locator("input[name=uuids]").nth(3).wait_for()


def test_it_says_when_nobody_answers_and_goes_on_afterwards(
    plain: Project, open_window: Open
) -> None:
    served = plain.start("web", "--port", 0)
    address = address_of(served)
    window = open_window(address)
    window.go("/queues")
    window.sees("database:default")
    served.stop()
    window.page.get_by_text("Connection lost").wait_for()
    assert window.page.locator("#live.old").count() == 1, "what is old is grey"
    plain.push("Quick", queue="mail")
    plain.start("web", "--port", address.rpartition(":")[2])
    window.sees("database:mail")
    window.page.wait_for_function("document.getElementById('lost').textContent === ''")
    assert window.page.locator("#live.old").count() == 0
