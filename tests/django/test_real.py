"""The shop on real servers: requests, workers that are killed, a database that was away."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_shop import WORK, DjangoShop, ask, databases, in_database, serving
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.sql_server import USER, wait_until

pytestmark = pytest.mark.slow
KEPT = {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}


@pytest.fixture
def shop(own_postgres: PostgresServer, tmp_path: Path) -> DjangoShop:
    made = DjangoShop(tmp_path, databases=databases(own_postgres), qframe=in_database())
    made.done("migrate", "--verbosity", "0")
    return made


@pytest.mark.parametrize(
    ("kind", "path", "options"),
    [
        ("wsgi", "/orders/", ()),
        ("asgi", "/orders/", ("--concurrency", "10")),
        ("asgi", "/orders/async/", ("--isolate",)),
    ],
)
def test_requests_and_a_worker(
    shop: DjangoShop, kind: str, path: str, options: tuple[str, ...]
) -> None:
    with serving(shop, kind) as port, shop.started(*WORK, *options):
        placed = [ask(port, path, article="lamp")["order"] for _ in range(5)]
        if path == "/orders/":
            with pytest.raises(urllib.error.HTTPError, match="402"):
                ask(port, path, article="lamp", fail="1")

        def all_done() -> bool:
            shown = [ask(port, f"/orders/{each}/") for each in placed]
            return all(each["shipped"] == 1 and each["receipt"] for each in shown)

        wait_until(all_done, "orders to be shipped, with receipts", 30)
        task = ask(port, "/reports/")["task"]
        wait_until(lambda: ask(port, f"/reports/?task={task}")["status"] == "SUCCESSFUL", "it", 60)
        assert ask(port, f"/reports/?task={task}")["value"] == 5


SIGNED_IN = """
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("root"))
print(client.cookies["sessionid"].value)
"""


def test_an_open_page_renews_itself_on_asgi(tmp_path: Path) -> None:
    shop = DjangoShop(tmp_path, qframe=in_database())
    shop.done("migrate", "--verbosity", "0")
    cookie = {"Cookie": f"sessionid={shop.run(SIGNED_IN)}"}
    with serving(shop, "asgi") as port:

        def opened(path: str) -> Any:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=cookie)
            return urllib.request.urlopen(asked, timeout=60)

        with opened("/admin/queues/queues") as page:
            (live,) = re.findall(r'data-live="([^"]+)"', page.read().decode())
        assert live.startswith("/admin/queues/live?")
        with opened(unescape(live)) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            assert "others" not in said(stream)
            shop.run("Ship.dispatch(order=1).on_queue('others').send()")
            # It comes by itself, over the line that is open; something else may have changed first.
            wait_until(lambda: "others" in said(stream), "the queue", 60)
    ended = (shop.folder / "server.log").read_text()
    assert "Finished server process" in ended, ended
    assert "Traceback" not in ended, ended


def said(stream: Any) -> str:
    """Wait for what a page is told next; comments tell only that nothing has changed."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return str(json.loads(line.removeprefix(b"data: ")))


