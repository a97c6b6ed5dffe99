"""What a worker prints reaches where it was told to, whatever jobs and readers do to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.support.process import PATIENCE, Project, wait_for

JOBS = """
import contextlib, io, os, sys, time
from qframe import Queueable

class Takes(Queueable):
    how: str
    seconds: float = 0.3
    def handle(self):
        if self.how == "redirect":
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                time.sleep(self.seconds)
        elif self.how == "none":
            sys.stdout = sys.stderr = None
        elif self.how == "close":
            sys.stdout.close()
            sys.stderr.close()
        elif self.how == "detach":
            with contextlib.suppress(ValueError):
                sys.stdout.detach()
                sys.stderr.detach()
        elif self.how == "descriptor":
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        elif self.how == "closed descriptor":
            for number in (1, 2):
                with contextlib.suppress(OSError):
                    os.close(number)
        elif self.how == "object":
            class Bad:
                def __getattr__(self, name):
                    raise RuntimeError(name)
            sys.stdout = sys.stderr = Bad()

class Fails(Queueable):
    number: int
    def handle(self):
        raise ValueError(f"no {self.number}")

class Prints(Queueable):
    times: int = 1
    def handle(self):
        for _ in range(self.times):
            print("printed by a job")

class Warns(Queueable):
    def handle(self):
        import logging
        logging.getLogger("app").warning("a record")
"""
WAYS = {
    "alone": (),
    "slots": ("--concurrency", "3"),
    "isolated": ("--isolate",),
    "isolated-slots": ("--isolate", "--concurrency", "2"),
    "pool": ("--workers", "1"),
    "pool-slots": ("--workers", "1", "--concurrency", "3"),
}
USUAL = {
    "alone": "closed descriptor",
    "slots": "redirect",
    "isolated": "object",
    "isolated-slots": "none",
    "pool": "descriptor",
    "pool-slots": "close",
}
"""What is tried of each in the short run."""
way = pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in WAYS.items()])
MORE = ((), ("-q",), ("--json",))
MAIN = "from qframe.console.app import main; main()"


@pytest.fixture(autouse=True)
def _jobs(project: Project) -> None:
    project.write("talking.py", JOBS)


@contextlib.contextmanager
def working(project: Project, *arguments: str, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that writes to a descriptor, with Python's own buffering."""
    err = project.root / "err"
    with (
        err.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", MAIN, "work", *arguments],
            cwd=project.root,
            env={**os.environ, "LEDGER": str(project.ledger)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        ) as popen,
    ):
        try:
            yield popen
        finally:
            popen.kill()


def said_on_stderr(project: Project) -> str:
    return (project.root / "err").read_text()


@pytest.mark.parametrize(
    ("how", "way"),
    [
        pytest.param("detach", (), id="detach-alone"),
        *(
            pytest.param(
                how, WAYS[name], id=f"{how}-{name}", marks=() if how == usual else pytest.mark.slow
            )
            for name, usual in USUAL.items()
            for how in ("redirect", "none", "close", "descriptor", "closed descriptor", "object")
        ),
    ],
)
def test_a_job_cannot_take_the_workers_output(
    project: Project, way: tuple[str, ...], how: str
) -> None:
    project.push("talking.Takes", {"how": how})
    project.push("talking.Takes", {"how": how, "seconds": 0.5})
    for number in range(20):
        project.push("talking.Fails", {"number": number})
    project.push("talking.Warns")
    finished = project.work("--stop-when-empty", *way).finished()
    assert finished.code == 0, finished.err
    assert finished.out.count("FAIL") == 20
    assert "  stopped (" in finished.out or "all have ended" in finished.out
    assert "20 failed" in finished.out
    assert "WARNING" in finished.err
    assert "a record" in finished.err
    assert "Exception ignored" not in finished.err


@pytest.mark.parametrize(
    ("way", "more"),
    [
        pytest.param(
            WAYS[name], more, id=f"{name}{''.join(more)}", marks=() if usual else pytest.mark.slow
        )
        for number, name in enumerate(WAYS)
        for usual, more in zip((number % 3 == n for n in range(3)), MORE, strict=True)
    ],
)
def test_a_reader_that_has_gone_changes_no_exit_code(
    project: Project, way: tuple[str, ...], more: tuple[str, ...]
) -> None:
    project.push("talking.Prints")
    project.push("Note")
    project.push("talking.Fails", {"number": 1})
    reader, writer = os.pipe()
    os.close(reader)
    with working(project, "--stop-when-empty", *way, *more, stdout=writer) as popen:
        os.close(writer)
        assert popen.wait(30) == 0, said_on_stderr(project)
    assert "Exception ignored" not in said_on_stderr(project)
    assert "Error" not in said_on_stderr(project)
    assert len(project.notes("note")) == 1


