"""Long lists are moved in parts: in order, each job once, and only a part is in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qframe import Queueable, QueueManager
from qframe.importing import SOURCES, Mover, Names, found
from qframe.jobs.registry import Registry
from tests.support.process import Project, wait_for
from tests.support.redis_server import RedisServer

HERE = Path(__file__).parent
LATER = 4102444800  # 2100
JOBS = """
from qframe import Queueable

class Add(Queueable):
    n: int
    job_name = "shop.add"
    def handle(self) -> None:
        with open("ran", "a") as file:
            file.write(f"{self.n}\\n")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest.fixture
def source(server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    yield client
    client.close()


class LongAdd(Queueable):
    n: int

    job_name = "long.add"

    def handle(self) -> None: ...


@pytest.fixture
def queues(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> QueueManager:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the class above
    connections = {"here": {"driver": "memory"}}
    return QueueManager({"default": "here", "root": fresh, "connections": connections})


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read three jobs at a time."""
    monkeypatch.setattr(found, "AT_ONCE", 3)
    monkeypatch.setattr("qframe.importing.resque.AT_ONCE", 3)


def message(n: int, name: str = "shop.add", padding: str = "") -> str:
    """A message of Celery's."""
    return json.dumps(
        {
            "body": json.dumps([[n], {}, {"padding": padding}]),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": name, "id": f"id-{n}"},
            "properties": {"delivery_tag": f"tag-{n}"},
        }
    )


def numbers(queues: QueueManager, queue: str) -> list[int]:
    jobs = queues.connection().reserve([queue], 1000)
    return [job.payload["data"]["n"] for job in jobs]


def move(queues: QueueManager, program: str, url: str, **how: bool) -> dict[str, int]:
    names = Names(queues.registry, {}, {})
    counts: Counter[str] = Counter()
    for row, count in Mover(queues, names, SOURCES[program](url), None).move(**how).items():
        counts[row.outcome] += count
    return dict(counts)


@pytest.mark.usefixtures("parts")
def test_celerys_in_order_past_what_stays(
    server: RedisServer, source: redis.Redis, queues: QueueManager
) -> None:
    for n in range(20):  # kombu pushes at the head
        source.lpush("celery", message(n, "long.gone" if n % 4 == 1 else "long.add"))
        source.hset(
            "unacked",
            f"tag-{n + 50}",
            json.dumps([json.loads(message(n + 50, "long.add")), "", "x"]),
        )
    assert move(queues, "celery", server.url, dry_run=True) == {"moved": 15, "kept": 25}
    assert move(queues, "celery", server.url, keep=True) == {"moved": 15, "kept": 25}
    assert move(queues, "celery", server.url) == {"moved before": 15, "kept": 25}
    assert numbers(queues, "celery") == [n for n in range(20) if n % 4 != 1]
    left = [json.loads(each)["headers"]["id"] for each in source.lrange("celery", 0, -1)[::-1]]
    assert left == [f"id-{n}" for n in range(20) if n % 4 == 1]
    assert source.hlen("unacked") == 20


@pytest.mark.usefixtures("parts")
def test_resques_in_order_past_what_stays(
    server: RedisServer, source: redis.Redis, queues: QueueManager
) -> None:
    def body(n: int) -> str:
        name = "long.gone" if n % 4 == 1 else "long.add"
        return json.dumps({"class": name, "args": [n], "queue": "q"})

    source.sadd("resque:queues", "q")
    source.rpush("resque:queue:q", *map(body, range(20)))
    for n in range(100, 110):
        source.zadd("resque:delayed_queue_schedule", {str(LATER + n): LATER + n})
        source.rpush(f"resque:delayed:{LATER + n}", body(n), body(n + 200))
    wanted = {"moved": 15 + 14, "kept": 5 + 6}
    assert move(queues, "resque", server.url, dry_run=True) == wanted
    assert move(queues, "resque", server.url) == wanted
    assert numbers(queues, "q") == [n for n in range(20) if n % 4 != 1]
    assert queues.connection().sizes("q").delayed == 14
    assert move(queues, "resque", server.url) == {"kept": 11}


@pytest.mark.usefixtures("parts")
def test_rqs_in_order_past_what_stays(
    server: RedisServer, source: redis.Redis, queues: QueueManager
) -> None:
    source.sadd("rq:queues", "rq:queue:q")
    for n in range(30):
        name = "long.gone" if n % 4 == 1 else "long.add"
        source.hset(f"rq:job:{n}", "data", json.dumps([name, None, [n], {}]))
        if n < 20:
            source.rpush("rq:queue:q", n)
        else:
            source.zadd("rq:scheduled:q", {str(n): LATER + n})
    assert move(queues, "rq", server.url) == {"moved": 22, "kept": 8}
    assert numbers(queues, "q") == [n for n in range(20) if n % 4 != 1]
    assert queues.connection().sizes("q").delayed == 7
    assert move(queues, "rq", server.url) == {"kept": 8}


def test_only_a_part_is_in_memory(server: RedisServer, source: redis.Redis) -> None:
    text = "x" * 2_000
    for begin in range(0, 20_000, 1_000):
        source.lpush("celery", *(message(n, padding=text) for n in range(begin, begin + 1_000)))
    tracemalloc.start()
    try:
        seen = sum(1 for _ in SOURCES["celery"](server.url).jobs(change=False))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 20_000  # 40 MB
    assert most < 8_000_000


def test_a_move_that_is_killed_again_and_again_moves_each_once(
    server: RedisServer, source: redis.Redis, tmp_path: Path
) -> None:
    many = 1_500
    source.lpush("celery", *(message(n) for n in range(many)))
    with Project(tmp_path / "app", 'jobs = ["shop"]\n', driver="database") as project:
        project.write("shop.py", JOBS)
        for part in (100, 600):
            moving = project.start("import", "celery", server.url)
            wait_for(lambda part=part: source.llen("celery") < many - part, "some moves")  # type: ignore[misc]
            moving.end()  # SIGKILL
        assert source.llen("celery") > 0
        moved = project.qframe("import", "celery", server.url)
        assert moved.code == 0, moved.err
        assert source.llen("celery") == 0
        assert project.qframe("work", "--queue", "celery", "--stop-when-empty", "-q").code == 0
        ran = (project.root / "ran").read_text().split()
    assert sorted(map(int, ran)) == [*range(many)]


def test_celerys_own_messages_run_as_tasks_of_the_facade(
    server: RedisServer, source: redis.Redis, tmp_path: Path
) -> None:
    """With the options of the task here; one with a chain or chord stays."""
    written: dict[str, Any] = json.loads((HERE / "celery.json").read_text())["keys"]
    for key, (kind, value) in written.items():
        if kind == "list":
            source.rpush(key, *value)
        elif kind == "set":
            source.sadd(key, *value)
    for after in ("chain", "chord"):
        body = json.dumps([[1, 2], {}, {after: [{"task": "shop.add", "args": [1]}]}])
        whole = {**json.loads(message(0)), "body": body}
        whole["headers"] = {"task": "shop.add", "id": f"with-{after}"}
        source.lpush("celery", json.dumps(whole))
    with Project(tmp_path / "app", 'jobs = ["shop"]\n', driver="database") as project:
        project.write(
            "shop.py",
            "from qframe.celery import Celery\n"
            "app = Celery('shop')\n"
            "@app.task(bind=True, max_retries=6, soft_time_limit=44)\n"
            "def add(self, x, y):\n"
            "    assert not self.request.called_directly\n"
            "    return [self.request.id, x + y]\n",
        )
        moved = project.qframe("import", "celery", server.url, "--json")
        assert "it has a chain, which only Celery's workers continue" in moved.out
        assert "it has a chord, which only Celery's workers continue" in moved.out
        first = json.loads(next(iter(project.queue.backend.search("celery", b"add-0"))).raw_body)
        assert (first["uuid"], first["maxTries"], first["timeout"]) == ("add-0", 7, 44)
        assert project.qframe("work", "--queue", "celery,math", "--stop-when-empty").code == 0
        said = project.python(
            "from shop import add\n"
            "result = add.AsyncResult('add-0')\n"
            "print(result.state, result.get(timeout=5)[0])\n"
        )
        assert said.out.strip() == "SUCCESS add-0", said.err
        assert source.llen("celery") >= 2
