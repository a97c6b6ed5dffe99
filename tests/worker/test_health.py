"""`qframe health`: what it says of real workers, and of what is written where they write."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qframe_health
from qframe.exceptions import ConfigurationError
from qframe.worker.health import HealthFile, Vitals
from qframe.worker.pool.health import PoolHealth
from qframe.worker.pool.scoreboard import WorkerScore
from qframe_health import HealthRecord
from tests.support.process import Process, Project, wait_for

QUICK = """

import qframe_health
from qframe.worker import health, vitals

# Seconds between two signs of life, within which one is due, and for a loop to come round.
health.EVERY, qframe_health.WITHIN, vitals.ROUND = 0.05, 1.0, 0.5


class Waits(Queueable):
    timeout = 0

    def handle(self) -> None:
        note("start", "waits")
        time.sleep(3600)


class Blocks(Queueable):
    async def handle(self) -> None:
        note("start", "blocks")
        while True:
            time.sleep(0.05)
"""


@pytest.fixture
def quick(project: Project) -> Project:
    """A project whose workers, and what is asked of them, have little patience."""
    jobs = project.root / "jobs.py"
    jobs.write_text(jobs.read_text() + QUICK)
    project.configure('[listeners]\nWorkerStarting = ["jobs:hear"]\n')
    return project


@pytest.fixture
def file(project: Project) -> Path:
    return project.root / "health"


def started(project: Project, file: Path, *words: object) -> Process:
    worker = project.work("--health-file", file, *words)
    assert becomes(file, "alive")
    return worker


def becomes(file: Path, words: str, *, ready: bool = False) -> str:
    """Wait until `health` says so, and give its line."""
    code = int(not words.startswith(("alive", "ready")))

    def said() -> str:
        exit_code, line = qframe_health.told(str(file), ready=ready)
        return line if exit_code == code and words in line else ""

    return wait_for(said, f"{words!r}, not {qframe_health.told(str(file), ready=ready)}")


# -- workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--concurrency", "3"], ["--isolate"]], ids=str)
def test_a_worker_that_waits_is_ready_until_it_ends(
    quick: Project, file: Path, options: list[str]
) -> None:
    worker = started(quick, file, *options)
    assert becomes(file, "ready", ready=True) == f"worker {worker.pid}: ready, waits for jobs"
    first = file.stat().st_mtime_ns
    wait_for(lambda: file.stat().st_mtime_ns > first, "another sign of life")
    assert worker.stop() == 0
    assert qframe_health.told(str(file)) == (1, f"no worker has written {file}")


@pytest.mark.parametrize("options", [[], ["--concurrency", "3"], ["--isolate"]], ids=str)
def test_one_that_is_stopped_is_dead_until_it_goes_on(
    quick: Project, file: Path, options: list[str]
) -> None:
    quick.configure('[listeners]\nWorkerStarting = ["jobs:hear"]\n', retry_after=3)
    worker = started(quick, file, *options)
    becomes(file, "alive, waits for jobs")
    worker.signal(signal.SIGSTOP)
    assert becomes(file, "no sign of life").startswith(f"worker {worker.pid}: ")
    worker.signal(signal.SIGCONT)
    becomes(file, "alive")


@pytest.mark.parametrize("options", [[], ["--concurrency", "3"]], ids=str)
def test_one_whose_job_keeps_the_interpreter_is_dead(
    quick: Project, file: Path, options: list[str]
) -> None:
    started(quick, file, *options)
    quick.push("StuckInC", timeout=600)
    becomes(file, "no sign of life")


def test_one_whose_event_loop_is_blocked_is_dead(quick: Project, file: Path) -> None:
    started(quick, file, "--concurrency", "3")
    quick.push("Blocks", timeout=0)
    assert "runs jobs.Blocks" in becomes(file, "its main thread hangs")


def test_but_not_while_a_timeout_is_to_end_that(quick: Project, file: Path) -> None:
    started(quick, file, "--concurrency", "3")
    quick.push("Blocks", timeout=600)
    quick.wait_for_note("start", "blocks")
    before = time.monotonic()
    wait_for(lambda: time.monotonic() > before + 1.5, "what would be too long without one")
    becomes(file, "alive, runs jobs.Blocks")


@pytest.mark.parametrize("options", [[], ["--concurrency", "3"], ["--isolate"]], ids=str)
def test_a_long_job_is_no_death(quick: Project, file: Path, options: list[str]) -> None:
    started(quick, file, *(options or ["--sleep", "0"]))
    quick.push("Sleep", {"seconds": 600}, timeout=700)
    quick.wait_for_note("start", "sleep")
    before = time.monotonic()
    wait_for(lambda: time.monotonic() > before + 1.5, "longer than a loop has to come round")
    becomes(file, "alive, runs jobs.Sleep")


def test_of_jobs_without_a_timeout_one_that_moves_is_alive(quick: Project, file: Path) -> None:
    started(quick, file, "--sleep", 0)
    quick.push("Held")
    quick.wait_for_note("start", "held")
    before = time.monotonic()
    wait_for(lambda: time.monotonic() > before + 1.5, "longer than it may stand still")
    becomes(file, "alive, runs jobs.Held")
    quick.push("Waits")
    quick.let_go("held")
    assert "runs jobs.Waits" in becomes(file, "its main thread hangs")


@pytest.mark.parametrize("options", [[], ["--isolate"]], ids=str)
def test_one_that_is_paused_is_ready(quick: Project, file: Path, options: list[str]) -> None:
    assert quick.qframe("pause").code == 0
    worker = started(quick, file, *options)
    becomes(file, "ready, is paused", ready=True)
    assert quick.qframe("resume").code == 0
    becomes(file, "ready, waits for jobs", ready=True)
    worker.signal(signal.SIGUSR2)
    becomes(file, "ready, is paused", ready=True)


AWAY = '[connections.away]\ndriver = "redis"\nurl = "redis://127.0.0.1:{port}/0"\nretry_after = 3\n'


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("options", [[], ["--concurrency", "3"], ["--isolate"]], ids=str)
@pytest.mark.parametrize("how", ["refuses", "says nothing"])
def test_one_whose_backend_is_away_is_alive_and_not_ready(
    quick: Project, file: Path, silent: int, how: str, options: list[str]
) -> None:
    toml = AWAY.format(port=silent if how == "says nothing" else 1)
    quick.configure(f'{toml}[listeners]\nWorkerStarting = ["jobs:hear"]\n')
    started(quick, file, "--connection", "away", *options)
    becomes(file, "not ready: its backend does not answer", ready=True)
    before = time.monotonic()
    wait_for(lambda: time.monotonic() > before + 1.5, "longer than a sign of life may take")
    becomes(file, "alive, its backend does not answer")


def test_one_that_stops_is_alive_and_not_ready(quick: Project, file: Path) -> None:
    worker = started(quick, file)
    quick.push("Held")
    quick.wait_for_note("start", "held")
    worker.signal(signal.SIGTERM)
    becomes(file, "not ready: stops, runs jobs.Held", ready=True)
    becomes(file, "alive, stops, runs jobs.Held")
    quick.let_go("held")
    assert worker.wait() == 0


@pytest.mark.slow  # a pool, which imports nothing of the project, writes every five seconds
def test_a_pool_is_alive_while_one_of_its_workers_is(quick: Project, file: Path) -> None:
    pool = started(quick, file, "--workers", "2")
    becomes(file, "ready, 2 of 2 workers are alive", ready=True)
    workers = [each.pid for each in pool.descendants()]
    os.kill(workers[0], signal.SIGSTOP)
    becomes(file, "alive, 1 of 2 workers are alive")
    os.kill(workers[1], signal.SIGSTOP)
    becomes(file, "its main thread hangs: 0 of 2 workers are alive")
    for each in workers:
        os.kill(each, signal.SIGCONT)
    becomes(file, "alive, 2 of 2 workers are alive")
    assert pool.stop() == 0
    assert not file.exists()


class PoolMemberDouble:
    """A worker of a pool, as far as its health goes."""

    def __init__(self) -> None:
        self.score = WorkerScore.create()


def test_what_a_pool_makes_of_its_workers(tmp_path: Path) -> None:
    place = HealthFile(str(tmp_path / "health"))
    workers = [PoolMemberDouble(), PoolMemberDouble()]

    def told(*, ready: bool = False, stopping: bool = False) -> tuple[int, str]:
        pool = PoolHealth(place)
        pool.look(workers, stopping=stopping)  # type: ignore[arg-type] # doubles
        code, line = qframe_health.told(str(tmp_path / "health"), ready=ready)
        return code, line.partition(": ")[2]

    now = time.monotonic()
    assert told() == (0, "alive, 2 of 2 workers are alive"), "they have said nothing yet"
    assert told(ready=True)[0] == 1
    workers[0].score.write_health(Vitals(now + 60, True, ""), 60)
    assert told(ready=True) == (0, "ready, 2 of 2 workers are alive")
    assert told(ready=True, stopping=True)[0] == 1
    workers[0].score.write_health(Vitals(now - 1, True, ""), 60)
    assert told(ready=True) == (1, "not ready: 1 of 2 workers are alive")
    workers[1].score.write_health(Vitals(now + 60, True, ""), -1)
    assert told() == (1, "its main thread hangs: 0 of 2 workers are alive")
    workers.clear()
    assert told() == (0, "alive, 0 of 0 workers are alive"), "it starts others"


# -- the file -------------------------------------------------------------------------------------


def test_where_no_file_is_named_all_workers_of_this_user_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv(qframe_health.VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"qframe-{os.geteuid()}"
    assert qframe_health.told() == (
        1, f"no worker of this user runs here (looked in {folder})",
    )  # fmt: skip
    folder.mkdir(0o700)
    (folder / "4194304000").write_text("of one that has ended")
    here = HealthFile()
    here.write_health(Vitals(time.monotonic() + 60, True, "waits for jobs"), 60)
    assert [each.name for each in folder.iterdir()] == [str(os.getpid())]
    with subprocess.Popen(["sleep", "600"]) as other:
        record = HealthRecord(other.pid, "", time.monotonic(), 60, 0, True, "runs a.B")
        (folder / str(other.pid)).write_bytes(record.as_bytes())
        assert qframe_health.told()[0] == 0, "its pid was another one's"
        record.born = qframe_health.born(other.pid)
        (folder / str(other.pid)).write_bytes(record.as_bytes())
        line = f"worker {other.pid}: its main thread hangs: runs a.B"
        assert qframe_health.told() == (1, line)
        other.kill()
    assert qframe_health.told() == (0, f"worker {os.getpid()}: alive, waits for jobs")
    here.remove()
    assert qframe_health.told()[0] == 1


def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv(qframe_health.VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"qframe-{os.geteuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    record = HealthRecord(
        os.getpid(), qframe_health.born(os.getpid()), time.monotonic(), 60, 1e12, True, ""
    )
    (elsewhere / str(os.getpid())).write_bytes(record.as_bytes())
    folder.symlink_to(elsewhere)
    HealthFile().write_health(Vitals(0, True, ""), 0)
    assert qframe_health.told()[0] == 1
    assert (elsewhere / str(os.getpid())).read_bytes() == record.as_bytes()
    folder.unlink()
    elsewhere.rename(folder)
    assert qframe_health.told()[0] == 0
    folder.chmod(0o777)
    assert qframe_health.told()[0] == 1


def _link(at: Path, other: Path) -> None:
    at.symlink_to(other)


def _hard_link(at: Path, other: Path) -> None:
    at.hardlink_to(other)


def _fifo(at: Path, other: Path) -> None:
    os.mkfifo(at)


def _text(at: Path, other: Path) -> None:
    at.write_text("of somebody")


def _folder(at: Path, other: Path) -> None:
    at.mkdir()


@pytest.mark.parametrize("make", [_link, _hard_link, _fifo, _text, _folder])
def test_what_no_worker_has_written_is_never_written_to(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    at, other = tmp_path / "health", tmp_path / "other"
    other.write_text("of somebody")
    make(at, other)
    with pytest.raises(ConfigurationError, match=r"the health file .* cannot be written"):
        HealthFile(str(at))
    assert other.read_text() == "of somebody"
    assert make is not _text or at.read_text() == "of somebody"
    assert qframe_health.told(str(at))[0] == 1


def test_a_variable_may_name_the_file(quick: Project, file: Path) -> None:
    quick.work(environment={qframe_health.VARIABLE: str(file)})
    becomes(file, "ready", ready=True)


def test_a_wrong_path_is_wrong_usage(project: Project) -> None:
    finished = project.work("--health-file", "nowhere/health").finished()
    assert finished.code == 2
    assert "the health file nowhere/health cannot be written: No such file" in finished.one_line()


def test_a_later_process_may_take_a_file_over(tmp_path: Path) -> None:
    file = tmp_path / "health"
    first = HealthFile(str(file))
    later = HealthRecord(1, "", time.monotonic(), 60, time.monotonic() + 60, True, "é" * 200)
    file.write_bytes(later.as_bytes())
    first.remove()
    assert qframe_health.told(str(file))[0] == 0


@pytest.mark.parametrize(
    "raw", [b"", b"x" * 256, b"qframe-health-1 a b c d e f g".ljust(255) + b"\n"]
)
def test_nonsense_is_no_sign_of_life(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "health").write_bytes(raw)
    code, line = qframe_health.told(str(tmp_path / "health"))
    assert code == 1
    assert "health" in line


def test_a_sign_of_life_from_before_the_machine_was_started() -> None:
    record = HealthRecord(1, "", 1000.0, 20, 2000.0, True, "")
    assert "before the machine was started" in record.trouble(5.0, ready=False)


# -- the command ----------------------------------------------------------------------------------

LOOK = """\
import json, sys
before = set(sys.modules)
import qframe_health
sys.argv = ["qframe", *sys.argv[1:]]
try:
    qframe_health.main()
