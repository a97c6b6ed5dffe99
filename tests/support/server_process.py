"""The process of a private server: its binary and port, how it is ended or made to stand still."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

import pytest

PATIENCE = 60.0
"""Seconds until a server that does not come up fails its test; generous for a busy machine."""

# Below the ports that outgoing connections are given: while a server is down nobody else gets its
# port, and nobody who connects to it can be connected to itself. The bus of a Cluster's node
# listens 10,000 above.
_PORTS = range(12_000, 22_000)
_BUS = 10_000
_LONGEST_SOCKET_PATH = 100


def binary(name: str = "redis-server", *folders: Path) -> str:
    """Give the path of a binary; without it the test is skipped, or fails in CI."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, folders)))
    if found is None:
        say = pytest.fail if "CI" in os.environ else pytest.skip
        say(f"there is no {name} here: `make services` installs it")
    return found


def free_port() -> int:
    """Give a port that nobody listens on, nor on the one a Cluster's bus would take."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if all(_is_free(each) for each in (port, port + _BUS)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def socket_path(folder: Path, name: str) -> Path:
    """Give a path for a unix socket that is short enough to be one."""
    path = folder / name
    if len(str(path)) <= _LONGEST_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="socket-")) / name


class ServerProcess(ABC):
    """The process of a server on a port of loopback, ended by its own pid; a subclass starts it."""

    host = "127.0.0.1"
    port: int

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        if not self.alive():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> Self:
        """Start it, and return when it answers."""

    def close(self) -> None:
        """End it for good."""
        self.kill()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it is reached at."""
        return self.host, self.port

    @property
    def host_and_port(self) -> str:
        """The address as one word."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        """Whether its process is there, stopped or not."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        self.resume()
        if self._process is not None:
            self._process.terminate()
            self._ended()

    def kill(self) -> None:
        """Kill it, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Let it stand still: connections are accepted by the kernel, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """Let it go on after a pause."""
        if self._stopped and self.alive():
            os.kill(self.pid, signal.SIGCONT)
        self._stopped = False
