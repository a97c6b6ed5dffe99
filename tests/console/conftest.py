"""The command line inside this process, in an empty folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, config
from qframe.connection import Connection
from qframe.console.app import main
from qframe.contracts import FailedJob, History
from qframe.features.reserved import ReservedJob


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> Any:
        """What was printed as one JSON document."""
        return json.loads(self.out)

    def only(self) -> str:
        """Give the one line of stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self
        assert self.out == "", self
        assert lines[0].startswith("qframe: ")
        return lines[0]


class Shop:
    """A folder with a configuration, and the commands run in it."""

    def __init__(self, root: Path, run: Callable[..., Said]) -> None:
        self.root = root
        self.run = run
        self.write(
            "shop.py",
            "from qframe import Queueable, queueable\n"
            "class Order(Queueable):\n"
            "    number: int\n"
            "    note: str = ''\n"
            "    tries = 3\n"
            "    def handle(self) -> None: ...\n"
            "@queueable\n"
            "def ship(number: int) -> None: ...\n",
        )
        self._manager: QueueManager | None = None

    def write(self, name: str, text: str) -> Path:
        (self.root / name).write_text(text)
        return self.root / name

    @property
    def manager(self) -> QueueManager:
        if self._manager is None:
            self._manager = QueueManager(config.load())
        return self._manager

    @property
    def queue(self) -> Connection:
        return self.manager.connection("database")

    def keep(self, uuid: str = "u-1", **over: Any) -> FailedJob:
        """Put a job into the failed store."""
        payload = {
            "uuid": uuid, "displayName": over.pop("name", "shop.Order"), "job": "shop.Order",
            "data": {"number": 7}, "createdAt": int(time.time()), **over.pop("payload", {}),
        }  # fmt: skip
        raw = json.dumps(payload).encode()
        history = History().started(1, "host", 42, time.time()).ended("error", "ValueError: no")
        values = {
            "connection": "database", "queue": "default", "attempts": 1,
            "exception": "Traceback (most recent call last):\nValueError: no\n",
            "history": history, "failed_at": time.time(), "payload": raw, **over,
        }  # fmt: skip
        record = FailedJob(uuid=uuid, name=str(payload["displayName"]), **values)
        self.manager.failed_store("database").add(record)
        return record

    def kept(self) -> list[str]:
        """Give the uuids of the failed jobs, the first one first."""
        return [r.uuid for r in self.manager.failed_store("database").page(10_000)][::-1]


def started(job: ReservedJob) -> bool:
    """Start a job that is held; says whether it was ours."""
    (result,) = job.context.backend.apply(job.start_plan())
    return result.applied


@pytest.fixture
def shop(fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shop:
    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["qframe", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Said(int(end.value.code or 0), printed.out, printed.err)

    return Shop(fresh, run)
