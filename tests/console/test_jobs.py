from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from qframe.contracts import Sizes
from tests.console.conftest import Said, Shop
from tests.support.process import Project


def test_a_job_is_queued_by_its_name_and_its_id_printed(shop: Shop) -> None:
    said = shop.run("dispatch", "shop.Order", '{"number": 7, "note": "ü"}')
    (job,) = shop.queue.reserve(["default"])
    assert said.out == f"{job.uuid}\n"
    assert job.payload["data"] == {"number": 7, "note": "ü"}
    assert job.payload["maxTries"] == 3
    assert (said.code, said.err) == (0, "")


def test_a_function_too(shop: Shop) -> None:
    assert shop.run("dispatch", "shop.ship", '{"number": 7}').code == 0
    assert shop.queue.size() == 1


def test_where_and_when_can_be_said(shop: Shop) -> None:
    arguments = ("--queue", "high", "--delay", 60, "--connection", "database")
    assert shop.run("dispatch", "shop.Order", '{"number": 7}', *arguments).code == 0
    assert shop.queue.sizes("high") == Sizes(delayed=1)


def test_its_status_is_kept_where_that_is_asked_for(shop: Shop) -> None:
    ids = [
        shop.run("dispatch", "shop.Order", '{"number": 7}', *more).out.strip()
        for more in ([], ["--track"])
    ]
    assert shop.run("status", ids[0]).code != 0
    assert "waiting" in shop.run("status", ids[1]).out.lower()


def test_with_a_key_it_is_queued_once(shop: Shop) -> None:
    def dispatched(number: int, key: str, *more: object) -> Said:
        return shop.run("dispatch", "shop.Order", f'{{"number": {number}}}', "--once", key, *more)

    first, again = dispatched(1, "a"), dispatched(2, "a")
    assert (again.code, again.out) == (0, first.out)
    assert again.err == f"qframe: nothing was queued: {first.out.strip()} was dispatched before\n"
    other = dispatched(1, "b", "--once-for", 0.5)
    assert other.out != first.out
    assert (first.err, other.err) == ("", "")
    job, _ = shop.queue.reserve(["default"], 5)
    assert job.payload["once"]["for"] == 86400
    time.sleep(0.6)
    assert dispatched(1, "b").out != other.out


def test_a_key_counts_as_long_as_the_class_says(shop: Shop) -> None:
    lines = ("class Daily(Queueable):", "    once = 7200", "    def handle(self): ...")
    shop.write("daily.py", "\n".join(["from qframe import Queueable", *lines]))
    assert shop.run("dispatch", "daily.Daily", "--once", "a").code == 0
    assert shop.run("dispatch", "daily.Daily", "--once", "b", "--once-for", "5").code == 0
    jobs = shop.queue.reserve(["default"], 5)
    assert [job.payload["once"]["for"] for job in jobs] == [7200, 5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop.Order", "{"], "the data is not JSON"),
        (["shop.Order", "[1]"], 'must be a JSON object, like {"user_id": 7}'),
        (["shop.Order", "7"], "must be a JSON object"),
        (["shop.Order"], "Order: number: Field required"),
        (["shop.Order", '{"number": "x"}'], "Order: number: Input should be a valid integer"),
        (["shop.Order", '{"number": 1, "nmber": 2}'], "no field 'nmber' (did you mean 'number'?)"),
        (["shop.Order", '{"number": 1, "note": "\\ud800"}'], "note"),
        (["shop.Ordr", "{}"], "shop.Ordr is not a job of this project"),
        (["os.system", '{"command": "id"}'], "os.system is not a job"),
        (["Order"], "Order is not a job"),
        (["a\x1b[31m.B"], r"a\x1b[31m.B is not a job"),
        (["shop.Order", '{"number": 1}', "--queue", "a b"], "'a b' is not a queue name"),
        (["shop.Order", '{"number": 1}', "--delay", "-1"], "delay must not be negative"),
        (["shop.Order", '{"number": 1}', "--delay", "nan"], "'nan' is not a number"),
        (["shop.Order", '{"number": 1}', "--delay", "soon"], "Invalid value for '--delay'"),
        (["shop.Order", '{"number": 1}', "--connection", "x"], "unknown connection 'x'"),
        (["shop.Order", '{"number": 1}', "--once-for", "60"], "--once-for needs --once KEY"),
        (["shop.Order", '{"number": 1}', "--once", "a", "--once-for", "0"], "more than 0 seconds"),
        (["shop.Order", '{"number": 1}', "--once", "a", "--once-for", "-1"], "not be negative"),
        ([], "Missing argument 'job'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(shop: Shop, arguments: list[str], said: str) -> None:
    finished = shop.run("dispatch", *arguments)
    assert said in finished.only()
    assert finished.code == 2
    assert shop.queue.queues() == []


def test_from_dispatch_to_done(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        uuid = project.qframe("dispatch", "jobs.Note", json.dumps({"word": "cli"})).out.strip()
        assert "DONE" in project.drain("-v").out
        assert project.notes("note")[0][:2] == ["note", "cli"]
        assert len(uuid) == 36
