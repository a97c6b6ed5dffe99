"""`qframe work --queue 'mail-*'` in real processes."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from qframe.contracts.step import Push, Step
from tests.support.idleness import WAKES, wakes
from tests.support.marks import slow
from tests.support.process import Project, wait_for
from tests.support.redis_server import RedisServer


def push(project: Project, *queues: str) -> None:
    """Push a job to each, which notes the name of its queue."""
    for queue in queues:
        project.push("Note", {"word": queue}, queue=queue)


def worked(project: Project) -> list[str]:
    return [line[1] for line in project.notes("note")]


def test_order_is_as_given_then_by_name_and_what_is_skipped_stays(project: Project) -> None:
    push(project, "other", "mail-slow", "mail-b", "Mail-c", "mail-a", "high", "mail-b")
    finished = project.drain("--queue", "high,mail-*,!mail-slow")
    assert worked(project) == ["high", "mail-a", "mail-b", "mail-b"]
    header = finished.out.splitlines()[0]
    assert "queues high,mail-*,!mail-slow " in header
    assert project.queue.queues() == ["Mail-c", "mail-slow", "other"]


@pytest.mark.slow
def test_a_star_is_every_queue(project: Project) -> None:
    push(project, "b", "default", "a")
    project.drain("--queue", "*")
    assert worked(project) == ["a", "b", "default"]
    assert project.empty()


def test_with_json_the_first_line_has_the_patterns_as_given(project: Project) -> None:
    finished = project.work("--queue", "*,!b", "--stop-when-empty", "--json")
    assert finished.wait() == 0
    first, last = finished.rows
    assert (first["status"], first["queues"]) == ("starting", "*,!b")
    assert (last["status"], last["reason"]) == ("stopped", "empty")


def test_queues_that_appear_later_are_found(project: Project) -> None:
    worker = project.idle("--queue", "mail-*")
    for name in ("mail-b", "mail-a", "mail-b"):
        push(project, "other", name)
        project.wait_for_note("note", name)
        wait_for(lambda name=name: project.sizes(name).total == 0, "its end")  # type: ignore[misc]
    assert worker.stop() == 0
    assert worked(project) == ["mail-b", "mail-a", "mail-b"]
    assert "paused" not in worker.out, "to find no queue is not a pause"
    assert "gone" not in worker.out
    assert worker.err == ""


@pytest.mark.slow
def test_a_queue_paused_before_it_was_there_is_not_touched(project: Project) -> None:
    assert project.qframe("pause", "mail-a").code == 0
    worker = project.idle("--queue", "mail-*")
    for number in range(3):
        push(project, "mail-a", f"mail-{number + 7}")
        project.wait_for_note("note", f"mail-{number + 7}")
    push(project, "mail-z")
    project.wait_for_note("note", "mail-z")  # would come after mail-a
    assert "mail-a" not in worked(project)
    assert project.sizes("mail-a").ready == 3
    assert project.qframe("resume", "mail-a").code == 0
    project.wait_for_note("note", "mail-a", count=3)
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_queue_is_paused_and_resumed_while_it_is_worked(project: Project) -> None:
    push(project, "mail-a")
    worker = project.idle("--queue", "mail-*")
    assert project.qframe("pause", "mail-a").code == 0
    wait_for(lambda: "database: paused" in worker.out, "the pause")
    push(project, "mail-a", "mail-z")
    project.wait_for_note("note", "mail-z")
    assert worked(project) == ["mail-a", "mail-z"]
    assert project.qframe("resume").code == 0
    project.wait_for_note("note", "mail-a", count=2)
    assert worker.stop() == 0


CHAIN = """
from qframe import Queueable, dispatch
from jobs import Note

class Link(Queueable):
    left: int
    def handle(self) -> None:
        if self.left:
            dispatch(Link(left=self.left - 1)).on_queue(f"link-{self.left}").send()
        else:
            dispatch(Note(word="end")).on_queue("end").send()
"""


def test_an_empty_worker_ends_only_when_no_queue_is_new(project: Project) -> None:
    project.write("chain.py", CHAIN)
    project.push("chain.Link", {"left": 5}, queue="start")
    project.drain("--queue", "*")
    assert worked(project) == ["end"]
    assert project.empty()


@pytest.mark.parametrize(
    "option",
    [
        "--stop-when-empty",
        *slow("--once", "--max-time"),
    ],
)
def test_with_no_queue_to_work_its_limits_hold(project: Project, option: str) -> None:
    push(project, "other")
    values = {"--once": ["--sleep", "0.5"], "--max-time": ["0.5"]}
    worker = project.work("--queue", "mail-*", option, *values.get(option, []))
    assert worker.wait() == 0
    assert worked(project) == []


@pytest.mark.slow
def test_once_waits_for_a_queue_to_appear(project: Project) -> None:
    project.configure('[listeners]\nWorkerIdle = ["jobs:hear_idle"]\n')
    worker = project.work("--queue", "mail-*", "--once", "--sleep", "20")
    project.wait_for_note("idle")
    push(project, "mail-a", "mail-b")
    assert worker.wait() == 0
    assert worked(project) == ["mail-a"]


# The database without its waking, where a worker sleeps for as long as it is told.
SLEEPY = """
from qframe.console.app import main
from qframe.contracts.backend import Capability
from qframe.drivers.database.backend import DatabaseBackend
DatabaseBackend.capabilities &= ~Capability.WAIT
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGINT)])
def test_a_worker_with_no_queue_wakes_for_a_signal(
    project: Project, number: signal.Signals
) -> None:
    project.configure('[listeners]\nWorkerIdle = ["jobs:hear_idle"]\n')
    program = project.write("sleepy.py", SLEEPY)
    arguments = ["work", "--queue", "mail-*", "--sleep", "600"]
    worker = project.run([sys.executable, str(program), *arguments])
    project.wait_for_note("idle")
    worker.signal(number)
    assert worker.wait() == 0
    assert "stopped (interrupted)" in worker.out


