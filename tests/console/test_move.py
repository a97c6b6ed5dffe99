"""`qframe move`: what it prints, and how it ends."""

from __future__ import annotations

import os
import signal

import pytest

from qframe import Flow, Queueable, manager
from qframe.moving import QueueMover
from tests.console.conftest import Shop

FILES = """
default = "database"
[connections.database]
driver = "database"
url = "sqlite:///one.sqlite3"
[connections.other]
driver = "database"
url = "sqlite:///two.sqlite3"
[connections.rabbit]
driver = "rabbitmq"
"""


class NodeOfMove(Queueable):
    def handle(self) -> None: ...


@pytest.fixture(autouse=True)
def _two(shop: Shop) -> None:
    shop.write("qframe.toml", FILES)


def row(what: str, outcome: str, jobs: int, queue: str = "default") -> dict[str, object]:
    return {"queue": queue, "what": what, "outcome": outcome, "why": "", "jobs": jobs}


def test_it_counts_and_then_moves(shop: Shop) -> None:
    assert shop.run("move", "database", "other").out == "nothing waits on database\n"
    for number in range(3):
        shop.queue.push_raw(b'{"uuid":"%d"}' % number, "mail", delay=60 * (number > 1))
    shop.keep("failed", connection="database")
    rows = [
        row("failed", "would move", 1),
        row("delayed", "would move", 1, "mail"),
        row("ready", "would move", 2, "mail"),
    ]
    said = shop.run("move", "database", "other", "--dry-run", "--json")
    assert (said.code, said.err, said.rows) == (0, "", rows)
    assert shop.queue.size("mail") == 3
    said = shop.run("move", "database", "other", "--json")
    moved = [{**each, "outcome": "moved"} for each in rows]
    assert (said.code, said.err, said.rows) == (0, "", moved)
    assert shop.manager.connection("other").size("mail") == 3


def test_what_stays_is_the_exit_code(shop: Shop) -> None:
    shop.queue.push_raw(b"1")
    (held,) = shop.queue.reserve(["default"])
    shop.queue.backend.apply(held.start_plan())
    said = shop.run("move", "database", "other", "--queue", "default")
    assert said.code == 1
    assert "it ends where it runs" in said.out
    assert said.err == "qframe: 1 job stays on database\n"


def test_a_flow_that_cannot_move_is_told_of_first(shop: Shop) -> None:
    toml = (shop.root / "qframe.toml").read_text()
    shop.write("qframe.toml", f'{toml}[failed]\ndriver = "other"\n')  # steps are made in parts
    manager.use(shop.manager)
    flow = Flow("f")
    flow.add(NodeOfMove())
    flow.dispatch()
    said = shop.run("move", "database", "other")
    assert said.code == 1
    first, last = said.err.splitlines()
    assert first.startswith("qframe: 1 flow stays on database: it ends where it began: ")
    assert last == "qframe: 1 job stays on database"
    assert '"what": "flow"' in shop.run("move", "database", "other", "--dry-run", "--json").out


def test_ctrl_c_stops_between_two_exchanges(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        shop.queue.push_raw(b"%d" % number)
    move_jobs = QueueMover._move_jobs

    def moving(*given: object) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return move_jobs(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueMover, "_move_jobs", moving)
    said = shop.run("move", "database", "other")
    assert (said.code, said.err) == (130, "qframe: stopped: repeat the command to move the rest\n")
    assert (shop.queue.size(), shop.manager.connection("other").size()) == (200, 100)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("database", "nowhere"), "unknown connection 'nowhere'"),
        (("database", "database"), "the jobs of database are there already"),
        (("database", "sync"), "the connection 'sync' keeps no jobs"),
        (("database", "other", "--queue", "a b"), "'a b' is not a queue name"),
        (("rabbit", "database"), "the queues of rabbit cannot be listed: name each with --queue"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(shop: Shop, words: tuple[str, ...], error: str) -> None:
    said = shop.run("move", *words)
    assert (said.code, error in said.only()) == (2, True), said