def test_a_task_whose_worker_is_killed_runs_again(shop: DjangoShop) -> None:
    code = f"print(killed.using().enqueue({str(shop.folder)!r}).id)"
    task = shop.run(code)
    with shop.started(*WORK, "--tries", "3") as worker:
        began = shop.folder / "began-1"
        wait_until(lambda: began.exists() and began.read_text(), "the task to begin", 30)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    with shop.started(*WORK, "--tries", "3"):
        said = (
            "import json; r = killed.get_result({!r}); print(json.dumps([r.status, r.worker_ids]))"
        )
        _, workers = json.loads(shop.run_until(said.format(task), "SUCCESSFUL", 40))
    assert len(set(workers)) == 2
    assert workers[0].endswith(f":{began.read_text()}")


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--concurrency", "4"), marks=pytest.mark.long),
        pytest.param(("--isolate",), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("more", [{}, pytest.param(KEPT, marks=pytest.mark.long)])
def test_the_database_was_away(
    own_postgres: PostgresServer, tmp_path: Path, more: dict[str, Any], options: tuple[str, ...]
) -> None:
    shop = DjangoShop(tmp_path, databases=databases(own_postgres, **more), qframe=in_database())
    shop.done("migrate", "--verbosity", "0")
    ship = (
        "o = Order.objects.create(article='lamp'); Ship.dispatch(order=o.pk).send()\n"
        "ShipOnLoop.dispatch(order=o.pk).send(); print(o.pk)"
    )
    shipped = "print(Order.objects.get(pk={}).shipped)"
    log = shop.folder / "worker.log"
    with log.open("w") as said, shop.started(*WORK, *options, "--json", stdout=said):
        first = shop.run(ship)
        shop.run_until(shipped.format(first), "^2$", 30)
        own_postgres.restart()
        second = shop.run(ship)
        shop.run_until(shipped.format(second), "^2$", 40)
    text = log.read_text()
    assert '"failed"' not in text, text


LOOKS = """
from django.core.management import call_command
from suite.looking.jobs import Hold, HoldOnLoop, Look, LookOnLoop
call_command("migrate", verbosity=0)
for fails in (False, True):
    Hold.dispatch(article=f"thread {fails}", fails=fails).send()
    HoldOnLoop.dispatch(article=f"loop {fails}", fails=fails).send()
for _ in range(12):
    Look.dispatch().send(); LookOnLoop.dispatch().send()
"""


def test_connections_end_with_their_jobs_and_are_shared_by_none(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    queue = {"driver": "database", "url": f"sqlite:///{tmp_path}/queue.sqlite3"}
    shop = DjangoShop(
        tmp_path,
        databases=databases(own_postgres, CONN_MAX_AGE=0),
        qframe={"default": "queue", "connections": {"queue": queue}},
        DJANGO_SETTINGS_MODULE="suite.looking.settings",
    )
    shop.run(LOOKS)
    said = shop.folder / "said"
    with shop.started(*WORK, "--concurrency", "4"):
        wait_until(lambda: said.exists() and said.read_text().count("\n") == 32, "all jobs", 60)

        def open_now() -> list[tuple[Any, ...]]:
            return own_postgres.sql("select pid from pg_stat_activity where usename = %s", USER)

        wait_until(lambda: not open_now(), "the connections of jobs to be closed", 40)
    lines = [json.loads(line) for line in said.read_text().splitlines()]
    looks = [each for each in lines if "look" in each]
    for where, queries in (("thread", 2), ("loop", 3)):
        logs = [each["queries"] for each in looks if each["look"] == where]
        assert logs == [queries] * 12, "the log of queries begins anew with each job"
    assert len({each["backend"] for each in looks}) == 24
    assert [each["together"] for each in lines if "together" in each] == [4] * 4
    assert len({each["transaction"] for each in lines if "transaction" in each}) == 4
    kept = own_postgres.sql("select article from shop_order order by article")
    assert kept == [("loop False",), ("thread False",)], "one that is rolled back takes no other"


def test_no_socket_is_shared_by_forks(own_postgres: PostgresServer, tmp_path: Path) -> None:
    hears = {"JobPopped": ["shop.jobs:look"]}  # in the worker, which has a connection from then on
    settings = in_database(listeners=hears)
    shop = DjangoShop(
        tmp_path, databases=databases(own_postgres, CONN_MAX_AGE=600), qframe=settings
    )
    shop.done("migrate", "--verbosity", "0")
    ids = shop.run("print(*[Connected.dispatch().track().send() for _ in range(6)])").split()
    with shop.started(*WORK, "--isolate", "--concurrency", "3"):
        said = (
            f"import json, qframe; print(json.dumps([qframe.job_status(i).result for i in {ids}]))"
        )
        found = json.loads(shop.run_until(said, "^(?!.*null)", 40))
    assert len({process for process, _ in found}) == 6
    assert len({backend for _, backend in found}) == 6


def test_within_goes_by_the_outbox_to_redis(
    own_postgres: PostgresServer, redis_running: RedisServer, tmp_path: Path
) -> None:
    settings = in_database(DISPATCH="within", default="redis", outbox={"connection": "database"})
    settings["connections"]["redis"] = {"driver": "redis", "url": redis_running.url}
    shop = DjangoShop(tmp_path, databases=databases(own_postgres), qframe=settings)
    shop.done("migrate", "--verbosity", "0")
    shop.run(
        "from django.db import transaction\n"
        "try:\n"
        "    with transaction.atomic():\n"
        "        Ship.dispatch(order=1); raise KeyError\n"
        "except KeyError: pass\n"
        "with transaction.atomic():\n"
        "    o = Order.objects.create(article='lamp'); Ship.dispatch(order=o.pk)"
    )
    assert own_postgres.sql("select count(*) from qframe_outbox") == [(1,)]
    with shop.started(*WORK):
        shop.run_until("print(Order.objects.latest('pk').shipped)", "^1$", 30)


def test_migrate_makes_the_tables_and_prints_them(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    shop = DjangoShop(tmp_path, databases=databases(own_postgres), qframe=in_database())
    printed = shop.done("sqlmigrate", "qframe", "0001")
    for table in ("jobs", "failed_jobs", "qframe_facts", "qframe_outbox"):
        assert f"CREATE TABLE IF NOT EXISTS {table}" in printed.replace('"', ""), printed
    shop.done("qframe", "migrate")
    shop.done("migrate", "--verbosity", "0")
    assert "nothing to do" in shop.done("qframe", "migrate")
    own_postgres.sql("drop table qframe_marks")
    shop.done("migrate", "--verbosity", "0")
    assert own_postgres.sql("select count(*) from qframe_marks") == [(0,)]


def test_the_pool_works(shop: DjangoShop) -> None:
    shop.run("for _ in range(8): Connected.dispatch().send()")
    said = shop.done("qframe", "work", "--workers", "2", "--stop-when-empty")
    assert said.count("DONE") == 8, said
