"""A private NATS with JetStream on loopback, in a folder and on a port of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.server_process import PATIENCE, ServerProcess, binary, free_port


class NatsServer(ServerProcess):
    """A server of its own, running once `start` is called or the `with` block entered."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._program = binary("nats-server", Path("/usr/sbin"))
        super().__init__()

    @property
    def url(self) -> str:
        return f"nats://{self.host_and_port}"

    def start(self) -> Self:
        """Start it, on the data there is in its folder, and wait until it answers."""
        assert not self.alive(), "it runs already"
        deadline = time.monotonic() + PATIENCE
        while not self._launch(deadline):
            assert time.monotonic() < deadline, f"NATS did not start:\n{self.output}"
            self.port = free_port()  # somebody else was quicker to take it
        return self

    def _launch(self, deadline: float) -> bool:
        """Start the process; `False` when its port was taken meanwhile."""
        before = len(self.output)
        words = ["-js", "-sd", str(self.folder / "data"), "-a", "127.0.0.1", "-p", str(self.port)]
        with self._output_file.open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, *words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._stopped = False
        while time.monotonic() < deadline:
            if not self.alive():
                if "address already in use" in self.output[before:]:
                    return False
                raise AssertionError(f"NATS ended at once:\n{self.output[before:]}")
            if self._answers():
                return True
            time.sleep(0.01)
        return False

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(self.address, 1) as line:
            line.settimeout(1)
            return line.recv(5) == b"INFO "
        return False

    def restart(self) -> Self:
        """Kill it, and start it on the same port and data."""
        self.kill()
        return self.start()

    @property
    def _output_file(self) -> Path:
        return self.folder / "output"

    @property
    def output(self) -> str:
        """What it has printed since it was made."""
        file = self._output_file
        return file.read_text(errors="backslashreplace") if file.exists() else ""
