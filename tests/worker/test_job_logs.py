"""What is logged while a job runs carries its uuid and attempt, in a worker of every kind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.process import Project, wait_for

LISTENERS = """
[listeners]
JobProcessing = ["held_jobs:hear"]
JobFailed = ["held_jobs:hear"]
WorkerIdle = ["held_jobs:hear_idle"]
"""


@pytest.fixture
def telling(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("held_jobs.py"), project.root)
    project.write("uvloop.py", "raise ImportError")
    project.configure(LISTENERS)
    return project


@pytest.mark.parametrize("options", [[], ["--concurrency", "4"], ["--isolate"]], ids=str)
def test_from_wherever_its_code_runs(telling: Project, options: list[str]) -> None:
    ends = ["thread", "failed", "JobFailed"]
    kinds = {
        "held_jobs.Tells": ["JobProcessing", "handle", *ends],
        "held_jobs.TellsOnLoop": ["JobProcessing", "handle", "task", *ends],
        "held_jobs.tell": ["JobProcessing", "function"],
    }
    uuids = {name: telling.push(name) for name in kinds for _ in range(2)}
    worker = telling.work("--backoff", 0, "--tries", 1, *options)
    telling.wait_for_note("idle")
    wait_for(telling.empty, "nothing to be left")
    assert worker.stop() == 0
    notes = [line for line in telling.notes() if len(line) == 6]
    for name, uuid in uuids.items():
        mine = [line for line in notes if line[4] == uuid]
        assert [line[0] for line in mine] == kinds[name]
        assert {(*line[1:],) for line in mine} == {("1", name, "default", uuid, uuid)}
    assert len(notes) == 2 * sum(map(len, kinds.values())), "every record was one of a job"
    assert telling.notes("same") == [["same", "True"]] * 4
    assert ["idle", "False"] in telling.notes("idle")


def test_the_workers_own_lines_name_the_job_where_there_may_be_several(telling: Project) -> None:
    uuid = telling.push("held_jobs.TellsOnLoop", maxTries=2, backoff="0")
    worker = telling.work("--concurrency", 3)
    telling.wait_for_note("failed")
    wait_for(lambda: len(telling.notes("idle")) >= 1, "an idle worker")
    assert worker.stop() == 0
    for attempt in (1, 2):
        assert f"WARNING {uuid[-8:]}#{attempt} told task\n" in worker.err
    assert "WARNING told idle\n" in worker.err
    assert re.search(r"^  \d{4}-\d\d-\d\d [\d:]{8} WARNING ", worker.err)


def test_those_of_a_worker_of_one_job_are_as_ever(telling: Project) -> None:
    telling.push("held_jobs.tell")
    assert "WARNING told function\n" in telling.drain().err
    uuid = telling.push("held_jobs.tell")
    assert f"WARNING {uuid[-8:]}#1 told function\n" in telling.drain("-v").err


def test_with_json_they_are_json_too(telling: Project) -> None:
    uuid = telling.push("held_jobs.tell")
    records = [json.loads(line) for line in telling.drain("--json").err.splitlines()]
    told = {each["message"]: each for each in records}
    assert (told["told function"]["job_uuid"], told["told function"]["job_attempt"]) == (uuid, 1)
    assert "job_uuid" not in told["told idle"]


@pytest.mark.parametrize("options", [[], ["-v"]], ids=str)
def test_the_lines_of_jobs_that_overlap(telling: Project, options: list[str]) -> None:
    uuids = [
        telling.push("held_jobs.Held", {"word": word}, queue=f"q{word}") for word in ("a", "b")
    ]
    worker = telling.work("--concurrency", 3, "--queue", "qa,qb", *options)
    wait_for(lambda: len(telling.notes("start")) == 2, "both jobs")
    telling.write("let-b", "")
    telling.wait_for_note("end", "b")
    telling.write("let-a", "")
    telling.wait_for_note("end", "a")
    wait_for(lambda: telling.empty("qa"), "nothing to be left")
    assert worker.stop() == 0
    lines = [line.split()[2:] for line in worker.out.splitlines() if "held_jobs.Held" in line]
    first, second = ([uuid[-8:], f"q{word}", "#1"] for uuid, word in zip(uuids, "ab", strict=True))
    if options:
        told = [[*line[1:4], line[-1]] for line in lines]
        assert sorted(told[:2]) == sorted([[*first, "RUNNING"], [*second, "RUNNING"]])
        assert told[2:] == [[*second, "DONE"], [*first, "DONE"]]
    else:
        assert [line[-1] for line in lines] == ["DONE", "DONE"], "a line for each job"
        assert not any(uuid[-8:] in worker.out for uuid in uuids)
