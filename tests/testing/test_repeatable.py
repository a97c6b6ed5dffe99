"""A job is killed before each thing that lasts and run again: its state must be the same."""

from __future__ import annotations

import asyncio
import importlib
import re
import sqlite3
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import aiosqlite
import httpx2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from qframe import Queueable, batch, chain, dispatch
from qframe.testing import calls, run
from qframe.testing.fakes import Fake
from qframe.testing.repeating import AT_END, AT_PAUSE, JobKilled

pytestmark = pytest.mark.usefixtures("fresh")


class Shop:
    """A database and a payment service, which the jobs of this module use."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.sqlite3"
        self.paid: list[str] = []
        self.url = ""

    def rows(self) -> list[Any]:
        with self.connect() as connection:
            found = connection.execute("SELECT * FROM orders ORDER BY 1, 2").fetchall()
        connection.close()
        return found

    def state(self) -> object:
        return self.rows(), sorted(self.paid)

    def reset(self) -> None:
        self.path.unlink(missing_ok=True)
        self.paid.clear()
        with self.connect() as connection:
            connection.execute("CREATE TABLE orders (number INTEGER, state TEXT)")
        connection.close()

    def connect(self, **more: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = sqlite3.connect(self.path, **more)
        return made


SHOP: list[Shop] = []


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    SHOP[:] = [made]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ledger = sqlite3.connect(":memory:")  # its commits are not the job's
            ledger.execute("CREATE TABLE a (b)")
            ledger.commit()
            ledger.close()
            key = self.path.partition("?key=")[2]
            if not key or key not in made.paid:
                made.paid.append(key)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}/pay"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.reset()
        yield made
        server.shutdown()
        thread.join()


def pay(key: str = "") -> None:
    url = SHOP[0].url + (f"?key={key}" if key else "")
    with urllib.request.urlopen(url) as answer:
        answer.read()


def put(*rows: tuple[int, str], key: str = "") -> None:
    connection = SHOP[0].connect()
    try:
        with connection:
            for number, state in rows:
                connection.execute(f"INSERT {key} INTO orders VALUES (?, ?)", (number, state))
    finally:
        connection.close()


def has(number: int, state: str) -> bool:
    connection = SHOP[0].connect()
    found = connection.execute("SELECT 1 FROM orders WHERE number=? AND state=?", (number, state))
    try:
        return found.fetchone() is not None
    finally:
        connection.close()


class PayOnce(Queueable):
    """Repeatable: the service knows the key, and the row is written once."""

    number: int

    def handle(self) -> None:
        pay(f"order-{self.number}")
        if not has(self.number, "paid"):
            put((self.number, "paid"))


class PayTwice(Queueable):
    number: int

    def handle(self) -> None:
        if has(self.number, "paid"):
            return
        pay()
        put((self.number, "paid"))


class TwoCommits(Queueable):
    number: int

    def handle(self) -> None:
        put((self.number, "begun"))
        put((self.number, "done"))


class InAutocommit(Queueable):
    number: int

    def handle(self) -> None:
        connection = SHOP[0].connect(isolation_level=None)
        try:
            connection.execute("DELETE FROM orders WHERE number=?", (self.number,))
            connection.execute("INSERT INTO orders VALUES (?, 'a')", (self.number,))
            connection.execute("BEGIN")
            connection.execute("UPDATE orders SET state = state || 'b'")
            connection.execute("COMMIT")
        finally:
            connection.close()


class Mail(Queueable):
    to: str
    unique: ClassVar[bool] = False

    def handle(self) -> None: ...


class MailOnce(Mail):
    once: ClassVar[int] = 3600


class Notifies(Queueable):
    def handle(self) -> None:
        MailOnce.dispatch(to="ann")  # dropped: pushed as the variable goes away
        dispatch(MailOnce(to="bo")).send()


class NotifiesAgain(Queueable):
    def handle(self) -> None:
        dispatch(Mail(to="ann")).send()


class DispatchesMany(Queueable):
    def handle(self) -> None:
        chain([Mail(to="a"), Mail(to="b")]).dispatch()
        batch([Mail(to="c"), Mail(to="d")]).dispatch()


class InSteps(Queueable):
    tries: ClassVar[int] = 3

    def handle(self) -> None:
        self.step("pay", pay, "steps")
        self.sleep("a while", 60)
        if not has(1, "paid"):
            self.step("note", put, (1, "paid"))


class OnLoop(Queueable):
    async def handle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(pay)
        await dispatch(Mail(to="ann"))


class Swallows(Queueable):
    """What catches everything cannot undo its death."""

    def handle(self) -> None:
        try:
            put((1, "begun"))
        except BaseException:  # noqa: BLE001 (as it is tested)
            pass
        finally:
            put((1, "cleaned up"))


class ThroughLibraries(Queueable):
    """Each library is one point, whatever it calls itself."""

    async def handle(self) -> None:
        self.wait_for_them()
        async with httpx2.AsyncClient() as client:
            await client.get(SHOP[0].url, params={"key": "c"})
        async with aiosqlite.connect(SHOP[0].path) as database:
            await database.execute("DELETE FROM orders WHERE state = 'gone'")
            await database.commit()

    def wait_for_them(self) -> None:
        engine = create_engine(f"sqlite:///{SHOP[0].path}")
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES (1, 'sqlalchemy')"))
        with Session(engine) as session:
            session.execute(text("UPDATE orders SET state = 'session'"))
            session.commit()
            session.rollback()
        engine.dispose()
        httpx2.get(SHOP[0].url, params={"key": "b"})


class Requests(Queueable):
    def handle(self) -> None:
        importlib.import_module("requests").get(SHOP[0].url, {"key": "a"}, timeout=30)


SESSIONS: list[Session] = []


class WithALongSession(Queueable):
    def handle(self) -> None:
        (session,) = SESSIONS
        if not session.execute(text("SELECT 1 FROM orders")).fetchone():
            session.execute(text("INSERT INTO orders VALUES (1, 'paid')"))
        session.commit()


class Imports(Queueable):
    """It imports a library only as it runs, which the first run could not patch."""

    def handle(self) -> None:
        importlib.import_module("late_library").act()


class Fails(Queueable):
    def handle(self) -> None:
        raise ValueError("no")


def refused(job: Queueable, *state: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        run(job).assert_repeatable(*state)
    return str(raised.value)


def test_a_job_that_is_repeatable_names_where_it_was_killed(shop: Shop) -> None:
    points = run(PayOnce(number=7)).assert_repeatable(shop.state, shop.reset)
    call, commit, end = points
    assert re.fullmatch(r"the call GET 127\.0\.0\.1:\d+/pay \(test_repeatable\.py:\d+\)", call)
    assert re.fullmatch(r"a commit \(test_repeatable\.py:\d+\)", commit)
    assert end == AT_END
    assert shop.state() == ([(7, "paid")], ["order-7"])


def test_a_call_that_is_made_twice_is_found_at_the_commit_behind_it(shop: Shop) -> None:
    said = refused(PayTwice(number=7), shop.state, shop.reset)
    assert "PayTwice(number=7) is not repeatable: killed before a commit (test_repeatable" in said
    assert "after one run: ([(7, 'paid')], [''])" in said
    assert "after this:    ([(7, 'paid')], ['', ''])" in said


def test_each_point_that_differs_is_named(shop: Shop) -> None:
    said = refused(TwoCommits(number=7), shop.state, shop.reset)
    assert "2 of 3 points differ" in said
    assert said.count("a commit") == 1
    assert said.rstrip().endswith(f"- before {AT_END}")


def test_statements_that_commit_by_themselves_are_points(shop: Shop) -> None:
    points = run(InAutocommit(number=1)).assert_repeatable(shop.state, shop.reset)
    assert [re.sub(r" \(.*", "", each) for each in points[:-1]] == [
        "the DELETE that is committed by itself",
        "the INSERT that is committed by itself",
        "a commit",
    ]


def test_dispatches_are_points_and_by_default_the_state() -> None:
    points = run(Notifies()).assert_repeatable()
    assert [each.partition(" (")[0] for each in points[:-1]] == ["the dispatch of MailOnce"] * 2
    said = refused(NotifiesAgain())
    assert f"killed before {AT_END} and run again, the state differs" in said


def test_the_state_may_ask_what_was_dispatched(shop: Shop) -> None:
    def state(queued: Fake) -> object:
        return {job.to for job in queued.jobs(Mail)}

    assert len(run(NotifiesAgain()).assert_repeatable(state, shop.reset)) == 2


def test_a_chain_and_a_batch_are_one_dispatch_each() -> None:
    said = refused(DispatchesMany())
    assert "2 of 3 points differ" in said


def test_durable_steps_keep_what_they_have_done(shop: Shop) -> None:
    points = run(InSteps()).assert_repeatable(shop.state, shop.reset)
    assert [re.sub(r" \(\w+\.py:.*", "", each) for each in points] == [
        "the step 'pay'",
        f"the call GET {shop.url.removeprefix('http://')}",
        "what is kept as 'pay'",
        AT_PAUSE,
        "the step 'note'",
        "a commit",
        "what is kept as 'note'",
        AT_END,
    ]


def test_an_async_job_is_killed_in_its_threads_and_at_its_awaits(shop: Shop) -> None:
    said = refused(OnLoop(), shop.state, shop.reset)
    assert "2 of 3 points differ" in said
    assert "killed before the dispatch of Mail" in said


def test_a_killed_job_does_nothing_more_that_lasts(shop: Shop) -> None:
    """Killed before its first commit it makes no other, although it catches its death."""
    said = refused(Swallows(), shop.state, shop.reset)
    assert "2 of 3 points differ" in said


def test_libraries_are_watched_where_they_are_called(shop: Shop) -> None:
    def reset() -> None:
        shop.reset()
        with shop.connect() as connection:
            connection.execute("CREATE UNIQUE INDEX one ON orders (number)")
        connection.close()

    said = refused(ThroughLibraries(), shop.state, reset)
    assert "IntegrityError" in said
    differ = int(re.search(r"(\d) of 6 points differ", said)[1])  # type: ignore[index]
    assert differ == 5  # all behind the first commit


def test_restart_is_for_what_a_new_process_has_not(shop: Shop) -> None:
    engine = create_engine(f"sqlite:///{shop.path}")

    def reset() -> None:
        with shop.connect() as connection:
            connection.execute("DELETE FROM orders")
        connection.close()

    with Session(engine) as session:
        SESSIONS[:] = [session]
        run(WithALongSession()).assert_repeatable(shop.state, reset, session.rollback)
    engine.dispose()


def test_requests_and_what_it_calls_is_one_point(shop: Shop) -> None:
    call, _ = run(Requests()).assert_repeatable(shop.state, shop.reset)
    assert call.startswith(f"the call GET {shop.url} (")


def test_a_library_that_is_imported_by_the_job_is_watched(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_library.py").write_text(
        "class Client:\n    def send(self, request): ...\n"
        "class Request:\n    method, url = 'PUT', 'http://a/b'\n"
        "def act():\n    Client().send(Request())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    late = ("late_library", "Client.send", calls._request)
    monkeypatch.setattr(calls, "LIBRARIES", [*calls.LIBRARIES, late])
    killed = run(Imports())  # here it is imported
    sys.modules.pop("late_library")
    call, _ = killed.assert_repeatable(shop.state, shop.reset)
    assert call.startswith("the call PUT http://a/b")


def test_a_job_that_does_not_end_well_is_refused(shop: Shop) -> None:
    assert "must end well to be repeated" in refused(Fails(), shop.state, shop.reset)


def test_a_state_needs_a_reset(shop: Shop) -> None:
    with pytest.raises(TypeError, match="needs reset"):
        run(PayOnce(number=7)).assert_repeatable(shop.state)


def test_nothing_stays_patched(shop: Shop) -> None:
    import http.client

    before = sqlite3.connect, http.client.HTTPConnection.putrequest
    run(PayOnce(number=7)).assert_repeatable(shop.state, shop.reset)
    assert (sqlite3.connect, http.client.HTTPConnection.putrequest) == before


def test_a_kill_is_not_caught_by_except_exception() -> None:
    assert not issubclass(JobKilled, Exception)
