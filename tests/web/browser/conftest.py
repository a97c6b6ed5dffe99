"""Debian's Chromium, driven by playwright, and a page for it, served by a real process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    Request,
    sync_playwright,
)

from qframe import Flow, PendingBatch
from qframe.operations.board import Board
from tests.conftest import settings_of
from tests.support.process import Process, Project, wait_for
from tests.support.projects import DatabaseProject, RedisProject
from tests.support.server_process import binary
from tests.web.test_command import JOBS, address_of


class Window:
    """A tab, and what went wrong in it: errors on the console, and requests to others."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.troubles: list[str] = []
        self.strangers: list[str] = []
        page.set_default_timeout(45_000)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog {dialog.message}"))
        page.on("request", self._note)

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.troubles.append(message.text)

    def _note(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.strangers.append(request.url)

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.address + path)
        return self.page

    def text(self) -> str:
        """Give what is seen."""
        return re.sub(r"\s+", " ", self.page.inner_text("main"))

    def sees(self, text: str) -> None:
        """Wait until something is seen."""
        self.page.get_by_text(text).first.wait_for()

    def loads(self, element: Locator) -> Locator:
        """Load the page again until it has an element, and give it.

        A page without scripts stays as it was first shown, with what was known by then.
        """

        def there() -> bool:
            if element.count():
                return True
            self.page.reload()
            return False

        wait_for(there, str(element), 45)
        return element

    def is_clean(self) -> None:
        """Fail where the console told of something, or somebody else was asked."""
        assert self.troubles == []
        assert self.strangers == []


Open = Callable[..., Window]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Give the browser that the tests of a module share.

    Playwright has an event loop running in this thread, which other tests must not find.
    """
    path = binary("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def begin(pending: PendingBatch | Flow) -> None:
    """Dispatch it from another thread: Playwright's event loop is running in this one."""
    with ThreadPoolExecutor(1) as other:
        other.submit(pending.dispatch).result()


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("database", "redis", "postgresql")]


@pytest.fixture(params=_SLOW)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Give a project on each of three backends."""
    kind = RedisProject if request.param == "redis" else DatabaseProject
    with kind(tmp_path, **settings_of(request)) as made:
        made.write("jobs.py", JOBS)
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Project]:
    """Give a project on SQLite."""
    with DatabaseProject(tmp_path) as made:
        made.write("jobs.py", JOBS)
        yield made


@pytest.fixture
def open_window(chromium: Browser) -> Iterator[Open]:
    """Give what opens a tab on a page, served by a process of its own."""
    contexts: list[BrowserContext] = []

    def opened(served: Project | str, *arguments: object, **options: Any) -> Window:
        address = served if isinstance(served, str) else serve(served, *arguments)
        context = chromium.new_context(**options)
        contexts.append(context)
        return Window(context.new_page(), address)

    yield opened
    for each in contexts:
        each.close()


def serve(project: Project, *arguments: object) -> str:
    """Serve the page, and give its address."""
    return address_of(project.start("web", "--port", 0, *arguments))


def failed(project: Project, count: int) -> None:
    """Have so many jobs fail, for one cause."""
    for number in range(count):
        project.push("Breaks", {"number": number})
    project.drain()


def working(project: Project, *arguments: object) -> Process:
    """Start a worker, and wait until the page could show it."""
    worker = project.work(*arguments)
    board = Board(project.manager)

    def is_there() -> bool:
        board.forget()
        return any(each.pid == worker.pid for each in board.workers())

    wait_for(is_there, "the worker")
    return worker
