"""Workers that reserve ahead: what a slow, a stopped or a killed one leaves to the others."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.support.process import Project

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]


def test_a_slow_job_hoards_none_of_the_short_ones_behind_it(project: Project) -> None:
    """A long one, a hundred short ones, two workers: the short ones end before it."""
    for number in range(40):  # both learn that jobs are short, and reserve ahead
        project.push("Note", {"word": f"first-{number}"})
    workers = [project.work("--quiet") for _ in range(2)]
    project.wait_for_note("note", count=40)
    project.push("Held")
    for number in range(100):
        project.push("Note", {"word": f"short-{number}"})
    project.wait_for_note("note", count=140)
    assert not project.notes("end"), "the slow one still runs"
    assert {
        Counter(words[1] for words in project.notes("note"))[f"short-{n}"] for n in range(100)
    } == {1}
    project.let_go("held")
    project.wait_for_note("end")
    for worker in workers:
        assert worker.stop() == 0
        assert "lost" not in worker.err


def test_one_worker_keeps_the_order_of_a_queue(project: Project) -> None:
    for number in range(300):
        project.push("Note", {"word": str(number)})
    project.drain()
    assert [words[1] for words in project.notes("note")] == [str(number) for number in range(300)]
    assert {words[2] for words in project.notes("note")} == {"1"}, "each in its first attempt"


def test_a_stopped_worker_gives_what_it_holds_back_at_once_and_uncounted(project: Project) -> None:
    for number in range(200):
        project.push("Note", {"word": f"first-{number}"})
    project.push("Sleep", {"seconds": 1.5})
    for number in range(100):
        project.push("Note", {"word": str(number)})
    worker = project.work()
    project.wait_for_note("start")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.sizes().ready == project.sizes().total
    left = [words for words in project.notes("note") if not words[1].startswith("first")]
    project.drain()
    after = [words for words in project.notes("note") if not words[1].startswith("first")]
    assert len(after) == 100
    assert {words[2] for words in after} == {"1"}
    assert [words[1] for words in after[len(left) :]] == [str(n) for n in range(len(left), 100)]
