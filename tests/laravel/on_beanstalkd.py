"""The application on a beanstalkd that Laravel uses as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.laravel.application import Application
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import wait_for


class BeanstalkdApplication(Application):
    """A project on a beanstalkd."""

    driver = "beanstalkd"

    def __init__(self, root: Path, server: BeanstalkdServer, php: str, **settings: object) -> None:
        self.server = server
        super().__init__(root, php, **settings)

    def connection(self) -> dict[str, Any]:
        host, port = self.server.address
        return {"host": host, "port": port}

    def php_connection(self) -> dict[str, Any]:
        return {"port": self.server.port}

    def wait_for_blocked(self, count: int = 1) -> None:
        """Wait until so many clients are blocked in a reserve."""
        wait_for(
            lambda: int(self.server.stats()["current-waiting"]) >= count,
            f"{count} waiting clients",
        )

    def one(self, tube: str = "default") -> dict[str, Any]:
        """Give the statistics of the one ready or delayed job of a tube, and its `body`."""
        with self.server.client(tube) as client:
            ready, delayed, *_ = self.server.counts(tube)
            assert ready + delayed == 1, f"{ready} are ready, {delayed} are delayed"
            job = client.peek_ready() if ready else client.peek_delayed()
            return {**client.stats_job(job), "body": job.body}
