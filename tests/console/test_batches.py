from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import Batch, batch
from qframe.console import batches, connections, follow
from qframe.contracts import BatchRecord
from qframe.contracts.step import Forget, Step
from qframe.exceptions import QframeError
from qframe.failed.retry import retry
from qframe.features.batch import BatchMember
from qframe.features.batches import BatchStore
from qframe.testing import drain
from tests.console.conftest import Shop
from tests.support.process import Project

EVIL = "a\x1b[31mred\x9b2J\u202e\r\n\x07b\x7f"

JOBS = """
from qframe import Queueable
from qframe.middleware import SkipIfBatchCancelled

ran, broken = [], set()

class Part(Queueable):
    number: int
    def handle(self) -> None:
        ran.append(self.number)
        if self.number in broken:
            raise ValueError("no")

class Careful(Part):
    middleware = [SkipIfBatchCancelled()]

class Follow(Queueable):
    event: str
    def handle(self) -> None:
        ran.append(self.event)
"""


def wait_for_the_next_millisecond() -> None:
    """Let a moment pass that the stores can tell from this one."""
    now = int(time.time() * 1000)
    while int(time.time() * 1000) == now:
        time.sleep(0.0005)


class Parts:
    """Batches of the shop, and what ran of them."""

    def __init__(self, shop: Shop) -> None:
        shop.write("parts.py", JOBS)
        shop.write("qframe.toml", 'jobs = ["parts"]\n')
        shop.run("check")  # which makes the configuration the process's own
        self.jobs: Any = importlib.import_module("parts")

    def dispatch(
        self, numbers: int = 3, *, name: str = "", careful: bool = False, allow: bool = False
    ) -> Batch:
        kind = self.jobs.Careful if careful else self.jobs.Part
        pending = batch([kind(number=number) for number in range(numbers)]).name(name)
        for event in ("then", "finally_"):
            getattr(pending, event)(self.jobs.Follow(event=event))
        dispatched = pending.allow_failures(allow).dispatch()
        wait_for_the_next_millisecond()  # as batches of one have no order
        return dispatched

    def work(self, *broken: int) -> list[Any]:
        """Work off what waits, where these numbers fail; gives what ran."""
        self.jobs.ran.clear()
        self.jobs.broken.clear()
        self.jobs.broken.update(broken)
        drain()
        return [*self.jobs.ran]


@pytest.fixture
def parts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.syspath_prepend(str(shop.root))
    return Parts(shop)


def facts(out: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in out.splitlines()}


# -- batch --------------------------------------------------------------------------------------


def test_a_batch_is_found_by_the_beginning_or_end_that_only_it_has(
    shop: Shop, parts: Parts
) -> None:
    found, other = parts.dispatch(1), parts.dispatch(1)
    assert facts(shop.run("batch", found.id[-8:].upper()).out)["id"] == found.id
    assert shop.run("cancel-batch", found.id[-12:]).out == f"cancelled {found.id}\n"
    assert shop.run("cancel-batch", other.id[:-2]).out == f"cancelled {other.id}\n"
    assert shop.run("batch", "nope").code == 2


