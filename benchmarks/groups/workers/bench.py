"""What the measures of workers share: the servers of a run, and our side on each backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchmarks.beanstalkd_server import BeanstalkdServer
from benchmarks.places import NotHereError, Place, Side, producing
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer


@dataclass(slots=True)
class Bench:
    """The servers of a run; a backend that is not here is not among `connections`."""

    plan: Plan
    redis: RedisServer
    beanstalkd: BeanstalkdServer | None = None
    connections: dict[str, str] = field(default_factory=dict)
    """The settings of our connection, as lines of qframe.toml, by its driver."""

    @classmethod
    def of(cls, plan: Plan, redis: RedisServer, stack: contextlib.ExitStack) -> Bench:
        """Look for the servers, and let `stack` end them."""
        bench = cls(plan, redis)
        bench.connections["redis"] = f'driver = "redis"\nurl = "{redis.url()}"\n'
        bench.connections["database"] = 'driver = "database"\nurl = "sqlite:///qframe.sqlite3"\n'
        with contextlib.suppress(NotHereError):
            bench.beanstalkd = stack.enter_context(BeanstalkdServer())
            port = bench.beanstalkd.port
            bench.connections["beanstalkd"] = f'driver = "beanstalkd"\nport = {port}\n'
        return bench

    def ours(self, driver: str = "redis", *options: str, jobs: str = "qframe") -> Side:
        """Give our side on a backend, its worker with these options."""
        module = f"{jobs}_jobs"
        return Side(
            " ".join(("qframe", *options)),
            producing(f"benchmarks.apps.{jobs}_producer"),
            ("qframe", "work", "here", "--quiet", *options),
            files={
                "qframe.toml": f'default = "here"\njobs = ["benchmarks.apps.{module}"]\n'
                f"[connections.here]\n{self.connections[driver]}"
            },
            environment=self._servers(),
        )

    def _servers(self) -> dict[str, str]:
        servers = {"BENCH_REDIS": self.redis.url()}
        if self.beanstalkd is not None:
            servers["BENCH_BEANSTALKD"] = self.beanstalkd.address
        return servers

    def leased(self, driver: str, *options: str, jobs: str = "qframe") -> Side:
        """Give our side on a backend, with a short lease and tries."""
        side = self.ours(driver, "--tries", "5", *options, jobs=jobs)
        files = {
            name: f"{text}retry_after = {self.plan.lease:g}\n" for name, text in side.files.items()
        }
        return replace(side, files=files)

    @contextlib.contextmanager
    def place(self, side: Side) -> Iterator[Place]:
        """Give a place for a side, with nothing else on the servers."""
        self.redis.empty()
        if self.beanstalkd is not None:
            self.beanstalkd.empty()
        with Place(side) as place:
            yield place
