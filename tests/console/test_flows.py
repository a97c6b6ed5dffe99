"""qframe flow and flows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.operations.flows import NodeRow, drawing
from tests.support.process import Project

_FLOW = """
from qframe import Flow, Queueable

class Price(Queueable):
    def handle(self) -> int:
        return 3

class Fails(Queueable):
    def handle(self) -> int:
        import os
        if not os.path.exists("there"):
            raise ValueError("no \\u2603")
        return 4

class Takes(Queueable):
    price: int
    def handle(self) -> None:
        print("takes", self.price)
"""
_DISPATCH = """
from shop import *
flow = Flow("order 7")
price = flow.add(Price())
fails = flow.add(Fails(), after=[price])
flow.add(Takes(price=fails.result), name="the last")
print(flow.dispatch().id)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app") as made:
        yield made


def dispatched(project: Project) -> str:
    project.write("shop.py", _FLOW)
    finished = project.python(_DISPATCH)
    assert finished.code == 0, finished.err
    return finished.out.strip()


def test_a_flow_is_shown_followed_and_retried(project: Project) -> None:
    identity = dispatched(project)
    shown = project.qframe("flow", identity[:8])
    assert shown.code == 0
    assert "order 7" in shown.out
    assert "the last  waiting  1" in shown.out
    project.drain()
    shown = project.qframe("flow", identity)
    assert "ValueError: no" in shown.out
    found = json.loads(project.qframe("flow", identity, "--json").out)
    assert found["flow"]["state"] == "failed"
    assert [node["state"] for node in found["nodes"]] == ["done", "failed", "waiting"]
    assert found["nodes"][1]["uuid"] == project.failure().uuid
    stuck = project.qframe("flow", identity, "--follow")
    assert stuck.code == 1, "nothing runs, so it does not wait for ever"
    (project.root / "there").write_text("")
    retried = project.qframe("flow", identity, "--retry")
    assert (retried.code, retried.out.splitlines()[0]) == (
        0, f"{identity}: queued 1 failed job again",
    )  # fmt: skip
    worker = project.work()
    followed = project.qframe("flow", identity, "--follow")
    assert followed.code == 0
    assert "done 3 of 3" in followed.out
    assert worker.stop() == 0
    assert "takes 4" in worker.out


def test_flows_are_listed_and_filtered(project: Project) -> None:
    assert project.qframe("flows").out.strip() == "no flows"
    first, second = dispatched(project), dispatched(project)
    listed = json.loads(project.qframe("flows", "--json").out)
    assert [row["id"] for row in listed] == [second, first]
    some = project.qframe("flows", "--limit", "1")
    assert "and more" in some.out
    assert project.qframe("flows", "--where", "state:failed").out.strip() == "no flows"
    wrong = project.qframe("flows", "--where", "state:wrong")
    assert wrong.code == 2


def test_a_flow_is_cancelled(project: Project) -> None:
    identity = dispatched(project)
    assert project.qframe("flow", identity, "--cancel").code == 0
    again = project.qframe("flow", identity, "--cancel")
    assert again.code == 1
    assert again.err.strip() == f"qframe: {identity} is cancelled already"
    project.drain()
    followed = project.qframe("flow", identity, "--follow")
    assert followed.code == 1
    assert followed.out.count("cancelled") > 3


def test_what_is_wrong_is_said_in_a_line(project: Project) -> None:
    for words, error in (
        (["flow", "nope"], "no flow 'nope'; qframe flows lists them"),
        (["flow", "x", "--cancel", "--retry"], "give --cancel or --retry, not both"),
        (["flow", "x", "--cancel", "--follow"], "give --cancel or --follow, not both"),
    ):
        finished = project.qframe(*words)
        assert finished.code == 2
        assert finished.err.strip() == f"qframe: {error}"


def test_the_page_draws_a_flow() -> None:
    """Each node is right of those it follows; a graph that was changed does no harm."""

    def row(number: int, *after: int) -> NodeRow:
        return NodeRow(
            number=number, name=f"n{number}", state="waiting", after=[*after], on_failure="block",
            uuid="", ended_at=None, error="", remark="", jobs=None, ended=0,
        )  # fmt: skip

    drawn = drawing([row(0), row(1, 0), row(2, 0), row(3, 1, 2), row(4, 0, 3)])
    assert drawn is not None
    places = {box.node.number: (box.x, box.y) for box in drawn.boxes}
    assert len({*places.values()}) == 5
    assert places[0][0] < places[1][0] == places[2][0] < places[3][0] < places[4][0]
    assert len(drawn.lines) == 6
    assert drawing([row(0, 1), row(1, 0), row(2, 9)]) is not None
    assert drawing([]) is None
    assert drawing([row(number) for number in range(151)]) is None
