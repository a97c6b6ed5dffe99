"""Rows as arguments wherever a job comes from and runs: only their keys are there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qframe import Flow, JobId, QueueManager, batch, bulk, chain, dispatch, manager, wait_for
from qframe.contracts.browsing import Place
from qframe.failed.filters import Filter
from qframe.hooks import of_process
from qframe.models import ModelKey
from qframe.operations import jobs
from qframe.testing import drain
from qframe.web import app
from qframe.web.access import Passwords
from tests.support.process import Project
from tests.support.process import wait_for as until

JOBS = Path(__file__).with_name("shop_jobs.py")
TOKEN = "the-token-of-the-shop"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app", 'jobs = ["shop_jobs"]\n') as made:
        shutil.copy(JOBS, made.root / "shop_jobs.py")
        yield made


def greeted(root: Path) -> list[str]:
    """What the jobs have noted, one line each."""
    file = root / "greeted"
    return file.read_text().splitlines() if file.exists() else []


def add_buyers(project: Project) -> None:
    said = project.python(
        "from shop_jobs import Buyer, Session\n"
        "with Session() as session:\n"
        "    session.add_all([Buyer(id=1, name='ann'), Buyer(id=2, name='bo')])\n"
        "    session.commit()\n"
    )
    assert said.code == 0, said.err


# -- in this process ------------------------------------------------------------------------------


@pytest.fixture
def shop(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with two buyers, on the memory backend."""
    shutil.copy(JOBS, fresh / "shop_jobs.py")
    monkeypatch.setattr(of_process, "sessions", None)
    monkeypatch.syspath_prepend(fresh)
    import shop_jobs  # type: ignore[import-not-found]

    queues = QueueManager({"root": fresh, "default": "memory", "jobs": ["shop_jobs"]})
    manager.use(queues)
    with shop_jobs.Session() as session:
        session.add_all([shop_jobs.Buyer(id=1, name="ann"), shop_jobs.Buyer(id=2, name="bo")])
        session.commit()
        shop_jobs.ann, shop_jobs.bo = session.query(shop_jobs.Buyer).order_by("id").all()
    yield shop_jobs
    shop_jobs.engine.dispose()


def test_chains_batches_and_bulks(shop: Any) -> None:
    bulk([shop.Greet(buyer=shop.ann), shop.Greet(buyer=2, others=[shop.ann, 2])])
    chain([shop.Greet(buyer=shop.ann), shop.GreetOnLoop(buyer=2)]).dispatch()
    batch([shop.Greet(buyer=shop.bo)]).then(shop.Greet(buyer=shop.ann)).dispatch()
    assert drain().failed == 0
    assert sorted(greeted(shop.HERE)) == ["ann", "ann", "ann", "bo", "bo", "bo ann bo"]


def test_flows_hand_on_keys_and_load_the_rows_anew(shop: Any) -> None:
    flow = Flow("greetings")
    found = flow.add(shop.buyers.job())
    flow.map(shop.Greet, over=found.result)
    first = flow.add(shop.Greet(buyer=shop.bo))
    with shop.Session() as session:
        session.get(shop.Buyer, 2).name = "bob"
        session.commit()
    flow.add(shop.Greet(buyer=first.result, others=found.result, friend=first.result))
    made = flow.dispatch()
    assert drain().failed == 0
    assert sorted(greeted(shop.HERE)) == ["ann", "bob", "bob", "bob ann bob"]
    assert made.result(found) == [1, 2]
    assert made.result(first) == 2


def test_a_result_that_is_a_row_is_its_key(shop: Any) -> None:
    one: JobId[Any] = dispatch(shop.Greet(buyer=shop.ann)).track().send()
    many: JobId[Any] = dispatch(shop.buyers.job()).track().send()
    drain()
    key = wait_for(one, 5).result
    assert isinstance(key, ModelKey)
    assert (key, key.id, str(key)) == (shop.ann, 1, "shop_jobs.Buyer:1")
    assert wait_for(many, 5).result == [shop.ann, shop.bo]
    assert wait_for(str(one), 5).result == 1


def test_unique_ones_are_the_same_by_the_key(shop: Any) -> None:
    first = dispatch(shop.GreetOnce(buyer=shop.ann)).send()
    assert dispatch(shop.GreetOnce(buyer=1)).send() == first
    assert dispatch(shop.GreetOnce(buyer=shop.bo)).send() != first
    assert drain().done == 2
    assert greeted(shop.HERE) == ["ann", "bo"]


def test_groups_are_by_the_key(shop: Any) -> None:
    for buyer in (shop.ann, 1, shop.bo):
        dispatch(shop.GreetInLine(buyer=buyer)).send()
    queue = manager.default().connection()
    groups = {json.loads(each.raw_body)["group"] for each in queue.backend.search("default", b"")}
    assert groups == {"buyer:1", "buyer:2"}
    assert drain().done == 3


