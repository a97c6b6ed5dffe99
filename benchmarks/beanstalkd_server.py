"""A private beanstalkd: on loopback, on a free port, without a log."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from typing import Self

import greenstalk

from benchmarks.places import BenchmarkError, NotHereError

_PATIENCE = 10.0


class BeanstalkdServer:
    """A server that runs while the `with` block does."""

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        program = shutil.which("beanstalkd")
        if program is None:
            raise NotHereError("there is no beanstalkd here (make services installs it)")
        self._program = program
        self.port = _free_port()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    @property
    def address(self) -> str:
        """Its host and port, as one word."""
        return f"127.0.0.1:{self.port}"

    def empty(self) -> None:
        """Let it forget everything: without a log it begins anew."""
        self.__exit__()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "-l", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            with (
                contextlib.suppress(OSError),
                contextlib.closing(greenstalk.Client(("127.0.0.1", self.port))) as client,
            ):
                client.using()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise BenchmarkError("beanstalkd does not answer")
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
