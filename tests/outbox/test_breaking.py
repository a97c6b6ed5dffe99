"""Everything between a commit and a queue is broken while orders come in: none lost, in order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer
from tests.support.sql_server import USER, SqlServer

ROOT = Path(__file__).parents[2]
PROGRAM = ["-m", "tests.outbox.program"]
COMMANDS = {
    "relay": [*PROGRAM, "relay", "forever"],
    "worker": ["-m", "qframe", "work", "--queue", "another"],
    "pool": ["-m", "qframe", "work", "--queue", "another", "--workers", "2"],
    "dispatcher": [*PROGRAM, "dispatch"],
}
TURNS = 30
_LONGEST_OUTAGE = 1.5

Receiver = RedisServer | BeanstalkdServer


@pytest.fixture(params=["own_postgres", "own_mariadb"])
def database(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["redis", "beanstalkd"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    """Give a server that keeps what it has answered when it is killed."""
    folder = tmp_path / "receiver"
    with (
        RedisServer(folder, fsync="no") if request.param == "redis" else BeanstalkdServer(folder)
    ) as server:
        yield server


class Site:
    """A shop with its outbox, and the processes that dispatch and relay."""

    def __init__(self, folder: Path, database: SqlServer, receiver: Receiver) -> None:
        self.folder = folder
        self.database = database
        self.receiver = receiver
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0
        folder.mkdir()
        url = database.prepared()
        there = (
            {"driver": "redis", "url": receiver.url}
            if isinstance(receiver, RedisServer)
            else receiver.settings
        )
        lines = ['default = "there"', "[outbox]", 'connection = "main"', "[connections.main]"]
        lines += ['driver = "database"', f'url = "{url}"', "[connections.there]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in there.items()]
        if isinstance(receiver, BeanstalkdServer):
            lines[1:1] = ['store.driver = "main"', 'failed.driver = "main"']
        (folder / "qframe.toml").write_text("\n".join(lines))
        database.sql("create table orders (name varchar(50))", database=USER)
        if database.name == "PostgreSQL":
            database.sql(f"alter table orders owner to {USER}", database=USER)

    def start(self, name: str) -> None:
        words = COMMANDS[name.rstrip("0123456789")]
        if name.startswith("dispatcher"):
            words = [*words, f"p{self.started}", str(10**6)]
        self.processes[name] = self._run(name, words)

    def _run(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        self.started += 1
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "QFRAME_CONFIG": str(self.folder / "qframe.toml"),
        }
        with (self.folder / f"{name}-{self.started}.err").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=environment, stdout=said, stderr=said
            )

    def hand_on_the_rest(self) -> int:
        """Run one more relay, until nothing is left; gives its exit code."""
        return self._run("relay", [*PROGRAM, "relay", "never"]).wait(120)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def revive(self) -> None:
        """Start again what has ended: a program that dispatches ends with its database."""
        for name, process in [*self.processes.items()]:
            if process.poll() is not None:
                assert name.startswith("dispatcher"), f"{name} has ended"
                self.start(name)

    def end(self) -> None:
        for name in [*self.processes]:
            self.kill(name)

    def orders(self) -> list[str]:
        found = self.database.sql("select name from orders", database=USER)
        return [str(name) for (name,) in found]

    def jobs(self) -> list[str]:
        """Take the jobs, in the order in which they wait."""
        if isinstance(self.receiver, RedisServer):
            raws = self.receiver.command("LRANGE", "queues:orders", 0, -1)
        else:
            raws = self.receiver.bodies("orders")
        return [json.loads(raw)["data"]["name"] for raw in raws]


@pytest.fixture
def site(tmp_path: Path, database: SqlServer, receiver: Receiver) -> Iterator[Site]:
    made = Site(tmp_path / "shop", database, receiver)
    yield made
    made.end()
    for file in sorted(made.folder.glob("*.err")):
        print(f"-- {file.name}", file.read_text()[-500:], sep="\n")


@pytest.mark.slow
@pytest.mark.long
def test_orders_come_in_while_everything_breaks(site: Site) -> None:
    chance = random.Random(17)
    names = ["relay", "worker", "pool", "dispatcher1", "dispatcher2"]
    for name in names:
        site.start(name)
    wait_for(lambda: len(site.orders()) > 5, "orders", 60)
    kinds = ["kill"] * 4 + ["database", "receiver", "stand still"]
    for kind in chance.choices(kinds, k=TURNS):
        time.sleep(chance.uniform(0.1, 0.6))
        if kind == "kill":
            name = chance.choice(names)
            site.kill(name)
            site.start(name)
        elif kind == "database":
            site.database.restart(kill=True)
        else:
            broken = site.receiver
            broken.kill() if kind == "receiver" else broken.pause()
            time.sleep(chance.uniform(0, _LONGEST_OUTAGE))
            broken.start() if kind == "receiver" else broken.resume()
        site.revive()
    wait_for(lambda: len(site.orders()) > 100, "orders that came in all the while", 120)
    site.end()
    assert site.hand_on_the_rest() == 0
    assert site.database.sql("select count(*) from qframe_outbox", database=USER) == [(0,)]
    orders, jobs = site.orders(), site.jobs()
    assert set(jobs) == set(orders)
    if isinstance(site.receiver, RedisServer):
        assert max(Counter(jobs).values()) == 1
    first = list(dict.fromkeys(jobs))
    for program in {name.partition("-")[0] for name in orders}:
        numbers = [int(name.partition("-")[2]) for name in first if name.startswith(f"{program}-")]
        assert numbers == sorted(numbers)
    shown = "".join(each.read_text() for each in site.folder.glob("[rwp]*.err"))
    assert "Traceback" not in shown
