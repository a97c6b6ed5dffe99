"""Commands of `qframe`, and programs, forked from a process that has imported it already.

Importing qframe and a driver takes most of a second of processor time on a small machine, and the
tests start thousands of commands. What is forked is a process of its own like any other, with its
own pid, folder, environment and output; only its modules were imported before.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import setproctitle
from typer import main

_SERVE = "from tests.support.forking import serve; serve()"
_RUN = "from qframe.console.app import main; main()"
_RUN_FILE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
_REPOSITORY = Path(__file__).parents[2]
_IMPORTED = (
    "qframe.console.app",
    "qframe.drivers.beanstalkd.backend",
    "qframe.drivers.database.backend",
    "qframe.drivers.redis.backend",
    "qframe.worker.isolation.runner",
    "rich.table",
    "sqlite3",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
_FREE = ("LEDGER", "PYTEST_CURRENT_TEST", "QFRAME_")
"""What begins like this is not read before a command runs, so it may differ from command to
command; where anything else in the environment does, the command is started by itself."""


def command(arguments: Sequence[str]) -> list[str]:
    """Give what starts a command of `qframe` by itself."""
    return [sys.executable, "-c", _RUN, *arguments]


def program(file: str, arguments: Sequence[str]) -> list[str]:
    """Give what starts a program that uses qframe by itself."""
    return [sys.executable, "-c", _RUN_FILE, file, *arguments]


enabled = True
"""Whether anything is forked; `--exec` has each command start by itself."""


class Forked:
    """A process forked by another; what there is of it is as in `subprocess.Popen`."""

    def __init__(self, pid: int, server: Server, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._arguments = arguments
        self._handle = os.pidfd_open(pid)  # its pid is its own until `_reap`

    def poll(self) -> int | None:
        """Give its exit code, None while it runs."""
        return self._reap(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and give the exit code; raises `subprocess.TimeoutExpired`."""
        code = self._reap(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._handle, select.POLLIN)
            if ended.poll(None if timeout is None else timeout * 1000):
                self.returncode = self._server.reap(self.pid)
                os.close(self._handle)
        return self.returncode


class Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(its.fileno())],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        with ours:
            self._pipe = ours.makefile("rw", buffering=1)
        self._asking = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._owner:
            self._pipe.close()
            self._process.wait()

    def may_fork(self, environment: Mapping[str, str]) -> bool:
        """Whether a command in such an environment may be forked."""
        different = set(environment.items()) ^ set(self._environment.items())
        return os.getpid() == self._owner and all(name.startswith(_FREE) for name, _ in different)

    def fork(
        self, arguments: Sequence[str], folder: Path, out: Path, err: Path,
        environment: Mapping[str, str],
    ) -> Forked:  # fmt: skip
        """Start a command of `qframe`, or a program's file, in a folder; it prints to files."""
        for each in (out, err):
            each.write_bytes(b"")  # which are there from the beginning
        places = [str(place) for place in (folder, out, err)]
        return Forked(self._ask([list(arguments), *places, dict(environment)]), self, arguments)

    def reap(self, pid: int) -> int:
        """Give the exit code of one that has ended, as `subprocess` has it."""
        return self._ask(pid)

    def _ask(self, question: object) -> int:
        with self._asking:
            self._pipe.write(json.dumps(question) + "\n")
            answer = self._pipe.readline()
        assert answer, f"the process that forks has ended: {self._process.wait()}"
        return int(answer)


@functools.cache
def _server() -> Server:
    """Give the process that forks for this one; it ends when this one does."""
    return Server()


def server_for(environment: Mapping[str, str]) -> Server | None:
    """Give what forks commands in such an environment; None where they start by themselves."""
    return _server() if enabled and _server().may_fork(environment) else None


def serve() -> None:
    """Fork a command for each line that asks for one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks ends it
    shared: set[str] = set()
    atexit.register(_keep, shared)  # before anything else registers: it runs last
    for module in _IMPORTED:
        importlib.import_module(module)
    made: Any = main.get_command(importlib.import_module("qframe.console.app").app)
    dict(made.commands)  # imports and makes each
    main.get_command = lambda typer_instance: made  # making it takes longer than most commands
    gc.collect()
    gc.freeze()  # what is here already is not looked through in each of them
    setproctitle.getproctitle()  # finds its place in memory, which another environment moves

    connection = socket.socket(fileno=int(sys.argv[1]))
    with connection, connection.makefile("rw", buffering=1) as pipe:
        for line in pipe:
            question = json.loads(line)
            if isinstance(question, int):
                _, status = os.waitpid(question, 0)
                answer = os.waitstatus_to_exitcode(status)
            else:
                answer = os.fork()
            if not answer and not isinstance(question, int):
                break
            pipe.write(f"{answer}\n")
        else:
            sys.exit()
    shared.update(set(sys.modules) - {"__main__", "builtins", "sys"})
    _become(*question)


def _keep(names: Iterable[str]) -> None:
    """Have this process end without emptying these modules.

    An interpreter empties all its modules as it ends, which copies the memory that a forked one
    shares: a fifth of the processor time of most commands.
    """
    for name in names:
        if module := sys.modules.pop(name, None):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


def _become(
    arguments: list[str], folder: str, out: str, err: str, environment: dict[str, str]
) -> None:
    """Make this process what it would be had it been started for the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, out), (2, err)):
        opened = os.open(name, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    if arguments[:1] and arguments[0].endswith(".py"):
        sys.argv = arguments
        sys.orig_argv = program(arguments[0], arguments[1:])
        runpy.run_path(arguments[0], run_name="__main__")
        return
    sys.argv = ["-c", *arguments]
    sys.orig_argv = command(arguments)
    from qframe.console.app import main

    main()