def test_a_batch_is_shown_with_its_counts(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(3, name="Import")
    said = shop.run("batch", found.id)
    assert (said.code, said.err) == (0, "")
    shown = facts(said.out)
    assert (shown["id"], shown["name"], shown["connection"]) == (found.id, "Import", "database")
    assert (shown["state"], shown["progress"], shown["created"][-4:]) == ("running", "0%", " UTC")
    assert "finished" not in shown
    assert "cancelled" not in shown
    parts.work(1)
    shown = facts(shop.run("batch", found.id).out)
    assert [shown[key] for key in ("done", "failed", "pending", "total")] == ["2", "1", "0", "3"]
    assert shown["progress"] == "100%"
    assert shown["state"] == "cancelled"
    assert shown["finished"].endswith(" UTC")
    assert shop.run("failed", found.failed_jobs[0]).code == 0
    assert f"failed job  {found.failed_jobs[0]}\n" in shop.run("batch", found.id).out


def test_json_is_one_object(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(2, name="Import", allow=True)
    parts.work(1)
    row = shop.run("batch", found.id, "--json").rows
    assert row.pop("created_at") <= row.pop("finished_at")
    assert row == {
        "id": found.id,
        "name": "Import",
        "connection": "database",
        "state": "finished",
        "progress": 1.0,
        "done": 1,
        "failed": 1,
        "pending": 0,
        "total": 2,
        "cancelled_at": None,
        "failed_jobs": [*found.failed_jobs],
    }


def test_many_failed_jobs_are_counted_and_some_are_named(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(12, allow=True)
    parts.work(*range(12))
    lines = shop.run("batch", found.id).lines
    named = [line.split()[-1] for line in lines if line.startswith("failed job")]
    assert named == [*found.failed_jobs][:10]
    assert lines[-1] == "and 2 more: --json names up to 1,000"
    assert shop.run("batch", found.id, "--json").rows["failed_jobs"] == [*found.failed_jobs]


@pytest.mark.parametrize("command", ["batch", "cancel-batch", "retry-batch"])
def test_an_unknown_id_is_one_line_and_exit_2(shop: Shop, command: str) -> None:
    said = shop.run(command, "b-9\x1b[31m")
    assert said.code == 2
    assert r"no batch 'b-9\x1b[31m'; qframe batches lists them" in said.only()


def test_what_was_named_by_a_program_is_made_harmless(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(1, name=EVIL)
    for arguments in (["batch", found.id], ["batches"], ["batch", found.id, "--json"]):
        out = shop.run(*arguments).out
        assert not {c for c in out if not c.isprintable() and c != "\n"}
        assert "red" in out


# -- following one ------------------------------------------------------------------------------


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have something done between two looks at a batch that is followed."""

    def install(*steps: Callable[[], object]) -> None:
        rest = iter(steps)
        clock = SimpleNamespace(sleep=lambda _seconds: next(rest)(), time=time.time)
        monkeypatch.setattr(follow, "time", clock)

    return install


def settle(shop: Shop, found: Batch, number: int, *, failed: bool = False) -> None:
    """Count a member of a batch."""
    arrives = BatchMember(found.id, number).arrives("j", failed=failed)
    shop.queue.backend.apply(Step(None, arrives))


def test_it_is_followed_line_by_line_until_it_has_finished(
    shop: Shop, parts: Parts, between: Callable[..., None]
) -> None:
    found = parts.dispatch(3, allow=True)
    between(
        lambda: settle(shop, found, 0),
        lambda: None,
        lambda: settle(shop, found, 0),
        lambda: settle(shop, found, 1, failed=True),
        lambda: settle(shop, found, 2),
    )
    said = shop.run("batch", found.id, "--follow")
    assert said.lines[:4] == [
        "running 0% of 3",
        "running 33% of 3",
        "running 66% of 3  1 failed",
        "finished 100% of 3  1 failed",
    ]
    assert facts("\n".join(said.lines[4:]))["done"] == "2"
    assert (said.code, said.err) == (1, "")


@pytest.mark.parametrize("option", ["--follow", "--watch"])
def test_the_exit_code_says_how_it_went(shop: Shop, parts: Parts, option: str) -> None:
    found = parts.dispatch(1)
    parts.work()
    said = shop.run("batch", found.id, option, "--json")
    assert (said.code, said.rows["state"]) == (0, "finished")
    cancelled = parts.dispatch(1)
    cancelled.cancel()
    parts.work()
    assert shop.run("batch", cancelled.id, option).code == 1
    assert shop.run("batch", cancelled.id).code == 0, "unless it is followed"


def test_on_a_terminal_there_is_a_bar(
    shop: Shop, parts: Parts, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts.dispatch(2, name="[red]Import[/red]")
    between(lambda: settle(shop, found, 0), lambda: settle(shop, found, 1))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    said = shop.run("batch", found.id, "--follow")
    assert said.code == 0
    assert "2/2" in said.out
    assert "100 %" in said.out
    assert "[red]Import[/red]" in said.out
    assert said.out.count("\x1b[?25l") == said.out.count("\x1b[?25h") == 1, "the cursor is back"


@pytest.mark.parametrize("terminal", [False, True])
def test_an_interrupt_ends_the_following(
    shop: Shop,
    parts: Parts,
    between: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    found = parts.dispatch(2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    between(interrupt)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    said = shop.run("batch", found.id, "--follow")
    assert said.code == 130
    assert said.err == ""
    assert f"id          {found.id}" in said.out
    assert said.out.count("\x1b[?25l") == said.out.count("\x1b[?25h") == int(terminal)


def test_one_that_is_removed_meanwhile_is_one_line(
    shop: Shop, parts: Parts, between: Callable[..., None]
) -> None:
    found = parts.dispatch(2)
    between(lambda: BatchStore(shop.queue.context).prune(0, unfinished=2**33))
    said = shop.run("batch", found.id, "--follow", "--json")
    assert (said.code, said.out) == (1, "")
    assert "is not kept any more" in said.only()


def test_it_is_followed_while_a_worker_works(tmp_path: Path) -> None:
    program = (
        "from qframe import batch\nfrom jobs import Note\n"
        "print(batch([Note(word=str(n)) for n in range(3)]).dispatch().id)"
    )
    with Project(tmp_path / "app") as project:
        identity = project.python(program).out.strip()
        following = project.start("batch", identity, "--follow")
        worker = project.work()
        told = following.finished()
        assert (told.code, told.err) == (0, "")
        assert "finished 100% of 3" in told.out.splitlines()
        assert worker.stop() == 0


# -- batches ------------------------------------------------------------------------------------


def test_without_batches_there_is_one_line_or_an_empty_array(shop: Shop) -> None:
    assert shop.run("batches").out == "no batches\n"
    assert shop.run("batches", "--json").out == "[]\n"


def test_the_table_has_a_row_each_latest_first(shop: Shop, parts: Parts) -> None:
    first, second = parts.dispatch(3, name="one"), parts.dispatch(4, name="two")
    second.cancel()
    said = shop.run("batches")
    header, *rows = said.lines
    assert header.split() == [*batches._COLUMNS]
    assert [row.split()[:4] for row in rows] == [
        [second.id, "two", "cancelled", "0%"],
        [first.id, "one", "running", "0%"],
    ]
    assert (said.code, said.err) == (0, "")


def test_it_can_be_narrowed(shop: Shop, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qframe.features.batches._PAGE", 2)
    ids = [parts.dispatch(1).id for _ in range(5)][::-1]
    assert [row["id"] for row in shop.run("batches", "--json").rows] == ids
    assert [row["id"] for row in shop.run("batches", "--json", "--limit", 3).rows] == ids[:3]
    assert len(shop.run("batches", "--json", "--limit", 0).rows) == 5
    assert shop.run("batches", "--limit", 4).lines[-1] == "and more: --limit 0 shows all"
    assert "more" not in shop.run("batches", "--limit", 5).out
    assert len(shop.run("batches", "--json", "--connection", "database").rows) == 5
    assert "must not be negative" in shop.run("batches", "--limit", -1).only()


def test_a_store_that_connections_share_is_listed_once(shop: Shop, parts: Parts) -> None:
    shop.write(
        "qframe.toml",
        'jobs = ["parts"]\ndefault = "one"\n'
        '[connections.one]\ndriver = "database"\n[connections.two]\ndriver = "database"\n',
    )
    shop.run("check")
    first = parts.dispatch(1)
    second = batch([parts.jobs.Part(number=1)]).on_connection("two").dispatch()
    rows = shop.run("batches", "--json").rows
    assert [(row["id"], row["connection"]) for row in rows] == [
        (second.id, "two"),
        (first.id, "one"),
    ]
    (row,) = shop.run("batches", "--json", "--connection", "two").rows
    assert row["id"] == second.id
    second.cancel()
    assert shop.run("prune-batches", "--cancelled", 0).out == "removed 1 batches\n"


# -- cancel-batch -------------------------------------------------------------------------------


def test_a_batch_is_cancelled_once(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(2, careful=True)
    assert shop.run("cancel-batch", found.id).out == f"cancelled {found.id}\n"
    assert found.fresh().is_cancelled
    said = shop.run("cancel-batch", found.id)
    assert (said.code, said.only()) == (1, f"qframe: {found.id} is cancelled already")
    assert parts.work() == ["finally_"]


def test_one_that_has_finished_is_not_cancelled(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(1)
    parts.work()
    said = shop.run("cancel-batch", found.id)
    assert (said.code, said.only()) == (1, f"qframe: {found.id} is finished already")


# -- retry-batch --------------------------------------------------------------------------------


@pytest.mark.parametrize("careful", [False, True])
def test_failed_members_are_queued_again_and_then_follows(
    shop: Shop, parts: Parts, careful: bool
) -> None:
    found = parts.dispatch(3, careful=careful)
    assert parts.work(2) == [0, 1, 2, "finally_"]
    assert found.fresh().is_cancelled
    said = shop.run("retry-batch", found.id)
    assert said.out == (
        f"{found.id}: queued 1 failed job again; the batch is no longer cancelled\n"
    )
    assert (said.code, shop.kept()) == (0, [])
    assert parts.work() == [2, "then"]
    now = found.fresh()
    assert (now.done, now.failed, now.is_cancelled, now.is_finished) == (3, 0, False, True)
    assert shop.run("retry-batch", found.id).out == f"{found.id}: no member has failed\n"
    assert parts.work() == []


def test_one_that_fails_again_can_be_retried_again(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(2, allow=True)
    assert parts.work(0, 1) == [0, 1, "finally_"]
    said = shop.run("retry-batch", found.id)
    assert said.out == f"{found.id}: queued 2 failed jobs again\n"
    assert sorted(parts.work(1)) == [0, 1]
    assert (found.fresh().done, found.fresh().failed) == (1, 1)
    shop.run("retry-batch", found.id)
    assert parts.work() == [1, "then"]


def test_several_can_be_retried_and_those_of_others_stay(shop: Shop, parts: Parts) -> None:
    found = [parts.dispatch(1) for _ in range(3)]
    parts.work(0)
    shop.keep("u-1")
    said = shop.run("retry-batch", found[0].id, found[2].id)
    assert [line.split(":")[0] for line in said.lines] == [found[0].id, found[2].id]
    assert sorted(shop.kept()) == sorted(["u-1", *found[1].failed_jobs])


def test_one_by_one_leaves_it_cancelled_until_the_batch_is_retried(
    shop: Shop, parts: Parts
) -> None:
    found = parts.dispatch(2)
    parts.work(1)
    assert shop.run("retry", "all").code == 0
    assert parts.work() == [1]
    assert (found.fresh().done, found.fresh().is_cancelled) == (2, True)
    said = shop.run("retry-batch", found.id)
    assert said.out.endswith("queued 0 failed jobs again; the batch is no longer cancelled\n")
    assert parts.work() == ["then"]
    shop.run("retry-batch", found.id)
    assert parts.work() == []


def test_one_cancelled_by_hand_with_nothing_failed_stays_cancelled(
    shop: Shop, parts: Parts
) -> None:
    found = parts.dispatch(2, careful=True)
    found.cancel()
    parts.work()
    assert shop.run("retry-batch", found.id).out == f"{found.id}: no member has failed\n"
    assert found.fresh().is_cancelled
    assert parts.work() == []


def test_failed_jobs_that_are_gone_are_told(shop: Shop, parts: Parts) -> None:
    found = parts.dispatch(3, allow=True)
    parts.work(0, 2)
    store = shop.manager.failed_store()
    store.place.apply(Step(None, Forget(found.failed_jobs[0])))
    said = shop.run("retry-batch", found.id)
    assert said.out == (
        f"{found.id}: queued 1 failed job again; 1 is not among the failed jobs (any more)\n"
    )
    assert parts.work() == [2]
    assert (found.fresh().done, found.fresh().failed) == (2, 1)


def test_one_that_cannot_be_queued_is_kept(
    shop: Shop, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts.dispatch(2, allow=True)
    parts.work(0, 1)
    bad, good = found.failed_jobs

    def refusing(queues: Any, store: Any, record: Any, *_: Any) -> bool:
        if record.uuid == bad:
            raise QframeError("it is not wanted")
        return retry(queues, store, record)

    monkeypatch.setattr(connections, "retry", refusing)
    said = shop.run("retry-batch", found.id)
    assert said.code == 1
    assert said.out == f"{found.id}: queued 1 failed job again\n"
    assert said.err == f"qframe: {bad} is kept: it is not wanted\n"
    assert shop.kept() == [bad]
    assert good not in shop.kept()


# -- prune-batches ------------------------------------------------------------------------------


def test_finished_ones_are_removed_after_a_day(shop: Shop, parts: Parts) -> None:
    done = parts.dispatch(1)
    parts.work()
    waiting, cancelled = parts.dispatch(1), parts.dispatch(1)
    cancelled.cancel()
    assert shop.run("prune-batches").out == "removed 0 batches\n"
    assert shop.run("prune-batches", "--hours", 0).out == "removed 1 batches\n"
    rows = shop.run("batches", "--json").rows
    assert {row["id"] for row in rows} == {waiting.id, cancelled.id}
    assert done.id not in {row["id"] for row in rows}


@pytest.mark.parametrize(("option", "removed"), [("--cancelled", 1), ("--unfinished", 2)])
def test_others_are_removed_where_that_is_said(
    shop: Shop, parts: Parts, option: str, removed: int
) -> None:
    parts.dispatch(1)
    parts.dispatch(1).cancel()
    assert shop.run("prune-batches", option, 1).out == "removed 0 batches\n"
    assert shop.run("prune-batches", option, 0).out == f"removed {removed} batches\n"


@pytest.mark.parametrize("option", ["--hours", "--unfinished", "--cancelled"])
@pytest.mark.parametrize("hours", ["-1", "nan", "inf"])
def test_hours_that_are_none_are_refused(shop: Shop, option: str, hours: str) -> None:
    said = shop.run("prune-batches", option, hours)
    assert said.code == 2
    assert option in said.only()


def test_an_empty_batch_is_all_done() -> None:
    empty = BatchRecord(
        id="b", name="", connection="here", total=0, done=0, failed=0, closed=True,
        notified=frozenset(), notified_progress=0, options={}, created_at=0.0,
    )  # fmt: skip
    assert batches._row(empty)["progress"] == 1.0
    assert batches._row(dataclasses.replace(empty, total=3, done=1))["progress"] == 0.3333
