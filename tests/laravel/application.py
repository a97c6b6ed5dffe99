"""An application half in Laravel and half in Python, on one backend, with real workers of both.

What jobs do, they note in one ledger of JSON lines. Both sides write one line in one write.
"""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from qframe.connection import Connection
from qframe.contracts import FailedJob
from tests.support.process import PATIENCE, Process, Project, wait_for

HERE = Path(__file__).parent
JOBS = HERE / "jobs.py"

Entry = dict[str, Any]


class Application(Project):
    """A project whose default connection is a backend that Laravel uses as well.

    For each backend there is a class that says what the connection is on either side.
    """

    driver: ClassVar[str]
    """The driver's name, in qframe as in Laravel, and the connection's."""

    def __init__(self, root: Path, php: str, **settings: object) -> None:
        self.php_options: dict[str, Any] = {}
        self._php = php
        super().__init__(root, "", **settings)
        (root / "app").mkdir()
        (root / "app" / "__init__.py").touch()
        shutil.copy(JOBS, root / "app" / "jobs.py")

    @abstractmethod
    def connection(self) -> dict[str, Any]:
        """Give the connection's settings."""

    @abstractmethod
    def php_connection(self) -> dict[str, Any]:
        """Give what boot.php has to know of the backend."""

    def configure(self, toml: str = "", **settings: object) -> None:
        """Write the configuration; keyword arguments are of the connection."""
        self.close()
        values = {"driver": self.driver, **self.connection(), "retry_after": 60, **settings}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (self.root / "qframe.toml").write_text(
            f'default = "{self.driver}"\njobs = ["app.jobs"]\nunknown_job_delays = []\n'
            f"{toml}\n[connections.{self.driver}]\n{lines}"
            '[listeners]\nWorkerIdle = ["app.jobs:hear_idle"]\n'
        )

    @property
    def queue(self) -> Connection:
        """The connection in this process."""
        return self.manager.connection(self.driver)

    def failed(self) -> list[FailedJob]:
        """List what Python has failed, the first one first."""
        return list(self.manager.failed_store(self.driver).page(10_000))[::-1]

    # -- the ledger -----------------------------------------------------------------------------

    def entries(self, event: str = "", **more: object) -> list[Entry]:
        """Give the ledger's entries of this event whose keys have these values."""
        *lines, _ = self.ledger.read_text().split("\n")  # the last one may be being written
        found: list[Entry] = [json.loads(line) for line in lines]
        return [
            entry
            for entry in found
            if (not event or entry["event"] == event)
            and all(entry.get(key) == value for key, value in more.items())
        ]

    def wait_for(
        self, event: str, count: int = 1, seconds: float = PATIENCE, **more: object
    ) -> list[Entry]:
        """Wait until the ledger has `count` such entries, and give them."""

        def found() -> list[Entry]:
            entries = self.entries(event, **more)
            return entries if len(entries) >= count else []

        return wait_for(found, f"{count} x {event} {more or ''}", seconds)

    def ends(self) -> list[tuple[str, int]]:
        """Give who brought which attempt to its end, in order."""
        return [(entry["side"], entry["attempts"]) for entry in self.entries("end")]

    def starts(self) -> list[tuple[str, int]]:
        """Give who started which attempt, in order."""
        return [(entry["side"], entry["attempts"]) for entry in self.entries("start")]

    # -- PHP ------------------------------------------------------------------------------------

    def php(
        self,
        script: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Process:
        """Start a script of the PHP application; `options` as boot.php and work.php say."""
        given = {
            "driver": self.driver,
            **self.php_connection(),
            "ledger": str(self.ledger),
            **self.php_options,
            **options,
        }
        words = [json.dumps(given), *map(str, arguments)]
        return self.run([self._php, str(HERE / script), *words], environment=environment)

    def php_push(self, *steps: Sequence[Any]) -> list[Any]:
        """Push from PHP, as push.php says, and give its answers."""
        finished = self.php("push.php", json.dumps(steps)).finished()
        assert finished.code == 0, finished.out + finished.err
        answers: list[Any] = json.loads(finished.out)
        return answers

    def php_worker(self, queues: str = "default", **options: Any) -> Process:
        """Start Laravel's worker and wait until it is in its loop."""
        process = self.php("work.php", work=queues, **options)
        self.wait_for("looping", side="php", pid=process.pid)
        return process

    def php_drains(self, queues: str = "default", **options: Any) -> Process:
        """Run Laravel's worker until a queue is empty; gives the ended process."""
        process = self.php("work.php", work=queues, stop_when_empty=True, **options)
        assert process.wait() == 0, process.out + process.err
        return process

    def php_works_once(self, queues: str = "default", **options: Any) -> Process:
        """Let Laravel's worker run one job; gives the ended process."""
        process = self.php("work.php", work=queues, once=True, **options)
        assert process.wait() == 0, process.out + process.err
        return process

    # -- Python ---------------------------------------------------------------------------------

    def idle_worker(self, *arguments: object) -> Process:
        """Start `qframe work` and wait until it says that there is nothing to do."""
        worker = self.work(*arguments)
        self.wait_for("idle", side="python", pid=worker.pid)
        return worker

    def works_once(self, *arguments: object) -> None:
        """Let `qframe work` start one job."""
        finished = self.work("--max-jobs", 1, *arguments).finished()
        assert finished.code == 0, finished.out + finished.err

    def drain_all(self, *arguments: object) -> None:
        """Let `qframe work` work until nothing is left of the default queue, delayed or not."""
        worker = self.work(*arguments)
        wait_for(self.empty, "an empty queue")
        assert worker.stop() == 0, worker.out + worker.err
