"""A private SQL server while a `with` block runs, its files on a disk and not in memory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from benchmarks.places import BenchmarkError

_PATIENCE = 60.0
_DISK = Path("/var/tmp")  # noqa: S108 (never in memory, unlike /tmp)
_BLOCK = bytes(8192)
_DATABASE = "bench"


@dataclass(frozen=True, slots=True)
class Work:
    """What a server has done so far: statements, commits, and writes its log waited for."""

    statements: float
    commits: float
    syncs: float

    def since(self, before: Work, jobs: int) -> Work:
        """Give what was done since then, for each job."""
        return Work(
            (self.statements - before.statements) / jobs,
            (self.commits - before.commits) / jobs,
            (self.syncs - before.syncs) / jobs,
        )


class SqlServer(ABC):
    """A server on a free port of loopback, ended by its own process. Every write is synced."""

    name: ClassVar[str]
    bare: ClassVar[str]
    """What runs its bare statements."""
    prompt: ClassVar[float]
    """Seconds in which an idle worker is to start a job, in the median."""
    user: ClassVar[str]
    """Whom it runs as where the benchmark runs as root."""

    def __init__(self) -> None:
        self.port = 0
        self.folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"qframe-bench-{self.name.lower()}-", dir=_DISK))
        try:
            if account := self._account():
                shutil.chown(self.folder, account, account)
            self.port = _free_port()
            self._make()
            with (self.folder / "server.log").open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    cwd=self.folder,
                    user=account,
                    group=account,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._wait_until_up(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it and remove its folder."""
        if self._process is not None:
            self._process.send_signal(self._end)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what each kind of server does its own way ------------------------------------------------

    _end: ClassVar[int]

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    @abstractmethod
    def _make(self) -> None:
        """Make the files of an empty server."""

    @abstractmethod
    def connect(self, database: str = _DATABASE) -> Any:  # noqa: ANN401 (a DBAPI connection)
        """Connect, each statement its own transaction."""

    @abstractmethod
    def url(self, database: str = _DATABASE) -> str:
        """Give the address of a database."""

    def our_url(self, database: str = _DATABASE) -> str:
        """Give the address as our settings name it."""
        return self.url(database)

    @abstractmethod
    def create(self, database: str) -> None:
        """Make an empty database, in place of what has that name."""

    @abstractmethod
    def drop(self, database: str) -> None:
        """Remove a database, where it is there."""

    def keep(self, name: str) -> None:  # noqa: ARG002 (where a server can)
        """Keep the database as it is now, under a name."""
        return

    def restore(self, name: str) -> bool:  # noqa: ARG002 (where a server can)
        """Make the database what was kept under a name; False where nothing was."""
        return False

    @abstractmethod
    def work(self) -> Work:
        """Give what it has done so far."""

    @abstractmethod
    def version(self) -> str:
        """Give its version."""

    @abstractmethod
    def fill(self, count: int, database: str = _DATABASE) -> None:
        """Copy the job that waits in our table so many times."""

    @abstractmethod
    def leave_dead(self, count: int) -> None:
        """Add so many rows to our table that are due first, and delete them."""

    @abstractmethod
    def bare_inserts(self, clients: int, count: int) -> float:
        """Insert so many rows like the one that waits in our table, one by one; give the rate."""

    @abstractmethod
    def bare_claims(self, clients: int, count: int) -> float:
        """Claim so many rows one by one, and delete each; give the rate."""

    @contextlib.contextmanager
    def long_transaction(self) -> Iterator[None]:
        """Keep a transaction open that might still look at everything there is now."""
        with contextlib.closing(self.connect()) as connection:
            self._look(connection)
            yield

    @abstractmethod
    def _look(self, connection: Any) -> None: ...  # noqa: ANN401

    # -- the same for each ------------------------------------------------------------------------

    def execute(self, *statements: str, database: str = _DATABASE) -> None:
        """Run statements, one transaction each."""
        with contextlib.closing(self.connect(database)) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)

    def ask(self, question: str, database: str = _DATABASE) -> Sequence[Any]:
        """Give the rows of an answer."""
        with contextlib.closing(self.connect(database)) as connection:
            cursor = connection.cursor()
            cursor.execute(question)
            return list(cursor.fetchall())

    def _account(self) -> str | None:
        """Give whom it runs as, where that is not who we are."""
        if os.getuid():
            return None
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(self.user).pw_name
        return "nobody"

    def _run(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        account = self._account()
        done = subprocess.run(
            command, cwd=self.folder, env=environment, user=account, group=account,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchmarkError(f"{self.name}: {done.stdout}{done.stderr}")

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.create(_DATABASE)
            except Exception as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "server.log").read_text(errors="replace")
                    raise BenchmarkError(f"{error}\n{log}") from error
                time.sleep(0.05)
            else:
                return


def disk() -> dict[str, str]:
    """Say what it costs to have 8 kB safely on the disk that the servers use."""
    times = []
    with tempfile.TemporaryFile(dir=_DISK) as file:
        file.write(_BLOCK * 64)
        os.fsync(file.fileno())
        for number in range(500):
            os.pwrite(file.fileno(), _BLOCK, number % 64 * len(_BLOCK))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return {"fdatasync of 8 kB": f"{statistics.median(times) * 1e6:,.0f} µs in the median"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