# -- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ("mail-[", "'mail-[' is not a pattern of queue names"),
        ("mail-*,two words*", "'two words*' is not a pattern of queue names"),
        ("a,!", "'' is not a queue name"),
        ("!mail-slow", "'!mail-slow' leaves no queue to work"),
    ],
)
def test_wrong_patterns_are_one_line_and_exit_2(project: Project, queues: str, words: str) -> None:
    finished = project.qframe("work", "--queue", queues)
    assert finished.code == 2
    assert words in finished.one_line()
    assert not project.database.exists()


UNLISTED = SLEEPY.replace("Capability.WAIT", "Capability.LIST")


def test_a_backend_that_cannot_list_its_queues_wants_names(project: Project) -> None:
    finished = project.python(UNLISTED, "work", "--queue", "high,mail-*")
    assert finished.code == 2
    assert finished.one_line() == (
        "qframe: the connection 'database' (database) cannot list its queues: name them instead "
        "of 'mail-*'"
    )
    push(project, "high", "low")
    finished = project.python(UNLISTED, "work", "--queue", "high,low,!low", "--stop-when-empty")
    assert finished.code == 0, finished
    assert worked(project) == ["high"]


LOST = """
import sys
from qframe import QueueManager, events
from qframe.exceptions import BackendUnavailable
from qframe import Worker, WorkerOptions
heard = []
for kind in (events.BackendLost, events.BackendRestored, events.WorkerPaused):
    events.listen(kind)(lambda event: heard.append(type(event).__name__))
queues = QueueManager()
connection = queues.connection()
listed, calls = connection.queues, []
def queues_of_a_broken_backend():
    calls.append(1)
    if len(calls) in (1, 2, 4, 5):
        raise BackendUnavailable("away")
    if len(calls) == 6:
        connection.push_raw('{"uuid": "u", "job": "jobs.Note", "data": {}}', "mail-new")
    return listed()
connection.queues = queues_of_a_broken_backend
worker = Worker(queues, WorkerOptions(queues=("mail-*",), max_jobs=1))
print(worker.run(), worker.jobs, *heard)
"""


@pytest.mark.slow
def test_a_listing_that_fails_with_no_queue_known_is_a_lost_backend(project: Project) -> None:
    finished = project.python(LOST)
    assert finished.out.split() == [
        "0", "1", "BackendLost", "BackendRestored", "BackendLost", "BackendRestored",
    ], finished  # fmt: skip
    assert worked(project) == ["word"]


# -- what an idle one costs -----------------------------------------------------------------------

NAMES = 1000


def used_once(project: Project) -> None:
    """Have so many queues worked once, and empty since."""
    raw = json.dumps({"uuid": "u", "job": "jobs.Note", "data": {"word": "once"}}).encode()
    pushes = (Step(None, Push(f"tenant-{number}", raw)) for number in range(NAMES))
    project.queue.backend.apply(*pushes)
    project.drain("--quiet", "--queue", "*")
    assert len(worked(project)) == NAMES


@pytest.mark.parametrize("project", ["redis"], indirect=True)
def test_names_that_were_used_once_cost_an_idle_worker_nothing(
    project: Project, redis_server: RedisServer
) -> None:
    used_once(project)
    worker = project.idle("--queue", "*")
    time.sleep(1)

    def spent() -> tuple[int, float]:
        said = redis_server.info()
        return said["total_reads_processed"], said["used_cpu_sys"] + said["used_cpu_user"]

    before, began = spent(), time.monotonic()
    time.sleep(3)
    asked, seconds = (after - least for after, least in zip(spent(), before, strict=True))
    assert asked <= 2 * (time.monotonic() - began) + 10, "with what this asked"
    assert seconds < 1
    push(project, "tenant-new")
    project.wait_for_note("note", "tenant-new")
    assert worker.stop() == 0


@pytest.mark.slow
def test_they_cost_one_on_the_database_nothing(project: Project) -> None:
    used_once(project)
    worker = project.idle("--queue", "*")
    time.sleep(1)
    assert wakes(worker.pid, 3) < WAKES
    assert worker.stop() == 0
