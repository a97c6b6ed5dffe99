"""A job in a process of its own: what that has used is said of its class."""

from __future__ import annotations

from qframe import QueueManager, config
from qframe.operations.board import Board
from tests.support.process import Project


def test_processor_time_and_memory_are_those_of_the_process(project: Project) -> None:
    project.write(
        "jobs.py",
        "import time\nfrom qframe import Queueable\n"
        "class Big(Queueable):\n"
        "    def handle(self) -> None:\n"
        "        kept = bytearray(b'1' * 60_000_000)\n"
        "        until = time.process_time() + 0.05\n"
        "        while time.process_time() < until: pass\n",
    )
    project.qframe("dispatch", "jobs.Big")
    project.drain("--isolate", "--quiet")
    queues = QueueManager(config.load(project.root / "qframe.toml"))
    (found,) = Board(queues).usage(1)
    queues.close()
    assert found.name == "jobs.Big"
    assert (found.processor_seconds or 0) >= 0.05
    assert (found.memory_mb or 0) >= 60
