"""Priorities with real workers: the next one is the most urgent, also from a killed worker."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.support.process import Project, wait_for

_URGENT, _LAST = 0, 5000
on_every_backend = pytest.mark.parametrize(
    "project",
    [
        "database",
        "redis",
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ],
    indirect=True,
)


def words(project: Project, first: str = "note") -> list[str]:
    return [words[1] for words in project.notes(first)]


@on_every_backend
def test_an_idle_worker_takes_them_in_order(project: Project) -> None:
    for word, priority in (("last", _LAST), ("plain", 1024), ("urgent", _URGENT), ("soon", 7)):
        project.push("Note", {"word": word}, priority=priority)
    finished = project.drain()
    assert finished.code == 0, finished.err
    assert words(project) == ["urgent", "soon", "plain", "last"]


@on_every_backend
def test_one_pushed_to_a_backlog_is_next(project: Project) -> None:
    for n in range(40):
        project.push("Sleep", {"seconds": 0.1, "word": f"plain-{n}"})
    worker = project.work("--memory", 0)
    project.wait_for_note("start", "plain-3")
    project.push("Sleep", {"seconds": 0, "word": "urgent"}, priority=_URGENT)
    project.wait_for_note("end", "urgent")
    assert len(project.notes("start")) < 30, "not behind all that wait"
    assert worker.stop() == 0


@on_every_backend
def test_a_killed_worker_s_urgent_one_is_next(project: Project) -> None:
    project.configure(retry_after=2)
    project.push("Sleep", {"seconds": 60, "word": "urgent"}, priority=_URGENT, maxTries=2)
    worker = project.work()
    project.wait_for_note("start", "urgent")
    worker.signal(signal.SIGKILL)
    worker.wait()
    for _ in range(3):
        project.push("Note", {"word": "plain"})
    wait_for(lambda: project.sizes().reserved == 0, "the end of the lease")
    second = project.work()
    project.wait_for_note("start", "urgent", count=2)
    assert words(project) == []
    second.signal(signal.SIGKILL)
    second.wait()


@on_every_backend
def test_retries_keep_their_priority(project: Project) -> None:
    project.push("Sleep", {"seconds": 0, "word": "warm"})
    for priority in (1024, _URGENT):
        project.push("Raise", {"kind": "StopIteration"}, priority=priority, maxTries=2, backoff=0)
    project.push("Note", {"word": "last"}, priority=_LAST)
    assert project.drain().code == 0
    assert [record.name.rpartition(".")[2] for record in project.failed()] == ["Raise"] * 2
    assert words(project) == ["last"]


@on_every_backend
def test_many_workers_lose_none_and_double_none(project: Project) -> None:
    expected = []
    for n in range(200):
        expected.append(f"w{n}")
        priority = (_URGENT, 7, 1024, _LAST)[n % 4]
        project.push("Note", {"word": f"w{n}"}, priority=priority, delay=(n % 5 == 4) * 0.5)
    workers = [project.work("--stop-when-empty"), project.work(), project.work()]
    wait_for(project.empty, "an empty queue", 60)
    assert workers[0].wait() == 0
    for each in workers[1:]:
        each.rests()  # it may only be starting, without its handlers of signals
    assert [each.stop() for each in workers[1:]] == [0, 0]
    assert Counter(words(project)) == Counter(expected)