@pytest.mark.parametrize(
    ("name", "counts"),
    [("Greet", (0, 1, 0)), ("Skips", (0, 0, 1)), ("Retries", (1, 1, 0))],
)
def test_one_that_is_gone(shop: Any, name: str, counts: tuple[int, int, int]) -> None:
    dispatch(getattr(shop, name)(buyer=7)).send()
    first = drain()
    if first.retried:
        until(lambda: drain().failed, "the second attempt")
    assert (
        first.retried,
        len([*manager.default().connection().failed.all()]),
        first.skipped,
    ) == counts
    assert greeted(shop.HERE) == []


def test_one_that_comes_back_is_found_by_the_retry(shop: Any) -> None:
    dispatch(shop.Retries(buyer=7)).send()
    assert drain().retried == 1
    with shop.Session() as session:
        session.add(shop.Buyer(id=7, name="cy"))
        session.commit()
    until(lambda: drain().done, "the second attempt")
    assert greeted(shop.HERE) == ["cy"]


def test_lists_and_the_page_name_the_row(shop: Any) -> None:
    queues = manager.default()
    dispatch(shop.Greet(buyer=7, others=[shop.ann])).send()
    ready = jobs.listed(queues.connection(), "default", Place.READY, Filter(""))
    shown = 'buyer: "shop_jobs.Buyer:7", others: ["shop_jobs.Buyer:1"], friend: null'
    assert [each.arguments for each in ready.jobs] == [shown]
    drain()
    page = TestClient(app(queues, Passwords("a-password", TOKEN, "read", {})))
    as_owner = {"Authorization": f"Bearer {TOKEN}"}
    for place in ("failed", "failed/" + queues.connection().failed.all().__next__().uuid):
        said = page.get(f"/api/v1/{place}", headers=as_owner)
        assert "shop_jobs.Buyer:7" in said.text, (place, said.text)
        assert "buyer: 7" not in said.text


def test_over_http_the_key_is_given(shop: Any, fresh: Path) -> None:
    queues = QueueManager(
        {
            "root": fresh,
            "default": "memory",
            "jobs": ["shop_jobs"],
            "web": {"dispatch": {"jobs": ["shop.Greet"], "tokens": {"shop": TOKEN}}},
        }
    )
    manager.use(queues)
    client = TestClient(app(queues, Passwords("p", "the-owner's-token", "read", {"shop": TOKEN})))

    def post(**fields: Any) -> Any:
        body = {"job": "shop.Greet", "data": fields}
        return client.post("/api/v1/jobs", json=body, headers={"Authorization": f"Bearer {TOKEN}"})

    made = post(buyer=1, others=[2, 1])
    assert made.status_code == 201, made.text
    said = post(buyer="x")
    assert said.status_code == 422
    assert "should be a saved shop_jobs.Buyer, or its primary key" in said.text
    assert drain().done == 1
    assert greeted(shop.HERE) == ["ann bo ann"]


# -- real processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--isolate"], ["--concurrency", 3], []])
def test_workers_of_each_kind_load_them(project: Project, options: list[Any]) -> None:
    add_buyers(project)
    for job, buyer in (("Greet", 1), ("GreetOnLoop", 2), ("Greet", 7)):
        project.push(f"shop.{job}", {"buyer": buyer})
    done = project.work(*options, "--stop-when-empty", "--no-schedule")
    assert done.wait() == 0, done.err
    assert sorted(greeted(project.root)) == ["ann", "bo"]
    assert "ModelMissing: shop_jobs.Buyer:7 is gone" in project.failure().exception


def test_on_the_command_line_the_key_is_given(project: Project) -> None:
    add_buyers(project)
    assert project.qframe("dispatch", "shop.Greet", '{"buyer": 1, "others": [2]}').code == 0
    assert project.qframe("dispatch", "shop.Greet", '{"buyer": 7}').code == 0
    wrong = project.qframe("dispatch", "shop.Greet", '{"buyer": "x"}')
    assert wrong.code == 2
    assert wrong.one_line() == (
        "qframe: Greet: buyer: should be a saved shop_jobs.Buyer, or its primary key"
    )
    listed = project.qframe("jobs", "shop.Greet").out
    assert "others: list[shop_jobs.Buyer] = []" in listed
    assert "friend: shop_jobs.Buyer | None = None" in listed
    project.drain("--no-schedule")
    assert greeted(project.root) == ["ann bo"]
    (row,) = json.loads(project.qframe("failed", "--json").out)
    assert row["arguments"] == 'buyer: "shop_jobs.Buyer:7", others: [], friend: null'
    assert row["arguments"] in project.qframe("failed", "--last").out


def test_a_schedule_has_the_key(project: Project) -> None:
    add_buyers(project)
    project.write(
        "plans.py",
        "from qframe import schedule\nfrom shop_jobs import Greet\n"
        "schedule(Greet(buyer=1)).every_second().name('greet')\n",
    )
    project.configure('jobs = ["shop_jobs", "plans"]\n')
    worker = project.work()
    until(lambda: greeted(project.root), "a run")
    assert worker.stop() == 0
    assert {*greeted(project.root)} == {"ann"}
