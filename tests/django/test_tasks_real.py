"""Tasks of `django.tasks` on real servers: priorities, timeouts, MariaDB."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.django_shop import WORK, DjangoShop, databases, in_database
from tests.support.mariadb_server import MariadbServer
from tests.support.sql_server import wait_until

pytestmark = pytest.mark.slow
SHOWN = """
import json
from qframe.django.compat import task_backends
for task in {}:
    r = task_backends["default"].get_result(task)
    print(json.dumps({{
        "status": r.status, "workers": r.worker_ids,
        "errors": [(e.exception_class_path, e.traceback) for e in r.errors],
        "last": r.last_attempted_at and r.last_attempted_at.timestamp(),
        "value": r.return_value if r.status == "SUCCESSFUL" else None,
    }}))
"""


def shown(shop: DjangoShop, *tasks: str) -> list[dict[str, Any]]:
    """Give results as another process reads them."""
    return [json.loads(line) for line in shop.run(SHOWN.format([*tasks])).splitlines()]


def shown_until(shop: DjangoShop, task: str, status: str, seconds: float) -> dict[str, Any]:
    """Give a result once it has a status."""
    said = shop.run_until(SHOWN.format([task]), f'"status": "{status}"', seconds)
    return dict(json.loads(said))


def test_the_higher_priority_is_first(own_beanstalkd: BeanstalkdServer, tmp_path: Path) -> None:
    port = own_beanstalkd.port
    settings = in_database(default="beanstalkd")
    settings["connections"]["beanstalkd"] = {"driver": "beanstalkd", "port": port}
    shop = DjangoShop(tmp_path, qframe=settings)
    shop.done("migrate", "--verbosity", "0")
    ids = shop.run(
        "for priority in (-100, 0, 1, 100): print(receipt.using(priority=priority).enqueue(1).id)\n"
        "print(stubborn.using(priority=99).enqueue(2).id)"
    ).split()
    with own_beanstalkd.client() as client:
        client.watch("default")
        first = [client.stats_job(number)["pri"] for number in range(1, 6)]
    assert first == [1124, 1024, 1023, 924, 925]
    shop.done("qframe", "work", "--stop-when-empty", "--tries", "2")
    results = dict(zip(ids, shown(shop, *ids), strict=True))
    assert {each["status"] for each in results.values()} == {"SUCCESSFUL"}
    least, plain, more, most, again = ids
    order = sorted(ids, key=lambda task: results[task]["last"])
    assert order == [most, again, more, plain, least], "it was tried again before what is behind it"


def test_the_higher_priority_is_first_in_a_database(tmp_path: Path) -> None:
    shop = DjangoShop(tmp_path, qframe=in_database())
    shop.done("migrate", "--verbosity", "0")
    ids = shop.run(
        "for priority in (-100, -1, 0, 1, 100): "
        "print(receipt.using(priority=priority).enqueue(1).id)"
    ).split()
    shop.done("qframe", "work", "--stop-when-empty")
    results = dict(zip(ids, shown(shop, *ids), strict=True))
    assert {each["status"] for each in results.values()} == {"SUCCESSFUL"}
    assert sorted(ids, key=lambda task: results[task]["last"]) == ids[::-1]


_LONG = [
    pytest.param(each, marks=pytest.mark.long) for each in (("--isolate",), ("--concurrency", "4"))
]


@pytest.mark.parametrize("options", [(), *_LONG], ids=lambda words: "-".join(words) or "one")
def test_a_timeout_is_told(tmp_path: Path, options: tuple[str, ...]) -> None:
    shop = DjangoShop(tmp_path, qframe=in_database())
    shop.done("migrate", "--verbosity", "0")
    task = shop.run(
        "from qframe.django.compat import task_backends\n"
        "task_backends['default'].options.update(timeout=1.5, tries=2)\n"
        "print(slow.enqueue(60).id)"
    )
    with shop.started(
        *WORK, "--workers", "1", "--grace", "1", *options
    ):  # a pool begins again what a timeout ends
        found = shown_until(shop, task, "FAILED", 40)
    assert [path for path, _ in found["errors"]] == ["qframe.exceptions.JobTimedOut"] * 2, found
    assert all("1.5" in text for _, text in found["errors"])
    host, _, pid = found["workers"][0].rpartition(":")
    assert host
    assert pid.isdigit()
    assert len(found["workers"]) == 2
    if not options:
        assert len({*found["workers"]}) == 2, "the process of the first attempt has ended"


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "1"), marks=pytest.mark.long)])
def test_the_last_attempt_is_told_whose_worker_was_killed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    shop = DjangoShop(tmp_path, qframe=in_database())
    shop.done("migrate", "--verbosity", "0")
    task = shop.run(f"print(killed.enqueue({str(shop.folder)!r}).id)")
    began = shop.folder / "began-1"
    with shop.started(*WORK, *options) as worker:
        wait_until(lambda: began.exists() and began.read_text(), "the task to begin", 30)
        killed = int(began.read_text())
        os.kill(killed, signal.SIGKILL)
        if not options:
            worker.wait()
    with shop.started(*WORK):
        found = shown_until(shop, task, "FAILED", 40)
    *_, (path, text) = found["errors"]  # a pool has seen it die, and said so before
    assert path == "qframe.exceptions.MaxAttemptsExceeded"
    assert f"pid {killed}" in text
    assert [each.rpartition(":")[2] for each in found["workers"]] == [str(killed)]
    assert found["last"] is not None


@pytest.mark.parametrize("options", [(), *_LONG], ids=lambda words: "-".join(words) or "one")
def test_task_finished_is_sent_once_by_the_worker(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also of what was skipped, or cancelled while it ran."""
    hears = {"WorkerStarting": ["suite.receivers:connect"]}
    shop = DjangoShop(tmp_path, qframe=in_database(listeners=hears))
    shop.done("migrate", "--verbosity", "0")
    ids = shop.run(
        "for each in (unwilling, unwilling_on_loop, count): print(each.enqueue().id)\n"
        "print(slow_on_loop.enqueue(60).id)"
    ).split()
    told = shop.folder / "finished"
    with shop.started(*WORK, *options) as worker:
        shown_until(shop, ids[3], "RUNNING", 40)
        shop.done("qframe", "cancel", ids[3], "--running")
        wait_until(lambda: len(told.read_text().splitlines()) > 3, "all to be told", 60)
    found = [line.rsplit(" ", 1) for line in told.read_text().splitlines()]
    skipped, cancelled = (f"FAILED qframe.exceptions.{e}" for e in ("DontHandle", "JobCancelled"))
    ends = [skipped, skipped, "SUCCESSFUL ", cancelled]
    expected = [f"{task} {end}" for task, end in zip(ids, ends, strict=True)]
    assert sorted(said for said, _ in found) == sorted(expected)
    by = {said.partition(" ")[0]: int(process) for said, process in found}
    assert {by[task] for task in ids if task != ids[2]} == {worker.pid}
    assert (by[ids[2]] == worker.pid) is ("--isolate" not in options)


