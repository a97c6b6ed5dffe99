"""`--isolate`: a process beside the worker dispatches schedules, relays, and looks after alerts."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from qframe.alerts.checker import _TURN
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from tests.support.process import Process, Project, wait_for
from tests.worker.test_isolation import is_gone

pytestmark = pytest.mark.slow

TICKS = """
import os
from jobs import note
from qframe import Queueable, schedule

class Tick(Queueable):
    def handle(self) -> None:
        note("tick", f"{self.scheduled_for.timestamp():.0f}", os.getppid())
"""
IN_TICKS = '[schedule]\nmodules = ["ticks"]\n'
EACH_SECOND = TICKS + "\nschedule(Tick()).every_second()\n"


def sidecar(worker: Process) -> psutil.Process | None:
    """Give the process beside; that of a job begins later, and is gone in no time."""
    there = [each for each in worker.descendants() if not is_gone(each.pid)]
    return min(there, key=psutil.Process.create_time, default=None)


@pytest.mark.on_redis_too
def test_it_dispatches_schedules_each_once_also_when_the_process_beside_dies(
    project: Project,
) -> None:
    project.write("ticks.py", EACH_SECOND)
    project.configure('jobs = ["ticks"]\n')
    worker = project.work("--isolate")
    project.wait_for_note("tick", count=2)
    assert {note[2] for note in project.notes("tick")} == {str(worker.pid)}
    beside = sidecar(worker)
    assert beside is not None
    beside.kill()
    before = len(project.notes("tick"))
    wait_for(lambda: "was killed by SIGKILL" in worker.err, "the warning")
    project.wait_for_note("tick", count=before + 3)
    left = sidecar(worker)
    assert left is not None
    assert left != beside
    assert worker.stop() == 0
    assert is_gone(left.pid)
    times = [note[1] for note in project.notes("tick")]
    assert len(times) == len({*times})


def test_it_ends_with_the_worker_whatever_ends_that(project: Project) -> None:
    project.write("ticks.py", EACH_SECOND)
    project.configure('jobs = ["ticks"]\n')
    worker = project.work("--isolate")
    project.wait_for_note("tick")
    beside = sidecar(worker)
    assert beside is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        beside.send_signal(number)  # as who signals all processes of a service does
    project.wait_for_note("tick", count=len(project.notes("tick")) + 2)
    assert beside.is_running()
    worker.signal(signal.SIGKILL)
    worker.wait()
    wait_for(lambda: is_gone(beside.pid), "its end")


def test_it_is_there_where_it_has_something_to_do(project: Project) -> None:
    project.write("ticks.py", TICKS)
    worker = project.idle("--isolate", toml=IN_TICKS)
    wait_for(lambda: not worker.descendants(), "its end: there are no schedules")
    row = ScheduleRow(job="ticks.Tick", when="every 1s")
    ScheduleRows(project.manager).add(project.queue, "extra", row)
    project.wait_for_note("tick")
    assert worker.stop() == 0
    worker = project.idle("--isolate", "--no-schedule", toml=IN_TICKS)
    assert not worker.descendants()
    assert worker.stop() == 0


def test_what_is_wrong_with_schedules_is_said_in_a_line_and_jobs_run(project: Project) -> None:
    project.write("ticks.py", TICKS + "\nschedule(Tick()).cron('nonsense')\n")
    project.configure(IN_TICKS)
    project.push("Note")
    worker = project.work("--isolate")
    wait_for(lambda: "nothing is scheduled: " in worker.err, "the line")
    assert "nonsense" in worker.err
    wait_for(project.empty, "the job")
    assert "Traceback" not in worker.err
    assert len(worker.err.splitlines()) == 1
    assert worker.stop() == 0


PUSH = """
import sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from jobs import Note
from qframe import dispatch

with Session(create_engine(sys.argv[1])) as session:
    dispatch(Note()).within(session)
    session.commit()
"""


def test_it_hands_on_the_outbox_and_looks_after_alerts_whatever_schedules_are(
    project: Project,
) -> None:
    project.write("ticks.py", "import nowhere")
    url = f"sqlite:///{project.root / 'elsewhere.sqlite3'}"
    project.configure(
        f"""
default = "database"
[alerts]
rules = ["wait > 60s"]
[outbox]
connection = "elsewhere"
[schedule]
modules = ["ticks"]
[connections.elsewhere]
driver = "database"
url = "{url}"
"""
    )
    project.manager.backend("elsewhere").migrate()
    worker = project.work("--isolate")
    wait_for(lambda: "nothing is scheduled: schedule.modules: 'ticks' cannot" in worker.err, "why")
    pushed = project.program(PUSH, url)
    assert pushed.code == 0, pushed.err
    project.wait_for_note("note")
    wait_for(lambda: project.queue.store.get(_TURN)[0], "who looks")
    assert worker.stop() == 0


IMPATIENT = """
from qframe.worker.isolation import sidecar
sidecar.LOOK_EVERY = sidecar._SLOW = 1
from qframe.console.app import main
main()
"""


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("import time; time.sleep(60)", "has not begun in 1 s: it may hang"),
        ("import os; os._exit(0)", "exited with code 0"),
        (
            "raise KeyboardInterrupt",
            "ERROR schedules, alerts, the outbox and retries: KeyboardInterrupt",
        ),
    ],
)
def test_a_process_that_does_not_begin_is_told_of(project: Project, does: str, said: str) -> None:
    project.write("ticks.py", does)
    project.configure(IN_TICKS)
    worker = project.run([sys.executable, "-c", IMPATIENT, "work", "--isolate"])
    project.push("Note")
    wait_for(lambda: said in worker.err, "the line")
    project.wait_for_note("note")
    assert "Traceback" not in worker.err
    assert worker.stop() == 0
