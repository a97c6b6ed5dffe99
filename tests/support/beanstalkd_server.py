"""A private beanstalkd on loopback, which writes its log with an fsync for each change.

It has its own folder and a free port, and is ended by its own pid. A missing binary skips the test
that wanted it, and fails it where `CI` is set.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import greenstalk

from tests.support.server_process import PATIENCE, ServerProcess, binary, free_port

PROGRAM = "beanstalkd"

Client = greenstalk.Client[bytes]


def beanstalkd() -> str:
    """Give the path of the binary; without it the test is skipped, or fails in CI."""
    return binary(PROGRAM)


class BeanstalkdServer(ServerProcess):
    """A server of its own, running once `start` is called or the `with` block entered.

    `log=False` starts it without its log (`-b`), so that it forgets everything when it ends; `log`
    may also be the folder it is written to. `fsync` is in milliseconds (`-f`), None for never
    (`-F`). `max_job` is the largest job in bytes (`-z`), `log_file` the size of a file of its log
    (`-s`). `options` are further words of its command line, and `under` is a command that starts
    it, as `strace -D` does. `limits` are resource limits as {resource.RLIMIT_AS: bytes}. It listens
    on `listen`, an address of this machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: bool | Path = True,
        fsync: int | None = 0,
        max_job: int | None = None,
        log_file: int | None = None,
        listen: str = "127.0.0.1",
        options: Sequence[str] = (),
        under: Sequence[str] = (),
        limits: Mapping[int, int] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log_folder = log if isinstance(log, Path) else folder / "log"
        self.logs = bool(log)
        self.fsync = fsync
        self.max_job = max_job
        self.log_file = log_file
        self.listen = listen
        self.options = list(options)
        self.under = list(under)
        self.limits = dict(limits or {})
        self.port = free_port()
        self._program = beanstalkd()
        super().__init__()

    # -- where it is ----------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        """What a connection's settings say of it."""
        return {"driver": "beanstalkd", "host": "127.0.0.1", "port": self.port}

    # -- its life -------------------------------------------------------------------------------

    def start(self, *, seconds: float = PATIENCE) -> Self:
        """Start it, on the log there is in its folder, and wait until it answers."""
        assert not self.alive(), "it runs already"
        deadline = time.monotonic() + seconds
        while not self._launch(deadline):
            if time.monotonic() > deadline:
                raise AssertionError(f"beanstalkd did not start:\n{self.output}")
            self.port = free_port()  # somebody else was quicker to take it
        return self

    def _launch(self, deadline: float) -> bool:
        """Start the process; `False` when its port was taken meanwhile."""
        before = len(self.output)
        if self.logs:
            self.log_folder.mkdir(exist_ok=True)
        with self._output_file.open("ab") as output:
            self._process = subprocess.Popen(
                [*self.under, self._program, *self._words()],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=self._limit() if self.limits else None,  # noqa: PLW1509
            )
        self._stopped = False
        while time.monotonic() < deadline:
            if not self.alive():
                if "Address already in use" in self.output[before:]:
                    return False
                raise AssertionError(f"beanstalkd ended at once:\n{self.output[before:]}")
            if self.answers():
                return True
            time.sleep(0.005)
        return False

    def _words(self) -> list[str]:
        words = ["-l", self.listen, "-p", str(self.port)]
        if self.logs:
            words += ["-b", str(self.log_folder)]
            words += ["-F"] if self.fsync is None else [f"-f{self.fsync}"]
        if self.max_job is not None:
            words += ["-z", str(self.max_job)]
        if self.log_file is not None:
            words += ["-s", str(self.log_file)]
        return [*words, *self.options]

    def _limit(self) -> Callable[[], None]:
        def limit() -> None:
            for kind, most in self.limits.items():
                resource.setrlimit(kind, (most, most))

        return limit

    def answers(self) -> bool:
        """Whether it answers a command."""
        with suppress(OSError, greenstalk.Error), self.client(timeout=0.5) as client:
            client.using()
            return True
        return False

    def restart(self, *, kill: bool = False) -> Self:
        """End it, by TERM or `kill`, and start it on the same port and log."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def refuse_puts(self) -> None:
        """Let it drain: from now until its end it answers DRAINING to each put."""
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE
        while self.stats()["draining"] != "true":
            assert time.monotonic() < deadline, "it does not drain"
            time.sleep(0.005)

    def empty_folder(self) -> None:
        """Throw away what it has written to disk, while it does not run."""
        assert not self.alive()
        shutil.rmtree(self.log_folder, ignore_errors=True)

    # -- talking to it --------------------------------------------------------------------------

    @contextmanager
    def client(self, *tubes: str, timeout: float = 10) -> Iterator[Client]:
        """Give a plain client, closed afterwards; it uses the first tube and watches all."""
        raw = socket.create_connection(self.address, timeout)
        try:
            client = greenstalk.Client(raw, encoding=None)
            try:
                for tube in tubes:
                    client.watch(tube)
                if tubes:
                    client.use(tubes[0])
                    if "default" not in tubes:
                        client.ignore("default")
                yield client
            finally:
                client.close()
        finally:
            raw.close()

    def stats(self) -> dict[str, Any]:
        """Give the server's statistics."""
        with self.client() as client:
            return dict(client.stats())

    def tube(self, name: str = "default") -> dict[str, Any]:
        """Give a tube's statistics; empty for one that does not exist."""
        with self.client() as client:
            try:
                return dict(client.stats_tube(name))
            except greenstalk.NotFoundError:
                return {}

    def counts(self, name: str = "default") -> tuple[int, int, int, int]:
        """Give how many jobs of a tube are ready, delayed, reserved and buried."""
        found = self.tube(name)
        ready, delayed, reserved, buried = (
            int(found.get(f"current-jobs-{state}", 0))
            for state in ("ready", "delayed", "reserved", "buried")
        )
        return ready, delayed, reserved, buried

    def job(self, identity: int) -> dict[str, Any]:
        """Give a job's statistics; empty for one that does not exist."""
        with self.client() as client:
            try:
                return dict(client.stats_job(identity))
            except greenstalk.NotFoundError:
                return {}

    def put(
        self, body: bytes, tube: str = "default", *, priority: int = 1024, delay: int = 0
    ) -> int:
        """Put a job as another program would, and give its number."""
        with self.client(tube) as client:
            return client.put(body, priority, delay)

    def bodies(self, tube: str = "default") -> list[bytes]:
        """Reserve all ready jobs of a tube and give their bodies; they come back afterwards."""
        found: list[bytes] = []
        with self.client(tube) as client:
            while True:
                try:
                    found.append(client.reserve(0).body)
                except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
                    return found

    def empty(self) -> None:
        """Delete every job that nobody has reserved, and end every pause."""
        with self.client() as client:
            for tube in client.tubes():
                client.use(tube)
                client.pause_tube(tube, 0)
                for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
                    with suppress(greenstalk.NotFoundError):
                        while True:
                            client.delete(peek())

    @property
    def _output_file(self) -> Path:
        return self.folder / "beanstalkd.txt"

    @property
    def output(self) -> str:
        """What it has printed since it was made."""
        file = self._output_file
        return file.read_text(errors="backslashreplace") if file.exists() else ""
