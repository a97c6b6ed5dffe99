"""A beanstalkd whose clock can be set forward: the call by which it asks for the time is replaced.

Its clock never tells the same microsecond twice. Any other beanstalkd 1.12 misses, in one of three
cases, the moment at which a lease ends, which goes on until its connection is used again or ends.
"""

from __future__ import annotations

import struct
import subprocess
from functools import cache
from pathlib import Path

from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.server_process import binary

_SOURCE = Path(__file__).with_name("later.c")


class LaterServer(BeanstalkdServer):
    """A server that all tests of a process may share; `forward` lets time pass in it."""

    def __init__(self, folder: Path, *, max_job: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._passed = folder / "passed"
        self.set_back()
        words = [f"LD_PRELOAD={_library(folder)}", f"LATER_BY={self._passed}"]
        super().__init__(folder, fsync=None, max_job=max_job, under=["env", *words])

    def set_back(self) -> None:
        """Let the clock be right again."""
        self._microseconds = 0
        self._write()

    def forward(self, seconds: float) -> None:
        """Let the clock be `seconds` later, and everything due by then have happened."""
        self._microseconds += round(seconds * 1_000_000)
        self._write()
        with self.client() as client:
            client.using()
            client.using()  # it looks at its clock before it answers

    def _write(self) -> None:
        if not self._passed.exists():
            self._passed.write_bytes(bytes(8))
        with self._passed.open("r+b") as file:
            file.write(struct.pack("q", self._microseconds))


@cache
def _library(folder: Path) -> Path:
    found = folder / "later.so"
    command = [binary("cc"), "-shared", "-fPIC", "-O1", "-o", str(found), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return found
