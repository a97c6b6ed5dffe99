"""A private Redis: on loopback, on a free port, in its own folder, without persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import redis

from benchmarks.places import BenchmarkError, NotHereError

_PATIENCE = 10.0


class RedisServer:
    """A server that runs while the `with` block does; a replica of another one where given."""

    def __init__(self, replica_of: RedisServer | None = None) -> None:
        self._replica_of = replica_of
        self._client: Any = None

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        program = shutil.which("redis-server")
        if program is None:
            raise NotHereError("there is no redis-server here (make services installs it)")
        self._folder = Path(tempfile.mkdtemp(prefix="qframe-bench-redis-"))
        self.port = _free_port()
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync-delay": 0,
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        if self._replica_of is not None:
            words += ["--replicaof", "127.0.0.1", str(self._replica_of.port)]
        self._log = self._folder / "redis.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._client = redis.Redis.from_url(self.url())
        try:
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it and remove its folder."""
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: int = 0) -> str:
        """Give the address of one of its databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def version(self) -> str:
        """Give its version."""
        return str(self._client.info("server")["redis_version"])

    def empty(self) -> None:
        """Forget everything stored."""
        self._client.flushall()

    def round_trips(self) -> int:
        """Give how many times it has read something from a client, this question included."""
        return int(self._client.info("stats")["total_reads_processed"])

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                found = self._client.info("replication")
                if self._replica_of is None or found["master_link_status"] == "up":
                    return
            except redis.ConnectionError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(self._log.read_text(errors="replace"))
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
