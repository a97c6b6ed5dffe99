"""Projects whose default connection is on a server, and what their tests have in common."""

from __future__ import annotations

import itertools
import json
import re
import uuid as uuids
from collections.abc import Mapping
from pathlib import Path

from qframe.connection import Connection
from qframe.contracts import FailedJob
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.pages import docs_page
from tests.support.process import Process, Project, wait_for
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.sqs_server import SqsServer

SECRET = "s3same-open"
"""The password of every server that asks for one; no output may hold it."""
_REDIS_PAGE = docs_page("redis.md")


class ServerProject(Project):
    """A project with one connection, named as its driver; keyword arguments are its settings."""

    driver: str

    def __init__(self, root: Path, toml: str = "", **connection: object) -> None:
        self._connection = {"driver": self.driver, "retry_after": 15, **connection}
        super().__init__(root, toml)

    def configure(self, toml: str = "", **connection: object) -> None:
        """Write the configuration, with these settings over those it was made with."""
        self.close()
        values = {**self._connection, **connection}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (self.root / "qframe.toml").write_text(
            f'default = "{self.driver}"\nunknown_job_delays = [0, 0]\n{toml}\n'
            f"[connections.{self.driver}]\n{lines}"
        )

    @property
    def queue(self) -> Connection:
        """The connection in this process."""
        return self.manager.connection(self.driver)

    def failed(self) -> list[FailedJob]:
        """List the failed jobs, the first one first."""
        return list(self.manager.failed_store(self.driver).page(10_000))[::-1]

    def done(self) -> list[str]:
        """Give the words of the notes that were written, in order."""
        return [words[1] for words in self.notes("note")]


class RedisProject(ServerProject):
    """A project on a Redis."""

    driver = "redis"


class DatabaseProject(ServerProject):
    """A project on PostgreSQL or MariaDB."""

    driver = "database"

    @property
    def url(self) -> str:
        """The database's address."""
        return str(self._connection["url"])


class BeanstalkdProject(ServerProject):
    """A project on a beanstalkd; its facts and failed jobs are in the database of its folder."""

    driver = "beanstalkd"

    def __init__(
        self, root: Path, server: BeanstalkdServer, toml: str = "", **connection: object
    ) -> None:
        super().__init__(root, toml, **{**server.settings, **connection})


class RabbitmqProject(ServerProject):
    """A project on a RabbitMQ; its facts and failed jobs are in the database of its folder."""

    driver = "rabbitmq"
    _numbers = itertools.count()

    def __init__(
        self, root: Path, server: RabbitmqServer, toml: str = "", **connection: object
    ) -> None:
        self.prefix = f"w{next(self._numbers)}."
        values = {**server.settings, "prefix": self.prefix, **connection}
        super().__init__(root, toml, **values)


class SqsProject(ServerProject):
    """A project on the strict SQS; its facts and failed jobs are in the database of its folder."""

    driver = "sqs"
    _numbers = itertools.count()

    def __init__(self, root: Path, server: SqsServer, toml: str = "", **connection: object) -> None:
        values = {**server.settings, "prefix": f"w{next(self._numbers)}-", "block_for": 1}
        super().__init__(root, toml, **{**values, **connection})


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


def rights(extra: str = "") -> list[str]:
    """Give the rights of an ACL user as docs/backends/redis.md lists them, with our password.

    `extra` is what is to be done, where a line lists further rights for that.
    """
    text = _REDIS_PAGE.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"ACL SETUSER qframe on (.*)", text)
    if extra:
        line += " " + re.findall(rf"^\| {extra} \| `(.*)` \|$", text, re.MULTILINE)[0]
    words = line.replace("\\|", "|").replace("'", "").replace("`", "").split()
    return [word.replace("PASSWORD", SECRET) for word in words]


def environment_of(settings: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Give what configures one connection in the environment, its facts elsewhere in a folder."""
    return {
        "QFRAME_DEFAULT": "q",
        "QFRAME_CONNECTIONS__DATABASE__DRIVER": "database",
        "QFRAME_CONNECTIONS__DATABASE__URL": f"sqlite:///{folder}/facts.sqlite3",
        **{f"QFRAME_CONNECTIONS__Q__{key}".upper(): str(each) for key, each in settings.items()},
    }
