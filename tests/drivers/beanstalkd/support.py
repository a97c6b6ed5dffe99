"""A project on a beanstalkd, for the tests of the beanstalkd driver."""

from __future__ import annotations

import json
import uuid as uuids
from pathlib import Path

from qframe.contracts import FailedJob
from qframe.drivers.base import BaseQueue
from qframe.drivers.beanstalkd.job import BeanstalkdJob
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import Process, Project, wait_for


class BeanstalkdProject(Project):
    """A project whose default connection is `beanstalkd`; keyword arguments are that connection's.

    Its store and its failed jobs are in the embedded database of its folder.
    """

    def __init__(
        self, root: Path, server: BeanstalkdServer, toml: str = "", **connection: object
    ) -> None:
        self._connection = {**server.settings, "retry_after": 5, **connection}
        super().__init__(root, toml)

    def configure(self, toml: str = "", **connection: object) -> None:
        """Write the configuration, with these settings over those it was made with."""
        self.close()
        values = {**self._connection, **connection}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (self.root / "qframe.toml").write_text(
            f'default = "beanstalkd"\nunknown_job_delays = [0, 0]\n{toml}\n'
            f"[connections.beanstalkd]\n{lines}"
        )

    @property
    def queue(self) -> BaseQueue:
        """The connection in this process."""
        return self.manager.connection("beanstalkd")

    def failed(self) -> list[FailedJob]:
        """List the failed jobs, the first one first."""
        return list(self.manager.failed_store("beanstalkd").page(10_000))[::-1]

    def done(self) -> list[str]:
        """Give the words of the notes that were written, in order."""
        return [words[1] for words in self.notes("note")]


def emptied(server: BeanstalkdServer) -> None:
    """Delete all jobs, also those that go back when the server sees that their workers are gone."""

    def empty() -> bool:
        server.empty()
        said = server.stats()
        return not any(said[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed"))

    wait_for(empty, "an empty server")


def lines_with(worker: Process, word: str) -> list[str]:
    """Give the lines a worker printed that hold a word."""
    return [line for line in worker.out.splitlines() if word in line]


def wait_for_line(worker: Process, word: str) -> str:
    """Wait until a worker has printed a line that holds a word, and give the first one."""
    return wait_for(lambda: lines_with(worker, word), f"{word!r} in the output")[0]


def body(uuid: str = "", **more: object) -> str:
    """Give a payload."""
    return json.dumps({"uuid": uuid or str(uuids.uuid4()), "job": "jobs.Note", "data": {}, **more})


def take(queue: BaseQueue, *names: str) -> BeanstalkdJob:
    """Reserve the one job there must be."""
    (job,) = queue.reserve(names or ("default",))
    assert isinstance(job, BeanstalkdJob)
    return job


def begin(queue: BaseQueue, *names: str) -> BeanstalkdJob:
    """Reserve the one job there must be, and start it."""
    job = take(queue, *names)
    assert queue.start(job)
    return job
