"""A project in a temporary folder, and real `qframe` processes that work on it.

Jobs leave traces in a ledger: one file opened for appending, one `write` per line, so that what
a job did is known whatever became of its process. Every process is ended by its own pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from qframe import config
from qframe.connection import Connection
from qframe.contracts import FailedJob, Sizes
from qframe.jobs import project
from qframe.manager import QueueManager
from qframe.worker import roster
from tests.support import forking

ZOO = Path(__file__).with_name("zoo.py")
"""Jobs of every kind; a project has them as the module `jobs`."""

PATIENCE = 60.0
"""Seconds until a condition that does not come true fails its test; generous for a busy machine."""

_SHOWN = 3000
"""Characters of a process's output that are shown where its test fails."""
_ARRIVAL = 10.0
"""Seconds until a signal has arrived, at most."""
_LOOKS = 20
"""Looks in a row, a hundredth of a second apart, at which a process at rest sleeps."""

_LOOKS_SELDOM = """
from qframe.contracts.backend import Backend
from qframe.drivers.beanstalkd import backend as _beanstalkd
from qframe.drivers.redis import backend as _redis


def _look_seldom(kind):
    kind.look_every = 60.0
    for each in kind.__subclasses__():
        _look_seldom(each)


_look_seldom(Backend)
"""
_LIMITED = """
import ctypes, os, resource, sys
kind, value, *command = sys.argv[1:]
if kind == "file size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
elif kind == "no override" and os.geteuid() == 0:
    # root ignores the modes of files, by a capability that can be given up for good
    if ctypes.CDLL(None, use_errno=True).prctl(24, 1, 0, 0, 0):
        sys.exit("prctl failed")
os.execv(command[0], command)
"""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Give the first true value of `condition`; fails, naming `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.01)


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def one_line(self) -> str:
        """Give the one line of stderr; fails where there is more, or a traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"not one line: {self.err!r}, exit {self.code}"
        assert "Traceback" not in self.err
        return lines[0]


class Process:
    """A running command whose output goes to files."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        name: str,
        environment: Mapping[str, str],
        forked_by: forking.Server | None = None,
    ) -> None:
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        self.popen: subprocess.Popen[bytes] | forking.Forked
        if forked_by is not None:
            self.popen = forked_by.fork(command[3:], folder, self._out, self._err, environment)
        else:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                self.popen = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
        self.pid = self.popen.pid
        self.words = command[3:]
        self.began = time.monotonic()

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="backslashreplace")

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text(errors="backslashreplace")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines printed so far."""
        lines = self.out.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n") and line[0] == "{"]

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, by its pid; returns when it has arrived, unless the process is stopped.

        The kernel makes one of two signals that wait to be delivered.
        """
        self.popen.send_signal(number)
        give_up = time.monotonic() + _ARRIVAL
        while _is_pending(self.pid, number) and time.monotonic() < give_up:
            time.sleep(0.005)

    def rests(self) -> None:
        """Wait until no thread of the process runs: all sleep or wait."""
        looks = 0

        def rested() -> bool:
            nonlocal looks
            looks = looks + 1 if _sleeps(self.pid) else 0
            return looks > _LOOKS

        wait_for(rested, "a process at rest")

    def ask_twice_to_stop(self) -> None:
        """Send SIGTERM, and again when the process has heard the first, which did not end it."""
        self.signal(signal.SIGTERM)
        self.rests()
        assert self.alive()
        self.signal(signal.SIGTERM)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and give the exit code."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(
                f"pid {self.pid} did not end in {seconds:g} s\n{self.out}\n{self.err}"
            ) from None

    def finished(self, seconds: float = PATIENCE) -> Finished:
        """Wait for its end and give what it said."""
        code = self.wait(seconds)
        return Finished(code, self.out, self.err)

    def stop(self) -> int:
        """Ask a worker to stop and give its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """Kill it, whatever state it is in."""
        if self.alive():
            self.popen.kill()
        self.popen.wait()

    def descendants(self) -> list[psutil.Process]:
        """Give the processes it has started, and those they have, while it runs."""
        if not self.alive():
            return []
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def report(self) -> None:
        """Print the end of its output, for pytest to show where the test has failed."""
        print(f"-- pid {self.pid}, exit {self.popen.returncode}, {' '.join(self.words)}")
        print(self.out[-_SHOWN:], self.err[-_SHOWN:], sep="\n")


class Project:
    """A folder with `qframe.toml`, a module `jobs` and a ledger, and the processes on it."""

    def __init__(self, root: Path, toml: str = "", **connection: object) -> None:
        self.root = root
        self.ledger = root / "ledger"
        self.database = root / "qframe.sqlite3"
        self.processes: list[Process] = []
        self._manager: QueueManager | None = None
        self._root_before = project._root
        root.mkdir(parents=True, exist_ok=True)
        self.ledger.touch()
        shutil.copy(ZOO, root / "jobs.py")
        self.configure(toml, **connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            started = process.descendants()
            process.end()
            for each in started:  # a worker whose pool a failed test has left is nobody's
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self.report(process)
        self.close()
        project._root = self._root_before

    def report(self, process: Process) -> None:
        """Show what a process said that has ended."""
        process.report()

    def close(self) -> None:
        """Close this process's connections to the project."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def configure(self, toml: str = "", **connection: object) -> None:
        """Write the configuration; keyword arguments are of the database connection."""
        self.close()
        values = {"driver": "database", "retry_after": 15, "busy_timeout": 5, **connection}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (self.root / "qframe.toml").write_text(
            f"unknown_job_delays = [0, 0]\n{toml}\n[connections.database]\n{lines}"
        )

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    # -- from this process ----------------------------------------------------------------------

    @property
    def manager(self) -> QueueManager:
        """The project's manager in this process."""
        if self._manager is None:
            settings = config.load(self.root / "qframe.toml")
            settings.listeners = {}  # these are the workers'
            self._manager = QueueManager(settings)
        return self._manager

    @property
    def queue(self) -> Connection:
        """The project's connection in this process."""
        return self.manager.connection("database")

    def push(
        self,
        job: str,
        data: object = None,
        *,
        queue: str | None = None,
        delay: float = 0,
        **envelope: object,
    ) -> str:
        """Queue a job of the module `jobs` and give its uuid; `envelope` adds to the payload."""
        identity = str(uuid.uuid4())
        message = {
            "uuid": identity,
            "displayName": job,
            "job": job if "." in job else f"jobs.{job}",
            "data": data or {},
            "createdAt": int(time.time()),
            **envelope,
        }
        self.queue.push_raw(json.dumps(message), queue, delay)
        return identity

    def let_go(self, *words: str) -> None:
        """Let the `Held` jobs of these words end."""
        for word in words:
            (self.root / f"let-{word}").touch()

    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue."""
        return self.queue.sizes(queue)

    def empty(self, queue: str | None = None) -> bool:
        """Whether a queue has no job, in the states that can be counted."""
        return not any(self.sizes(queue).counted.values())

    def failed(self) -> list[FailedJob]:
        """List the failed jobs, the first one first."""
        return list(self.manager.failed_store("database").page(10_000))[::-1]

    def failure(self) -> FailedJob:
        """Give the one failed job; fails unless there is exactly one."""
        (record,) = self.failed()
        return record

    # -- the ledger -----------------------------------------------------------------------------

    def notes(self, first: str = "") -> list[list[str]]:
        """Give the ledger's lines as words, those that begin with the word `first`."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [line for line in lines if not first or line[0] == first]

    def wait_for_note(self, *words: object, count: int = 1, seconds: float = PATIENCE) -> list[str]:
        """Wait until the ledger has `count` lines that begin with these words; gives the last."""
        wanted = [str(word) for word in words]

        def found() -> list[list[str]]:
            lines = [line for line in self.notes() if line[: len(wanted)] == wanted]
            return lines[count - 1 :]

        return wait_for(found, f"the note {' '.join(wanted)} x{count}", seconds)[0]

    # -- processes ------------------------------------------------------------------------------

    def work(
        self,
        *arguments: object,
        limit: tuple[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `qframe work`; `limit` is ("file size", bytes) or ("no override", "")."""
        return self.start("work", *arguments, limit=limit, environment=environment)

    def stop(self, workers: Sequence[Process]) -> list[int]:
        """Ask workers to stop once each has begun, and give their exit codes."""
        pids = {worker.pid for worker in workers}
        store = self.queue.store
        wait_for(lambda: pids <= {entry.pid for entry in roster.listed(store)}, "the workers")
        return [worker.stop() for worker in workers]

    def idle(self, *arguments: object, toml: str = "", **connection: object) -> Process:
        """Start a worker and wait until it says by a listener that it has nothing to do."""
        self.configure(f'[listeners]\nWorkerIdle = ["jobs:hear_idle"]\n{toml}', **connection)
        worker = self.work(*arguments)
        self.wait_for_note("idle", worker.pid)
        return worker

    def looks_seldom(self) -> None:
        """Have idle workers look by themselves each minute: whatever starts sooner has woken them.

        So a test of that needs no bound that a busy machine breaks.
        """
        file = self.root / "jobs.py"
        file.write_text(f"{file.read_text()}\n\n{_LOOKS_SELDOM}")

    def drain(self, *arguments: object, seconds: float = 60) -> Finished:
        """Run a worker until nothing is ready."""
        finished = self.work("--stop-when-empty", *arguments).finished(seconds)
        assert finished.code == 0, f"exit {finished.code}\n{finished.out}\n{finished.err}"
        return finished

    def qframe(self, *arguments: object) -> Finished:
        """Run a command to its end."""
        return self.start(*arguments).finished()

    def start(
        self,
        *arguments: object,
        limit: tuple[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command of `qframe`, forked where that makes no difference to it."""
        command = forking.command([*map(str, arguments)])
        return self.run(command, limit=limit, environment=environment, may_be_forked=True)

    def python(self, code: str, *arguments: object) -> Finished:
        """Run a program in the project's folder to its end."""
        (self.root / "program.py").write_text(code)
        return self.run([sys.executable, "program.py", *map(str, arguments)]).finished()

    def program(self, code: str, *arguments: object) -> Finished:
        """Run a program to whom it makes no difference that it is forked, as commands are."""
        (self.root / "program.py").write_text(code)
        command = forking.program("program.py", [*map(str, arguments)])
        return self.run(command, may_be_forked=True).finished()

    def run(
        self,
        command: Sequence[str],
        *,
        limit: tuple[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        may_be_forked: bool = False,
    ) -> Process:
        """Start any command in the project's folder."""
        if limit is not None:
            command = [sys.executable, "-c", _LIMITED, limit[0], str(limit[1]), *command]
        inherited = {k: v for k, v in os.environ.items() if not k.upper().startswith("QFRAME_")}
        everything = {**inherited, "LEDGER": str(self.ledger), **(environment or {})}
        alone = limit is not None or not may_be_forked
        server = None if alone else forking.server_for(everything)
        name = f"process-{len(self.processes)}"
        process = Process(command, self.root, name, everything, server)
        self.processes.append(process)
        return process


def _sleeps(pid: int) -> bool:
    """Whether no thread of a process runs, or wants to."""
    with contextlib.suppress(OSError):
        stats = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
        return not any(each.rpartition(")")[2].split()[0] == "R" for each in stats)
    return False


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal waits to be delivered to a process."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        said = dict(line.split(":", 1) for line in status.splitlines())
        has_ended = said["State"].split()[0] in "ZX"  # what killed it is pending for ever
        return not has_ended and bool(int(said["ShdPnd"], 16) & 1 << (number - 1))
    return False