@way
def test_what_a_reader_that_pauses_did_not_take_comes_when_it_reads_again(
    project: Project, way: tuple[str, ...]
) -> None:
    for number in range(60):
        project.push("talking.Fails", {"number": number})
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # bytes, or as few as there can be
    os.set_blocking(writer, False)
    with working(project, "--json", "--stop-when-empty", *way, stdout=writer) as popen:
        os.close(writer)
        wait_for(lambda: len(project.failed()) == 60, "the jobs, while nobody reads", 60)
        with os.fdopen(reader, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        assert popen.wait(PATIENCE) == 0, said_on_stderr(project)
    assert sum(row["status"] == "fail" for row in rows) == 60
    assert rows[-1]["status"] == "stopped"


def test_a_worker_whose_reader_pauses_for_good_stops_when_told(project: Project) -> None:
    for number in range(60):
        project.push("talking.Fails", {"number": number})
    reader, writer = os.pipe()  # it blocks
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with working(project, "--json", stdout=writer) as popen:
        os.close(writer)
        wait_for(lambda: len(project.failed()) == 60, "the jobs, while nobody reads", 60)
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == 0
    os.close(reader)


class FullDisk:
    """A log at whose end there is no room, as on a full disk, for the processes started in it.

    They may write no file beyond a size, which the log has but for a page; `has_room` lifts that.
    """

    LIMIT = 1 << 24
    """Bytes; more than the files of a backend."""

    def __init__(self, log: Path, page: int = 4096) -> None:
        self.log = log
        self._begin = self.LIMIT - page
        log.touch()
        os.truncate(log, self._begin)

    def __enter__(self) -> Self:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.LIMIT, self._before[1]))
        return self

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)

    def written(self) -> bytes:
        with self.log.open("rb") as file:
            file.seek(self._begin)
            return file.read()

    def has_room(self, pid: int) -> None:
        """Let a process, and those it has started, write as much as they like."""
        resource.prlimit(pid, resource.RLIMIT_FSIZE, self._before)
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, self._before)


@pytest.mark.parametrize(
    "way",
    [pytest.param(WAYS[name], id=name) for name in ("alone", "slots", "isolated", "pool")],
)
def test_a_full_disk_silences_nothing_for_good(project: Project, way: tuple[str, ...]) -> None:
    disk = FullDisk(project.root / "log")
    for number in range(30):
        project.push("talking.Fails", {"number": number})
    with (
        disk.log.open("ab") as out,
        disk,
        working(project, *way, "--json", stdout=out.fileno()) as popen,
    ):
        wait_for(lambda: len(project.failed()) == 30, "the jobs on a full disk", 60)
        assert len(disk.written()) <= 4096
        disk.has_room(popen.pid)
        project.push("talking.Fails", {"number": 30})
        wait_for(lambda: b"no 30" in disk.written(), "the rest")
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == 0
    rows = [json.loads(line) for line in disk.written().splitlines()]
    assert sum(row["status"] == "fail" for row in rows) == 31
    assert rows[-1]["status"] == "stopped"


def test_what_is_left_out_is_counted_once_there_is_room(project: Project) -> None:
    disk = FullDisk(project.root / "log", page=0)
    for number in range(100):
        project.push("talking.Fails", {"number": number})
    project.write(
        "less.py",
        "from qframe.console import stream\nstream._MOST = 4000\n" + MAIN.replace("; ", "\n"),
    )
    with (
        disk.log.open("ab") as out,
        disk,
        subprocess.Popen(
            [sys.executable, "less.py", "work", "--json"],
            cwd=project.root,
            env={**os.environ, "LEDGER": str(project.ledger)},
            stdout=out,
        ) as popen,
    ):
        try:
            wait_for(lambda: len(project.failed()) == 100, "the jobs", 60)
            disk.has_room(popen.pid)
            wait_for(lambda: b'"left out"' in disk.written(), "the count")
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(PATIENCE) == 0
        finally:
            popen.kill()
    rows = [json.loads(line) for line in disk.written().splitlines()]
    (told,) = [row for row in rows if row["status"] == "left out"]
    assert told["lines"] > 100
    assert told["lines"] + len(rows) - 1 == 202  # a start and an end of each job, and the worker's
    assert "File too large" in told["message"]  # not "No space left", as on a disk: no errno counts


def test_output_to_nowhere_is_no_traceback(project: Project) -> None:
    project.push("talking.Prints", {"times": 2})
    project.push("talking.Fails", {"number": 1})
    shell = f'exec "{sys.executable}" -c "{MAIN}" work --stop-when-empty '
    for closed in ("<&- >&-", ">&- 2>&-", ">/dev/full"):
        finished = subprocess.run(
            ["sh", "-c", shell + closed],
            cwd=project.root,
            env={**os.environ, "LEDGER": str(project.ledger)},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (finished.returncode, finished.stderr) == (0, "")
        project.push("talking.Prints", {"times": 2})


def test_a_listing_on_a_full_disk_is_one_line(project: Project) -> None:
    command = [sys.executable, "-c", MAIN, "check", "--json"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            command, cwd=project.root, stdout=full, stderr=subprocess.PIPE, check=False, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "qframe: cannot write: No space left on device\n"


def test_a_slow_reader_of_a_blocking_pipe_gets_every_line(project: Project) -> None:
    for number in range(300):
        project.push("talking.Fails", {"number": number})
    reader, writer = os.pipe()
    seen: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 700):
            seen.append(data)
            time.sleep(0.002)

    with working(project, "--json", "--stop-when-empty", stdout=writer) as popen:
        os.close(writer)
        thread = threading.Thread(target=read)
        thread.start()
        assert popen.wait(60) == 0
        thread.join()
    os.close(reader)
    rows = [json.loads(line) for line in b"".join(seen).splitlines()]
    assert sum(row["status"] == "fail" for row in rows) == 300
