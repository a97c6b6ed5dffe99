"""`qframe top` and `qframe` by itself: in a terminal, and where there is none."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qframe import Queueable, batch, manager
from qframe.console import top
from qframe.operations import schedules
from qframe.schedules.rows import row_of
from qframe.web.rendering import NAVIGATION
from qframe.worker import WorkerOptions, roster
from tests.console.conftest import Shop
from tests.support.process import wait_for


class Member(Queueable):
    """A member of a batch."""

    def handle(self) -> None: ...


QFRAME = str(Path(sys.executable).with_name("qframe"))


def _take_terminal() -> None:
    """Make standard input the terminal of this session, so that Ctrl-C there is a SIGINT here."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command in a terminal of 120 columns and 30 lines."""

    def __init__(self, *words: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        self.process = subprocess.Popen(
            [QFRAME, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 (one call of the system, no lock is taken)
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        self._ours = ours
        self.seen = ""

    def text(self) -> str:
        """Give all that was shown so far, without what moves and colours it."""
        try:
            while part := os.read(self._ours, 65536):
                self.seen += part.decode()
        except (BlockingIOError, OSError):
            pass
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)

    def waits_for(self, words: str) -> None:
        wait_for(lambda: words in self.text(), repr(words))

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def ended(self) -> int:
        """Wait for the end, reading on: what nobody reads keeps a process from ending."""

        def has_ended() -> bool:
            self.text()
            return self.process.poll() is not None

        wait_for(has_ended, "its end")
        self.text()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    made = Terminal(*words)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def busy(shop: Shop) -> Shop:
    shop.write("qframe.toml", 'jobs = ["shop"]\n')
    for number in range(3):
        payload = {"uuid": f"u-{number}", "job": "shop.Order", "data": {}}
        shop.queue.push_raw(json.dumps(payload), "mail")
    shop.keep("f", failed_at=time.time())
    return shop


def test_it_shows_everything_by_keys_and_ends(busy: Shop) -> None:
    manager.use(busy.manager)
    batch([Member()]).name("winter catalogue").dispatch()
    planned = row_of(
        job="shop.Order", data={"number": 1}, when="daily_at 13:00", timezone="Europe/Vienna"
    )
    schedules.add(busy.manager, busy.queue, "nightly", planned)
    with terminal("top", "--every", "0.3") as shown:
        shown.waits_for("ready 4  delayed 0  running 0  failed 1  workers 0")
        shown.waits_for("no worker processes database:mail, but 3 jobs wait")
        for key, words in (
            ("f", "cause"),
            ("w", "nothing"),
            ("b", "winter catalogue"),
            ("s", "nightly"),
            ("q", "database:mail"),
            ("/queue:xm", "filter: queue:xm_"),  # and x has ended nothing
            ("\x7f\n", "the filter chooses none"),
            ("/\x7f\x1b/z\r", "filter: queue:xz"),  # given up, and typed on
            ("w/nothing:1\r", "there is no filter nothing:"),
            ("f/error:nothing\r", "filter: error:nothing"),
            ("o/worker\r", "filter: worker"),
            ("p/nobody\r", "filter: nobody"),
        ):
            shown.press(key)
            shown.waits_for(words)
        shown.press("j")
        shown.press("c")
        shown.press("x")
        assert shown.ended() == 0
    with terminal("top", "--every", "0.3") as shown:
        shown.waits_for("ready 4")
        shown.press("\x03")
        assert shown.ended() == 0


def test_its_keys_are_those_of_the_page() -> None:
    keys = {key: label.lower() for _, links in NAVIGATION for _, label, key in links}
    ours = {key: page.name for key, page in top._PAGES.items() if page.name != "supervisors"}
    assert ours == keys


@pytest.mark.slow
def test_supervisors_are_shown_with_why(busy: Shop) -> None:
    entry = roster.introduced_pool(WorkerOptions(name="mails"), "database", 5, 2, 10)
    told = {"beat_at": time.time(), "shares": {"mail": 4}, "why": {"mail": "40 ready: needs 4"}}
    entry = entry.model_copy(update=told)
    busy.queue.store.set(entry.key, entry.model_dump_json())
    with terminal("top", "--every", "0.3") as shown:
        shown.waits_for("ready 3")
        shown.press("p")
        shown.waits_for("40 ready: needs 4")
        assert "database:mail" in shown.text()
        shown.press("x")
        assert shown.ended() == 0


def test_where_there_is_no_terminal_it_says_it_once(busy: Shop) -> None:
    said = busy.run("top")
    assert said.code == 0
    assert said.lines[0].startswith("ready 3  delayed 0")
    assert "!!  no worker processes database:mail, but 3 jobs wait" in said.lines[1:]


@pytest.mark.parametrize(
    ("every", "told"),
    [("0", "--every takes seconds"), ("-1", "--every takes seconds"), ("nan", "is not a number")],
)
def test_a_time_that_is_none_is_refused(busy: Shop, every: str, told: str) -> None:
    said = busy.run("top", f"--every={every}")
    assert (said.code, told in said.only()) == (2, True)


@pytest.mark.parametrize(
    "is_configured", [pytest.param(True, marks=pytest.mark.slow), False], ids=["file", "database"]
)
def test_qframe_by_itself_says_how_everything_stands_in_ten_lines(
    busy: Shop, *, is_configured: bool
) -> None:
    if not is_configured:
        (busy.root / "qframe.toml").unlink()
    with terminal() as shown:
        shown.waits_for("qframe --help lists the commands")
        assert shown.ended() == 0
        lines = shown.text().splitlines()
        assert 3 <= len(lines) <= 10
        assert lines[0].startswith("database (")
        assert lines[1].startswith("config  ")
        assert lines[2].startswith("ready 3")
        assert any("no worker processes database:mail" in line for line in lines)


def test_where_there_is_no_project_it_is_the_help_and_makes_no_file(fresh: Path) -> None:
    with terminal() as shown:
        shown.waits_for("Usage")
        assert shown.ended() == 0
    assert list(fresh.iterdir()) == []
