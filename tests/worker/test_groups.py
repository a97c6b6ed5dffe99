"""Groups of jobs with real workers, some of which are killed: limits, order, and turns."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.process import Process, Project, wait_for
from tests.worker.bounding import most_at_once

_LEASE = 2.0
_SLOTS, _ISOLATED = ("--concurrency", 3), ("--isolate",)
KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((), id="line"),
        pytest.param(_SLOTS, id="slots"),
        pytest.param(_ISOLATED, id="isolated", marks=pytest.mark.slow),
    ],
)
on_every_backend = pytest.mark.parametrize(
    "project",
    [
        "database",
        "redis",
        "beanstalkd",
        pytest.param("redis cluster", marks=pytest.mark.slow),
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ],
    indirect=True,
)


@pytest.fixture
def shops(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("grouped.py"), project.root)
    return project


def push(project: Project, *jobs: tuple[int, int], more: str = "") -> None:
    """Queue the jobs of these shops and numbers, in this order."""
    code = "from grouped import Sync\nfrom qframe import bulk\n"
    finished = project.program(f"{code}bulk([Sync(shop=s, number=n{more}) for s, n in {jobs}])")
    assert finished.code == 0, finished.err


def configure(project: Project, groups: str) -> None:
    project.configure(f'jobs = ["jobs", "grouped"]\n[groups.mail]\n{groups}\n', retry_after=_LEASE)


def left(project: Project) -> list[str]:
    """Give the keys of what is kept of groups, but for the mark of their queue."""
    keys = [key for key, _ in project.queue.backend.scan("group")]
    return [key for key in keys if not key.startswith("groups:")]


def kill_some(project: Project, count: int) -> tuple[dict[int, float], list[Process]]:
    """Kill workers that run a job, each time with another in its place; give when, and the rest."""

    def start() -> Process:
        kinds = [(), _SLOTS, _ISOLATED]
        return project.work("--queue", "mail", *kinds[len(project.processes) % 3])

    workers = [start() for _ in range(4)]
    killed: dict[int, float] = {}
    for round_ in range(count):
        before = len(project.notes("start"))
        wait_for(lambda before=before: len(project.notes("start")) > before + 5, "some to start")  # type: ignore[misc] # as bound
        worker = workers.pop(round_ % len(workers))
        pids = [worker.pid, *(each.pid for each in worker.descendants())]
        killed.update(dict.fromkeys(pids, time.time()))  # beanstalkd gives its jobs on at once
        worker.end()
        workers.append(start())
    return killed, workers


@on_every_backend
@KINDS
def test_one_job_beside_hundreds_of_another_group_is_among_the_first(
    shops: Project, kind: tuple[object, ...]
) -> None:
    configure(shops, "concurrency = 2")
    count = 30 if "--isolate" in kind else 150
    push(shops, *((1, number) for number in range(count)), (2, 0), more=", seconds=0")
    shops.drain("--queue", "mail", *kind)
    order = [line[1] for line in shops.notes("start")]
    assert order.index("2-0") <= 4
    assert Counter(order) == Counter([*(f"1-{number}" for number in range(count)), "2-0"])
    assert not left(shops)


@on_every_backend
def test_killed_workers_give_their_places_back_and_lose_nothing(shops: Project) -> None:
    configure(shops, "concurrency = 2")
    jobs = [(shop, number) for number in range(15) for shop in (1, 2, 3)]
    push(shops, *jobs, more=", shaky=True")
    killed, workers = kill_some(shops, 3)
    wait_for(lambda: shops.empty("mail"), "all jobs", 90)
    assert {line[1] for line in shops.notes("done")} == {f"{s}-{n}" for s, n in jobs}
    assert shops.stop(workers) == [0] * 4
    late = sum(each.err.count("its lease had passed") for each in shops.processes)
    for shop in (1, 2, 3):
        assert most_at_once(shops, f"{shop}-", killed) - 2 in range(-1, late + 1)
    assert not left(shops)
    assert not shops.failed()


@on_every_backend
def test_in_strict_order_each_follows_the_one_before_through_retries_and_kills(
    shops: Project,
) -> None:
    configure(shops, 'order = "strict"')
    jobs = [(shop, number) for number in range(10) for shop in (1, 2, 3)]
    push(shops, *jobs, more=", shaky=True")
    killed, workers = kill_some(shops, 3)
    wait_for(lambda: shops.empty("mail"), "all jobs", 90)
    assert shops.stop(workers) == [0] * 4
    late = sum(each.err.count("its lease had passed") for each in shops.processes)
    for shop in (1, 2, 3):
        numbers = [line[1] for line in shops.notes("start") if line[1].startswith(f"{shop}-")]
        order = [int(word.split("-")[1]) for word in numbers]
        assert order == sorted(order) or late
        assert {*order} == set(range(10))
        assert most_at_once(shops, f"{shop}-", killed) - 1 in range(late + 1)
    assert not left(shops)
    assert not shops.failed()


@on_every_backend
@pytest.mark.parametrize(
    "kind", [pytest.param((), id="line", marks=pytest.mark.slow), pytest.param(_SLOTS, id="slots")]
)
def test_workers_of_one_group_get_out_of_each_others_way(
    shops: Project, kind: tuple[object, ...]
) -> None:
    """They change its state all the time, and pushes do, too."""
    configure(shops, "concurrency = 6")
    workers = [shops.work("--queue", "mail", *kind) for _ in range(3)]
    for first in range(0, 80, 40):
        push(shops, *((1, number) for number in range(first, first + 40)), more=", seconds=0")
    wait_for(lambda: shops.empty("mail"), "all jobs", 60)
    assert shops.stop(workers) == [0] * 3
    done = Counter(line[1] for line in shops.notes("done"))
    assert done == dict.fromkeys((f"1-{number}" for number in range(80)), 1)
    assert not left(shops)
    assert "changed again and again" not in "".join(each.err for each in shops.processes)


def test_check_refuses_wrong_settings_with_one_line(shops: Project) -> None:
    configure(shops, 'order = "strict"\nconcurrency = 2')
    finished = shops.qframe("check")
    assert finished.code == 2
    (line,) = (finished.out + finished.err).strip().splitlines()
    assert "groups.mail" in line
    assert "one job of a group at a time" in line


def test_the_size_of_each_group_is_listed_the_longest_line_first(shops: Project) -> None:
    configure(shops, "concurrency = 2")
    assert shops.qframe("size", "--groups").out == "no group has a job\n"
    push(shops, (1, 0), *((2, number) for number in range(5)))
    finished = shops.qframe("size", "--groups", "--queue", "mail", "--json")
    assert [(row["group"], row["in_line"], row["places"]) for row in json.loads(finished.out)] == [
        ("shop:2", 3, 2), ("shop:1", 0, 1)
    ]  # fmt: skip
    shown = shops.qframe("size", "--groups").out.splitlines()
    assert [line.split()[-3:] for line in shown[-2:]] == [
        ["shop:2", "3", "2"],
        ["shop:1", "0", "1"],
    ]


@pytest.mark.parametrize("project", ["database", "beanstalkd"], indirect=True)
def test_the_command_that_forgets_a_failed_job_lets_its_group_go_on(shops: Project) -> None:
    configure(shops, 'order = "strict"')
    for data in ({"nothing": 1}, {"shop": 1, "number": 2, "seconds": 0}):
        shops.push("grouped.Sync", data, queue="mail", group="shop:1")
    shops.drain("--queue", "mail")
    assert not shops.notes("done")
    assert shops.sizes("mail").ready == 1
    assert shops.qframe("size", "--groups").out.split()[-3:] == ["shop:1", "1", "1"]
    assert shops.qframe("forget", shops.failure().uuid).code == 0
    shops.drain("--queue", "mail")
    assert shops.notes("done") == [["done", "1-2"]]


@pytest.mark.slow
@on_every_backend
def test_the_place_of_a_stalled_worker_goes_with_its_job(shops: Project) -> None:
    configure(shops, 'order = "strict"')
    first = shops.work("--queue", "mail")
    for number in range(3):
        data = {"shop": 1, "number": number}
        shops.push("grouped.Stalls", data, queue="mail", group="shop:1")
    _, _, _, _, pid = shops.wait_for_note("start", "1-0")
    assert int(pid) == first.pid
    second = shops.work("--queue", "mail")
    shops.wait_for_note("done", "1-2")
    first.signal(signal.SIGCONT)
    assert shops.stop([first, second]) == [0, 0]
    done = [line[1:] for line in shops.notes("done") if line[1:] != ["1-0", "1"]]
    assert done == [["1-0", "2"], ["1-1", "1"], ["1-2", "1"]]
    assert not left(shops)
    assert shops.empty("mail")
