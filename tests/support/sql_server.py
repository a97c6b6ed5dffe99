"""What private SQL servers share: their folder and user, their start, their first database."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from tests.support.server_process import PATIENCE, ServerProcess, free_port

USER = "qframe"
"""The user of the tests, without a password, who may do anything in the databases of `database`."""

_MEMORY = Path("/dev/shm")
_ROOM = 4 * 2**30


def is_root() -> bool:
    """Whether a server that refuses root has to be started as another user."""
    return os.geteuid() == 0


def folder_of(user: str | None, name: str, *, disk: bool = False) -> Path:
    """Make a folder that is gone with this process, where `user` may come, too.

    It is in memory where there is room, as what nothing is synced to may be, or on `disk`.
    """
    roomy = not disk and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    folder = Path(tempfile.mkdtemp(prefix=f"qframe-{name}-", dir=_MEMORY if roomy else None))
    if user is not None:
        shutil.chown(folder, user)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # not a process forked from it
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.01)


def run(words: Sequence[str | Path], user: str | None = None, told: str = "") -> None:
    """Run a program of a server to its end, as `user`."""
    done = subprocess.run(
        [*map(str, words)],
        input=told,
        capture_output=True,
        text=True,
        check=False,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd="/",
    )
    if done.returncode:
        raise AssertionError(f"{words[0]}:\n{done.stdout}{done.stderr}")


class SqlServer(ServerProcess):
    """A server of its own, running once `start` is called or the `with` block entered.

    `config` are lines like "fsync=on", the last of a name counts. By default nothing is synced to
    disk and the data is in memory where there is room, else (or with `disk`) on disk: a kill loses
    nothing, a power loss would. `empty` deletes the rows of every table and leaves the tables. A
    server that was ended starts again on the same data and port.
    """

    name: str
    """How the server calls itself in what tests print."""

    def __init__(self, folder: Path, *, config: Sequence[str] = (), disk: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.config = list(config)
        self.disk = disk
        self.user: str | None = None
        self._has_tables = False
        self._numbers = itertools.count(1)
        super().__init__()

    # -- where it is ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """How to reach its first database."""
        return self.url_at()

    @abstractmethod
    def url_at(self, port: int = 0, database: str = USER) -> str:
        """Give the URL of a database through another port, such as a proxy's."""

    def database(self) -> str:
        """Make one more database, empty, and give its URL."""
        name = f"{USER}_{next(self._numbers)}"
        self.create(name)
        return self.url_at(database=name)

    @abstractmethod
    def create(self, database: str) -> None:
        """Make a database."""

    # -- its life -------------------------------------------------------------------------------

    @abstractmethod
    def command(self) -> list[str]:
        """Give the words that start it."""

    def start(self, *, seconds: float = PATIENCE) -> Self:
        """Start it and wait until it answers."""
        assert not self.alive(), "it runs already"
        deadline = time.monotonic() + seconds
        while not self._launch(deadline):
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name} did not start:\n{self.log}")
            self.port = free_port()  # somebody else was quicker to take it
        return self

    def _launch(self, deadline: float) -> bool:
        """Start the process; `False` when its port was taken meanwhile."""
        before = len(self.log)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        self._stopped = False
        while time.monotonic() < deadline:
            if not self.alive():
                if "already in use" in self.log[before:]:
                    return False
                raise AssertionError(f"{self.name} ended at once:\n{self.log[before:]}")
            if self.answers():
                return True
            time.sleep(0.01)
        return False

    @abstractmethod
    def answers(self) -> bool:
        """Whether it answers a statement."""

    def restart(self, *, kill: bool = False) -> Self:
        """End it, by asking or `kill`, and start it on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def _tree(self) -> list[psutil.Process]:
        """Give the server's process and its children, the server first."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        return []

    @property
    def log(self) -> str:
        """What it has logged since it was made."""
        file = self.folder / "log"
        return file.read_text(errors="backslashreplace") if file.exists() else ""

    # -- talking to it --------------------------------------------------------------------------

    @abstractmethod
    def sql(self, statement: str, *values: Any, database: str = USER) -> list[tuple[Any, ...]]:
        """Run a statement (`%s` is a value) as the administrator, and give its rows."""

    @abstractmethod
    def empty(self, database: str = USER) -> None:
        """Delete the rows of every table of a database."""

    def prepared(self) -> str:
        """Give the URL of its first database, with a queue's tables in it, empty."""
        if not self._has_tables:
            backend = DatabaseBackend("here", DatabaseSettings(url=self.url))
            backend.migrate()
            backend.close()
            self._has_tables = True
        self.empty()  # also the first time: other tests use this database by its URL
        return self.url
