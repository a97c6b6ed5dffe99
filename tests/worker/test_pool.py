"""`qframe work --workers N`: workers kept running, told what to do, and ended in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime
from typing import Any

import psutil
import pytest

from qframe.contracts.backend import Capability
from qframe.worker import machine
from tests.support.pool import (
    IDLE,
    STARTED_AGAIN,
    children,
    pool,
    rows,
    wait_for_row,
    wait_for_workers,
)
from tests.support.process import PATIENCE, Project, wait_for

pytestmark = pytest.mark.on_beanstalkd_too


class TestWorking:
    def test_jobs_run_at_the_same_time_in_processes_of_their_own(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        wait_for_workers(project, running)
        project.push("Held", {"word": "a"})
        project.push("Held", {"word": "b"})
        one = project.wait_for_note("start", "a")
        two = project.wait_for_note("start", "b")
        assert not project.notes("end")
        project.let_go("a", "b")
        assert len({one[3], two[3], str(running.pid)}) == 3
        assert running.stop() == 0
        assert len(project.notes("end")) == 2
        assert project.empty()

    def test_what_it_prints(self, project: Project) -> None:
        project.push("Note")
        running = pool(project, "--queue", "default,other", "--name", "web")
        wait_for_row(running, "done")
        title = psutil.Process(running.pid).cmdline()
        assert " ".join(title).strip() == "qframe: pool of 2 on database"
        pids = [row["pid"] for row in (wait_for_row(running, "started", n) for n in (1, 2))]
        assert running.stop() == 0
        (header,) = rows(running, "starting")
        assert header["workers"] == 2
        assert header["queues"] == "default,other"
        assert header["name"] == "web"
        assert header["pid"] == running.pid
        ends = rows(running, "exited")
        assert sorted(row["pid"] for row in ends) == sorted(pids)
        assert sum(row["jobs"] for row in ends) == 1
        (closing,) = rows(running, "stopped")
        assert (closing["reason"], closing["done"]) == ("interrupted", 1)

    def test_it_ends_when_all_is_empty(self, project: Project) -> None:
        for _ in range(20):
            project.push("Note")
        finished = pool(project, "--stop-when-empty", workers=3).finished()
        assert finished.code == 0, finished
        assert len(project.notes("note")) == 20

    def test_one_job_each_with_once(self, project: Project) -> None:
        for _ in range(5):
            project.push("Note")
        assert pool(project, "--once").finished().code == 0
        assert len(project.notes("note")) == 2

    def test_what_a_job_starts_is_no_member_of_the_pool(self, project: Project) -> None:
        project.write(
            "more.py",
            "import os\nfrom jobs import note\nfrom qframe import Queueable\n"
            "class Env(Queueable):\n"
            "    def handle(self):\n"
            "        note('env', *[key for key in os.environ if key.startswith('QFRAME')], '.')\n",
        )
        project.push("more.Env")
        running = pool(project)
        assert project.wait_for_note("env") == ["env", "."]
        assert running.stop() == 0


class TestReplacing:
    def test_a_worker_that_has_done_its_jobs_is_replaced(self, project: Project) -> None:
        for _ in range(6):
            project.push("Note")
        running = pool(project, "--max-jobs", 2)
        project.wait_for_note("note", count=6)
        assert len({note[3] for note in project.notes("note")}) >= 3
        assert wait_for_row(running, "exited", reason="max jobs")["delay"] == 0
        assert running.stop() == 0

    def test_restart_replaces_every_worker(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        before = wait_for_workers(project, running)
        assert project.qframe("restart").code == 0
        wait_for_row(running, "exited", 2, reason="restart")
        wait_for_workers(project, running, 4)
        assert not {*before} & {child.pid for child in children(running)}
        assert running.stop() == 0

    def test_a_worker_that_is_too_big_is_replaced(self, project: Project) -> None:
        project.push("Grow", {"megabytes": 100})
        running = pool(project, "--memory", 120)
        row = wait_for_row(running, "exited", code=12)
        assert (row["reason"], row["delay"]) == ("memory", 0)
        project.push("Note")
        project.wait_for_note("note")
        assert running.stop() == 0

    def test_one_that_exits_at_once_is_replaced_later_each_time(self, project: Project) -> None:
        project.write("broken.py", "import os\nos._exit(3)\n")
        running = pool(project, toml='jobs = ["broken", "jobs"]')
        wait_for_row(running, "exited", 3, worker=1)
        ends = rows(running, "exited", worker=1)
        assert [row["delay"] for row in ends[:3]] == [0.1, 0.2, 0.4]
        assert {row["code"] for row in ends} == {3}
        (first, *_), second = rows(running, "started", worker=1), rows(running, "started", worker=2)
        waited = [_time_of(row) - _time_of(first) for row in second]
        assert all(each >= 9.9 for each in waited), "it waits for the first to get going, or 10 s"
        project.write("broken.py", "")
        project.push("Note")
        project.wait_for_note("note")
        assert running.stop() == 0

    @pytest.mark.parametrize(
        ("arguments", "toml"),
        [
            (["nowhere"], ""),
            ([], 'jobs = ["missing"]'),
            pytest.param(["--queue", "no such"], "", marks=pytest.mark.slow),
            pytest.param(["--tries", "-1"], "", marks=pytest.mark.slow),
            pytest.param(["--workers", "0"], "", marks=pytest.mark.slow),
            pytest.param(
                [], 'listeners = {JobProcessed = ["missing:hear"]}', marks=pytest.mark.slow
            ),
        ],
    )
    def test_what_is_wrong_is_said_once(
        self, project: Project, arguments: list[str], toml: str
    ) -> None:
        finished = pool(project, *arguments, toml=toml).finished()
        assert finished.code == 2
        assert finished.one_line().startswith("qframe: ")
        assert "exited" not in finished.out

    def test_a_worker_broken_by_a_deploy_does_not_end_the_pool(self, project: Project) -> None:
        project.write("fine.py", "")
        running = pool(project, toml=f'jobs = ["fine", "jobs"]\n{IDLE}')
        wait_for_workers(project, running)
        project.write("fine.py", "raise ValueError('half a deploy')\n")
        project.qframe("restart")
        wait_for_row(running, "exited", 2, code=2)
        project.write("fine.py", "")
        project.push("Note")
        project.wait_for_note("note")
        assert running.stop() == 0


@pytest.mark.on_redis_too
class TestDeadWorkers:
    @pytest.mark.on_redis_in_ci
    def test_its_job_starts_again_at_once(self, project: Project) -> None:
        project.push("Kill", {"times": 1})
        project.push("Note")
        running = pool(project, "--tries", 2)
        dead = project.wait_for_note("start", "kill", 1)
        died = time.monotonic()
        again = project.wait_for_note("start", "kill", 2)
        assert time.monotonic() - died < STARTED_AGAIN
        assert again[3] != dead[3]
        project.wait_for_note("end", "kill", 2)
        end = wait_for_row(running, "exited", signal=9)
        assert (end["pid"], end["code"]) == (int(dead[3]), 137)
        assert wait_for_row(running, "recovered")["worker"] == end["worker"]
        wait_for(project.empty, "an empty queue")
        assert running.stop() == 0
        assert project.failed() == []

    @pytest.mark.on_redis_in_ci
    def test_a_job_out_of_tries_fails_with_what_became_of_its_worker(
        self, project: Project
    ) -> None:
        project.push("Kill")
        running = pool(project)
        wait_for(project.failed, "the failure")
        record = project.failure()
        assert "may be started once and was started once" in record.exception
        assert "worker died (killed by SIGKILL)" in record.exception
        assert len(project.notes("start")) == 1
        assert running.stop() == 0

    def test_one_that_leaves_in_a_job_without_a_word(self, project: Project) -> None:
        project.push("Exit")
        running = pool(project)
        wait_for(project.failed, "the failure")
        assert "worker died (exited with code 0)" in project.failure().exception
        assert wait_for_row(running, "exited", reason=None)["code"] == 0
        assert running.stop() == 0

    def test_the_others_jobs_are_left_alone(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 3})
        running = pool(project, "--tries", 0)
        project.wait_for_note("start", "sleep")
        project.push("Kill", {"times": 2})
        project.wait_for_note("end", "kill", 3)
        project.wait_for_note("end", "sleep", 1)
        assert len(project.notes("start")) == 4
        assert running.stop() == 0

    def test_a_large_job_is_taken_up_too(self, project: Project) -> None:
        project.push("Kill", {"times": 1, "word": "k" * 60_000})
        running = pool(project, "--tries", 2)
        wait_for(lambda: len(project.notes("end")) == 1, "the second attempt")
        assert running.stop() == 0
        assert project.empty()


@pytest.mark.on_redis_too
class TestTimeouts:
    def test_a_worker_that_ends_itself_in_a_stuck_job(self, project: Project) -> None:
        project.push("StuckInC", {"always": False}, backoff="1")
        running = pool(project, "--timeout", 1.5, "--grace", 0.2, "--tries", 2)
        project.wait_for_note("start", "stuck", 1)
        row = wait_for_row(running, "recovered")
        project.wait_for_note("end", "stuck", 2)
        if Capability.AHEAD in project.queue.capabilities:  # else it is back by itself, at once
            assert (row["fate"], row["delay"]) == ("tried again", 1)
        assert running.stop() == 0

    def test_a_worker_that_is_stopped_is_killed_and_its_job_tried_again(
        self, project: Project
    ) -> None:
        project.push("Sleep", {"seconds": 4})
        running = pool(project, "--timeout", 3, "--grace", 0.2, "--tries", 1)
        worker = project.wait_for_note("start", "sleep", 1)[3]
        os.kill(int(worker), signal.SIGSTOP)
        wait_for_row(running, "exited", pid=int(worker), signal=9)
        wait_for(project.failed, "the failure")
        assert "timed out (killed by its pool (SIGKILL)" in project.failure().exception
        recording = project.failure().history.recording
        assert recording is not None
        assert recording.summary.startswith("timed out")
        assert running.stop() == 0

    def test_the_first_timeout_is_the_end_where_the_class_says_so(self, project: Project) -> None:
        project.write(
            "stuck.py",
            "import itertools\nfrom jobs import note\nfrom qframe import Queueable\n"
            "class Stuck(Queueable):\n"
            "    tries = 5\n    timeout = 1.5\n    fail_on_timeout = True\n    backoff = 30\n"
            "    def handle(self):\n"
            "        note('start', self.attempts)\n        all(itertools.repeat(1))\n"
            "    def failed(self, error):\n        note('failed', type(error).__name__)\n",
        )
        project.push("stuck.Stuck")
        running = pool(project, "--grace", 0.2)
        project.wait_for_note("failed", "JobTimedOut")
        assert "fails at its first timeout" in project.failure().exception
        assert len(project.notes("start")) == 1
        assert running.stop() == 0


class TestBeingTold:
    def test_stopping_waits_for_the_jobs(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 2})
        running = pool(project)
        project.wait_for_note("start", "sleep")
        assert running.stop() == 0
        assert project.notes("end")
        assert project.empty()

    @pytest.mark.on_redis_too
    def test_a_second_signal_gives_the_jobs_back(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 60})
        running = pool(project)
        project.wait_for_note("start", "sleep")
        running.signal(signal.SIGTERM)
        time.sleep(0.5)
        assert running.alive()
        assert running.stop() == 0
        assert project.sizes().ready == 1
        assert project.queue.reserve(["default"])[0].attempts() == 0

    def test_so_does_the_stop_timeout(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 60})
        running = pool(project, "--stop-timeout", 0.5)
        project.wait_for_note("start", "sleep")
        assert running.stop() == 0
        assert project.sizes().ready == 1
        assert project.queue.reserve(["default"])[0].attempts() == 0

    def test_an_interrupted_job_is_a_failed_attempt(self, project: Project) -> None:
        project.push("Sleep", {"seconds": 60})
        running = pool(project)
        project.wait_for_note("start", "sleep")
        running.signal(signal.SIGUSR1)
        wait_for(project.failed, "the failure")
        assert "JobInterrupted" in project.failure().exception
        wait_for_row(running, "exited", reason="job interrupted")
        assert running.stop() == 0

    def test_a_pause_holds_for_workers_that_come_later(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        first, second = wait_for_workers(project, running)
        running.signal(signal.SIGUSR2)
        wait_for_row(running, "paused", 2)
        os.kill(first, signal.SIGKILL)
        wait_for_row(running, "paused", 3)
        project.push("Note")
        os.kill(second, signal.SIGKILL)
        wait_for_row(running, "paused", 4)
        assert not project.notes("note")
        running.signal(signal.SIGCONT)
        project.wait_for_note("note")
        assert running.stop() == 0

    def test_a_paused_pool_stops(self, project: Project) -> None:
        running = pool(project, toml=IDLE)
        wait_for_workers(project, running)
        running.signal(signal.SIGUSR2)
        wait_for_row(running, "paused", 2)
        assert running.stop() == 0

    def test_many_workers_begin_a_few_at_a_time_and_it_hears_signals_meanwhile(
        self, project: Project
    ) -> None:
        project.write(
            "slow.py",
            "import os, time\nfrom jobs import note\nnote('imports', os.getpid())\n"
            "try:\n    os.mkdir('first')\nexcept OSError:\n    time.sleep(60)\n",
        )
        running = pool(project, workers=60, toml='jobs = ["slow", "jobs"]')
        at_once = 1 + 2 * machine.cores()
        project.wait_for_note("imports", count=at_once, seconds=60)
        assert running.stop() == 0
        assert len(rows(running, "started")) == at_once
        (closing,) = rows(running, "stopped")
        assert closing["reason"] == "interrupted"

    def test_it_stops_at_once_while_a_worker_starts(self, project: Project) -> None:
        project.write("slow.py", "import time\ntime.sleep(60)\n")
        running = pool(project, toml='jobs = ["slow"]')
        wait_for_row(running, "started")
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < PATIENCE / 2

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
    def test_it_shows_nothing_of_where_a_worker_was_that_had_not_begun(
        self, project: Project, number: signal.Signals
    ) -> None:
        project.write("slow.py", "import time\ntime.sleep(60)\n")
        running = pool(project, toml='jobs = ["slow"]')
        wait_for_row(running, "started")
        running.signal(number)
        assert running.wait() == 0
        assert "Traceback" not in running.err


class TestWatching:
    def test_workers_are_replaced_when_files_change(self, project: Project) -> None:
        project.write("code.py", _code("old"))
        project.push("code.Say")
        running = pool(project, "--watch", toml=IDLE)
        project.wait_for_note("said", "old")
        wait_for_workers(project, running)
        project.write("code.py", _code("new"))
        wait_for_row(running, "told")
        wait_for_row(running, "exited", 2, reason="interrupted", delay=0)
        project.push("code.Say")
        project.wait_for_note("said", "new")
        assert running.stop() == 0

    def test_without_watchfiles_it_says_what_to_install(self, project: Project) -> None:
        project.write("watchfiles.py", "raise ImportError('not here')\n")
        finished = project.run(
            [
                sys.executable,
                "-c",
                "import sys; sys.path.insert(0, '.')\n" + _MAIN,
                "work",
                "--watch",
            ]
        ).finished()
        assert finished.code == 2
        assert "pip install 'qframe[watch]'" in finished.one_line()


_MAIN = "from qframe.console.app import main; main()"


def _time_of(row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["time"]).timestamp()


def _code(word: str) -> str:
    return (
        "from jobs import note\nfrom qframe import Queueable\n"
        f"class Say(Queueable):\n    def handle(self):\n        note('said', {word!r})\n"
    )