except SystemExit as end:
    print(json.dumps([end.code, sorted(set(sys.modules) - before)]))
"""


def command(*words: str) -> tuple[int, list[str], list[str]]:
    """Give exit code and lines of a command, and the modules it has imported."""
    finished = subprocess.run(
        [sys.executable, "-c", LOOK, *words], capture_output=True, text=True, check=False
    )
    *lines, last = finished.stdout.splitlines()
    code, modules = json.loads(last)
    return code, lines, modules


def test_the_command_imports_nothing(tmp_path: Path) -> None:
    file = HealthFile(str(tmp_path / "health"))
    file.write_health(Vitals(time.monotonic() + 600, False, "starts"), 600)
    for words in (["--live"], []):
        code, lines, modules = command("health", *words, "--health-file", f"{tmp_path}/health")
        assert (code, lines) == (0, [f"worker {os.getpid()}: alive, starts"])
        assert set(modules) <= {"qframe_health", "__future__", "errno", "stat"}
    code, lines, _ = command("health", "--ready", f"--health-file={tmp_path}/health")
    assert (code, lines) == (1, [f"worker {os.getpid()}: not ready: starts"])


def test_the_rest_is_for_the_whole_command() -> None:
    code, lines, _ = command("health", "--help")
    assert code == 0
    assert "Usage: qframe health" in lines[0]
    assert command("health", "--live", "--ready")[0] == 2
