"""`qframe scale`: who is meant, and what is said where nobody is or the numbers are wrong."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from qframe.console import scale
from qframe.drivers import process
from qframe.drivers.store import Store
from qframe.worker import WorkerOptions, machine, roster
from qframe.worker.control import size_key, slots_key
from qframe.worker.roster import Entry, Listed, PoolEntry
from tests.console.conftest import Shop
from tests.console.test_queues import TWO

ME = f"{process.NAME}:{os.getpid()}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_PATIENCE", 0.0)


def store(shop: Shop) -> Store:
    return shop.manager.connection("database").store


def put(shop: Shop, entry: Listed, **over: Any) -> str:
    """List a process, which is this one; gives its id."""
    entry = entry.model_copy(update={"beat_at": time.time(), **over})
    store(shop).set(entry.key, entry.model_dump_json())
    return entry.id


def worker(shop: Shop, name: str = "mail", connection: str = "database", **over: Any) -> str:
    options = WorkerOptions(name=name, concurrency=over.pop("concurrency", 5))
    return put(shop, roster.introduced(options, connection, ("default",)), **over)


def pool(shop: Shop, name: str = "mail", most: int | None = 8, **over: Any) -> str:
    options = WorkerOptions(name=name, concurrency=over.pop("concurrency", 5))
    return put(shop, roster.introduced_pool(options, "database", 4, 2, most), **over)


def told(shop: Shop, *ids: str) -> list[tuple[str | None, ...]]:
    """Give what each was told: slots, and workers."""
    return [tuple(store(shop).get(slots_key(each), size_key(each))) for each in ids]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mail"], "say how many"),
        (["mail", "0"], "concurrency must be 1 to 10000, not 0"),
        (["mail", "10001"], "invalid value for 'concurrency': 10001"),
        (["mail", "--workers", "0"], "--workers must be 1 or more, not 0"),
        (["mail", "many"], "invalid value for 'concurrency'"),
        (["other", "3"], "no worker or pool is called 'other'"),
        (["mail", "--workers", "3"], "no pool is called 'mail'"),
        (["mail", "3", "--connection", "nowhere"], "unknown connection 'nowhere'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(shop: Shop, arguments: list[str], words: str) -> None:
    id_ = worker(shop)
    said = shop.run("scale", *arguments)
    assert said.code == 2
    assert words in said.only().lower().replace("database, ", "")
    assert told(shop, id_) == [(None, None)]


def test_names_patterns_and_processes(shop: Shop) -> None:
    first, second = worker(shop), worker(shop, "mail-slow")
    other = worker(shop, "Mail", pid=1, place="elsewhere")
    shop.run("scale", "mail", "3")
    assert told(shop, first, second, other) == [("3", None), (None, None), (None, None)]
    shop.run("scale", "mail*", "4")
    assert told(shop, first, second, other) == [("4", None), ("4", None), (None, None)]
    shop.run("scale", f"{process.NAME}:1", "6")
    assert told(shop, first, second, other) == [("4", None), ("4", None), ("6", None)]


def test_a_worker_that_is_gone_or_of_another_connection_is_not_meant(shop: Shop) -> None:
    shop.write("qframe.toml", TWO)
    gone, main = worker(shop, born="1"), worker(shop, connection="main")
    said = shop.run("scale", "mail", "3", "--connection", "database")
    assert said.code == 2
    shop.run("scale", "mail", "3")
    assert told(shop, gone, main) == [(None, None), ("3", None)]


def test_a_pool_is_told_in_place_of_its_workers(shop: Shop) -> None:
    of_pool, member = pool(shop), worker(shop, pool=os.getpid())
    said = shop.run("scale", "mail", "7", "--workers", "6")
    assert told(shop, of_pool, member) == [("7", "6"), (None, None)]
    assert (said.code, said.lines) == (1, [])
    assert f"pool {ME} mail has not followed within 0 s" in said.only()


def test_a_pool_that_is_not_listed_is_named_by_its_worker(shop: Shop) -> None:
    worker(shop, pool=77)
    said = shop.run("scale", "mail", "3")
    assert said.code == 2
    assert f"{ME} mail is of the pool {process.NAME}:77" in said.only()


@pytest.mark.parametrize(("most", "number"), [(8, 9), (None, 1), (8, 1)])
def test_nobody_is_told_where_a_pool_may_not(shop: Shop, most: int | None, number: int) -> None:
    first, second = pool(shop, most=most), pool(shop, "mail", most=100)
    said = shop.run("scale", "mail", 3, "--workers", number)
    assert said.code == 2
    limits = f"--min 2 --max {most or machine.most_processes()}"
    assert f"keeps to {limits}, and not {number} workers: nothing was changed" in said.only()
    assert told(shop, first, second) == [(None, None)] * 2


def test_one_that_runs_a_job_at_a_time_is_told_nothing(shop: Shop) -> None:
    one, of_pool = worker(shop, concurrency=1), pool(shop, concurrency=1)
    said = shop.run("scale", "mail", "3")
    assert said.code == 1
    assert said.err.count("runs one job at a time: start it with --concurrency 2 or more") == 2
    assert told(shop, one, of_pool) == [(None, None)] * 2


def test_it_waits_until_all_have_taken_it_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_PATIENCE", 60.0)
    worker(shop, concurrency=2)
    of_pool, ends = pool(shop), worker(shop, "mail", pid=1, place="elsewhere")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        mine: dict[str, Entry | PoolEntry] = {each.id: each for each in roster.listed(store(shop))}
        mine |= {each.id: each for each in roster.pools(store(shop))}
        match len(pauses):
            case 1:
                put(shop, mine[of_pool], size=6)
            case 2:
                put(shop, mine[of_pool], size=6, concurrency=3)
            case 3:
                store(shop).delete(mine.pop(ends).key)
            case 4:
                for each in roster.listed(store(shop)):
                    put(shop, each, concurrency=3)
            case _:
                raise AssertionError("it waits for too much")

    monkeypatch.setattr("qframe.console.scale.time.sleep", pause)
    said = shop.run("scale", "mail", "3", "--workers", "6")
    assert said.code == 0
    assert said.lines == [
        f"pool {ME} mail: workers 6 (4 before), jobs at once 3 (5 before)",
        f"{process.NAME}:1 mail: has ended meanwhile",
        f"{ME} mail: jobs at once 3 (2 before)",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--min", "1"], "--min and --max are for a pool: give --workers as well"),
        (["--max", "3", "--watch"], "--min and --max are for a pool"),
        (["--workers", "2", "--min", "0"], "--min must be 1 or more, not 0"),
        (["--workers", "2", "--max", "0"], "--max must be 1 or more, not 0"),
        (["--workers", "2", "--min", "3"], "--workers 2 is not within --min 3"),
        (["--workers", "5", "--max", "4"], "--workers 5 is not within --min 1 and --max 4"),
    ],
)
def test_the_limits_of_a_pool_must_fit(shop: Shop, arguments: list[str], words: str) -> None:
    said = shop.run("work", *arguments)
    assert said.code == 2
    assert words in said.only()