def test_on_mariadb(own_mariadb: MariadbServer, tmp_path: Path) -> None:
    settings = in_database(DISPATCH="within")
    shop = DjangoShop(tmp_path, databases=databases(own_mariadb), qframe=settings)
    shop.done("migrate", "--verbosity", "0")
    assert "nothing to do" in shop.done("qframe", "migrate")
    lines = shop.run(
        "from django.db import transaction\n"
        "try:\n"
        "    with transaction.atomic():\n"
        "        receipt.enqueue(order=0); Ship.dispatch(order=0); raise KeyError\n"
        "except KeyError: pass\n"
        "with transaction.atomic():\n"
        "    o = Order.objects.create(article='l\u00e4mp'); Ship.dispatch(order=o.pk)\n"
        "    print(o.pk, receipt.enqueue(order=o.pk).id)\n"
        "    from qframe import manager; print(manager.default().connection().size())\n"
        "print(manager.default().connection().size(), stubborn.enqueue(good_at=2).id)"
    ).split()
    number, task, inside, after, again = lines
    assert (inside, after) == ("0", "2"), "what is in the transaction is seen by nobody else"
    with shop.started(*WORK, "--tries", "2", "--concurrency", "3"):
        shown_until(shop, again, "SUCCESSFUL", 40)
        shop.run_until(f"print(Order.objects.get(pk={number}).shipped)", "^1$", 20)
    once, twice = shown(shop, task, again)
    assert (once["status"], once["value"]) == ("SUCCESSFUL", f"receipt {number}")
    assert (len(once["workers"]), len(twice["workers"])) == (1, 2)
