"""Flows by real workers: nodes of every kind, retries, and workers that are killed."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.process import Project
from tests.support.shop import Shop
from tests.worker import flowing
from tests.worker.killed_in_turn import kill_oldest

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]

KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((), id="line"),
        pytest.param(("--concurrency", 3), id="slots", marks=pytest.mark.slow),
        pytest.param(("--isolate",), id="isolated", marks=pytest.mark.slow),
    ],
)


@pytest.fixture
def flows(project: Project) -> Project:
    """Give a project with these jobs."""
    shutil.copy(Path(flowing.__file__), project.root / "flowing.py")
    project.configure(f'encryption_keys = ["{"0" * 43}="]\nsigning_key = "{"k" * 40}"')
    return project


def python(project: Project, code: str) -> str:
    finished = project.program(f"from flowing import *\nfrom qframe import find_flow\n{code}")
    assert finished.code == 0, finished.err
    return finished.out.strip()


def state(project: Project, identity: str) -> str:
    return python(project, f"print(find_flow({identity!r}).state)")


def left(project: Project, identity: str) -> list[str]:
    """Give the keys of jobs that wait, and of outboxes."""
    keys = [key for key, _ in project.queue.backend.scan("")]
    return [key for key in keys if key.startswith((f"flow:{identity}:j:", "outbox:"))]


@pytest.mark.every_backend
@KINDS
def test_a_flow_with_a_node_of_each_kind(flows: Project, kind: tuple[object, ...]) -> None:
    identity = python(flows, "print(order().id)")
    assert flows.drain(*kind).code == 0
    assert flows.notes("invoice") == [["invoice", "9.90", "Decimal", "a", "b", "c"]]
    assert sorted(flows.notes("sealed")) == [["sealed", word] for word in "abc"]
    assert flows.notes("end") == [["end", "a!", "b!", "c!", "inv", "11", "w"]]
    assert state(flows, identity) == "done"
    assert not left(flows, identity)
    assert not flows.notes("undo")
    shown = str(flows.queue.backend.scan(f"flow:{identity}:s:"))
    assert "inv" in shown
    assert "a!" not in shown, "the results of encrypted jobs are encrypted"


def test_a_failed_node_blocks_what_follows_until_it_is_retried(flows: Project) -> None:
    code = """
flow = Flow("x")
first = flow.add(Fails(file="there"))
flow.add(Work(flow=1, number=2, before=[first.result]))
flow.catch(undo.job(1))
print(flow.dispatch().id)
"""
    identity = python(flows, code)
    flows.drain()
    assert flows.notes("undo") == [["undo", "1"]]
    assert state(flows, identity) == "failed"
    assert flows.notes("S") == []
    (flows.root / "there").write_text("")
    assert flows.qframe("retry", flows.failure().uuid).code == 0
    flows.drain()
    assert flows.notes("S") == [["S", "1", "2", "7"]]
    assert state(flows, identity) == "done"
    assert len(flows.notes("undo")) == 1


def test_a_flow_within_a_transaction(shop: Shop, tmp_path: Path) -> None:
    code = """
from sqlalchemy import create_engine
engine = create_engine({url!r})
for word in ("rolled back", "kept"):
    with engine.connect() as connection, connection.begin() as transaction:
        flow = Flow(word)
        first = flow.add(Price(order=7))
        flow.add(Invoice(price=first.result, stock=["x"]))
        print(flow.within(connection).id)
        if word == "rolled back":
            transaction.rollback()
"""
    with Project(tmp_path / "app", 'jobs = ["flowing"]', url=shop.url) as project:
        shutil.copy(Path(flowing.__file__), project.root)
        rolled_back, kept = python(project, code.replace("{url!r}", repr(shop.url))).split()
        project.drain()
        assert project.notes("invoice") == [["invoice", "9.90", "Decimal", "x"]]
        assert state(project, kept) == "done"
        assert python(project, f"print(find_flow({rolled_back!r}))") == "None"
        assert not project.queue.backend.scan(f"flow:{rolled_back}")


_MANY = int(os.environ.get("FLOWS", "5"))
"""So many flows of 33 jobs in the long run."""


@pytest.mark.timeout(1800)
@pytest.mark.embedded_only  # it names its backends itself
@pytest.mark.parametrize(
    ("project", "count"),
    [
        ("database", 3),
        *(
            pytest.param(each, _MANY, marks=[pytest.mark.slow])
            for each in ("database", "redis", "beanstalkd", "postgresql", "mariadb")
        ),
    ],
    indirect=["project"],
)
def test_random_graphs_while_workers_are_killed(flows: Project, count: int) -> None:
    """Order, each node at least once and its end once, no join early or missing."""
    flows.configure(retry_after=1.5)
    code = f"print(*[dispatch_random(number) for number in range({count})])"
    ids = python(flows, code).split()
    workers = [flows.work("--quiet") for _ in range(3)]
    deadline = time.monotonic() + 240
    while len(flows.notes("E")) < count or not flows.empty():
        assert time.monotonic() < deadline, flows.sizes()
        kill_oldest(flows, workers)
    assert flows.stop(workers) == [0, 0, 0]
    assert not flows.failed()
    lines = [line for line in flows.notes() if line[0] in {"S", "E"}]
    for number, identity in enumerate(ids):
        assert state(flows, identity) == "done"
        assert not left(flows, identity)
        own = [(line[0], int(line[2]), line[3:]) for line in lines if line[1] == str(number)]
        ended = [node for kind, node, _ in own if kind == "E"]
        assert Counter(ended).keys() == {*range(20), *range(1000, 1010), 99}
        first = {node: place for place, node in reversed([*enumerate(ended)])}
        for node, before in enumerate(flowing.graph(number)):
            (got, *_) = [words for kind, at, words in own if kind == "S" and at == node]
            assert [*map(int, got)] == before
            began = own.index(("S", node, got))
            for each in before:
                assert own.index(("E", each, [])) < began, f"{node} began before {each} had ended"
                assert first[each] < first[node]
        last = next(place for place, line in enumerate(own) if line[:2] == ("S", 99))
        assert all(own.index(("E", node, [])) < last for node in first if node != 99)
        assert [*map(int, own[last][2])] == [*range(1000, 1010)]
