"""Jobs in the line of their group: in lists, found by their id, and removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import Queueable, QueueManager, bulk, cancel, dispatch, job_status, manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import State
from qframe.contracts.step import Step
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import WAITING, Filter
from qframe.features import group_lines, in_line
from qframe.operations import jobs, one_job
from qframe.operations.board import Board
from tests.conftest import settings_of

ALL = Filter("", WAITING)
CLUSTER = pytest.param("redis cluster", marks=pytest.mark.slow)


class Sync(Queueable):
    shop: int
    number: int = 0
    group: ClassVar[str] = "shop:{shop}"
    queue: ClassVar[str | None] = "mail"

    def handle(self) -> None: ...


class Only(Sync):
    unique = True
    track = True


class Plain(Queueable):
    queue: ClassVar[str | None] = "mail"

    def handle(self) -> None: ...


@pytest.fixture(params=["memory", "database", "redis", "beanstalkd", CLUSTER])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"driver": "memory"} if request.param == "memory" else settings_of(request)


@pytest.fixture
def here(fresh: Path, settings: dict[str, Any]) -> Iterator[Connection]:
    """Give a connection with strict groups in `mail`."""
    made = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {"here": settings},
            "groups": {"mail": {"order": "strict"}},
        }
    )
    manager.use(made)
    yield made.connection()
    manager.use(None)


@pytest.fixture
def reads(here: Connection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a list of how many facts each read asked for."""
    read, counts = here.backend.read, list[int]()

    def counted(*keys: str) -> list[str | None]:
        counts.append(len(keys))
        return read(*keys)

    monkeypatch.setattr(here.backend, "read", counted)
    return counts


def needs_search(here: Connection) -> None:
    if Capability.SEARCH not in here.capabilities:
        pytest.skip("it shows only the first of its messages, and cancels none")


def board() -> Board:
    current = manager.current()
    assert current is not None
    return Board(current)


def pages(here: Connection, limit: int = 7, chosen: Filter = ALL) -> list[jobs.JobState]:
    """Give the ready jobs of `mail`, page by page."""
    seen, after = list[jobs.JobState](), ""
    while True:
        page = jobs.listed(here, "mail", Place.READY, chosen, after, limit)
        assert len(page.jobs) <= limit or not chosen.is_empty
        seen += page.jobs
        after = page.after
        if not after:
            return seen


def test_jobs_in_line_follow_the_ready_ones(here: Connection) -> None:
    needs_search(here)
    plain = [dispatch(Plain()).send() for _ in range(3)]
    of = {shop: bulk(Sync(shop=shop, number=number) for number in range(10)) for shop in (1, 2)}
    seen = pages(here)
    assert len(seen) == here.size("mail") == 23
    ready, lined = seen[:5], seen[5:]
    assert {each.uuid for each in ready} == {*plain, of[1][0], of[2][0]}
    assert {(each.place, each.group, each.position) for each in ready} == {("ready", "", None)}
    assert {each.place for each in lined} == {"in line"}
    for shop in (1, 2):
        found = [each for each in lined if each.group == f"shop:{shop}"]
        assert [each.uuid for each in found] == of[shop][1:]
        assert [each.position for each in found] == [*range(1, 10)]
        assert {each.job for each in found} == {f"{__name__}.Sync"}
    assert pages(here, 4) == pages(here, 100) == seen
    for place in (Place.DELAYED, Place.BURIED, Place.RUNNING):
        assert jobs.listed(here, "mail", place, ALL).jobs == []


def test_a_page_may_begin_anywhere(here: Connection) -> None:
    bulk(Sync(shop=1, number=number) for number in range(5))
    for after in ("line:", "line:x", "line:x:y", "line:::", "line:%s:9" % ("a" * 500)):
        jobs.listed(here, "mail", Place.READY, ALL, after)
    first = jobs.listed(here, "mail", Place.READY, ALL, limit=2)
    (job,) = here.reserve(["mail"])
    here.clear("mail")
    assert jobs.listed(here, "mail", Place.READY, ALL, first.after).jobs == []
    assert job.uuid == first.jobs[0].uuid


def test_a_filter_chooses_among_them(here: Connection) -> None:
    needs_search(here)
    bulk(Sync(shop=1, number=number) for number in range(10))
    dispatch(Plain()).send()
    assert [each.position for each in pages(here, 3, Filter("args.number:4", WAITING))] == [4]
    assert len(pages(here, 3, Filter('state:"in line"', WAITING))) == 9
    assert len(pages(here, 3, Filter("state:ready", WAITING))) == 2
    with pytest.raises(ConfigurationError, match="there is no state 'lined'"):
        Filter("state:lined", WAITING)


def test_a_page_of_a_long_line_reads_no_more_than_it_shows(
    here: Connection, reads: list[int]
) -> None:
    ids = bulk(Sync(shop=1, number=number) for number in range(3000))
    reads.clear()
    page = jobs.listed(here, "mail", Place.READY, ALL, limit=50)
    assert [each.uuid for each in page.jobs] == ids[:50]
    for _ in range(3):
        page = jobs.listed(here, "mail", Place.READY, ALL, page.after, limit=50)
    assert [each.uuid for each in page.jobs] == ids[150:200]
    assert sum(reads) < 220, reads


def test_a_filtered_page_looks_at_so_many_only(here: Connection, reads: list[int]) -> None:
    bulk(Sync(shop=1, number=number) for number in range(3000))
    reads.clear()
    none = Filter("args.number:-1", WAITING)
    page = jobs.listed(here, "mail", Place.READY, none, limit=50, most=1000)
    assert page.jobs == []
    assert page.after.startswith("line:")
    assert sum(reads) < 1300, reads


def test_of_many_groups_without_a_line_so_many_are_looked_at_only(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_line, "_GROUPS", 5)
    bulk(Sync(shop=shop) for shop in range(23))
    uuid = dispatch(Sync(shop=11)).send()
    first = in_line.page(here.context, "mail", 50)
    assert (first.looked_at, bool(first.after)) in {(5, True), (6, True)}
    page = jobs.listed(here, "mail", Place.READY, ALL, limit=30, most=40)
    assert page.after or page.note
    assert [each.uuid for each in pages(here, 30)][-1] == uuid
    assert [each.uuid for each in pages(here, 3)][-1] == uuid


def test_a_job_is_found_by_its_id(here: Connection, reads: list[int]) -> None:
    bulk(Sync(shop=2, number=number) for number in range(20))
    ids = bulk(Sync(shop=1, number=number) for number in range(1500))
    other = dispatch(Sync(shop=3)).send()
    time.sleep(0.01)
    last = bulk(Sync(shop=1, number=number) for number in range(100))[-1]
    for uuid, position in ((last, 1599), (ids[700], 700), (ids[1], 1)):
        reads.clear()
        found, is_sure = here.look_in_line(uuid)
        assert (found and found.uuid, found and found.group) == (uuid, "shop:1")
        assert (found and found.position, is_sure) == (position, True)
        assert sum(reads) < 300, "its uuid tells where it is"
    assert here.look_in_line(ids[0]) == (None, True)
    assert here.look_in_line(other) == (None, True)
    assert here.look_in_line(ids[1], "other") == (None, True)
    assert here.look_in_line("none", seconds=0) == (None, False)
    reads.clear()
    assert cancel(last) is Cancelling.REMOVED
    assert sum(reads) < 400
    searches = Capability.SEARCH in here.capabilities
    assert cancel(last) is (Cancelling.ABSENT if searches else Cancelling.NOTED)


def test_a_short_line_is_searched_whole_however_late_it_is(here: Connection) -> None:
    ids = bulk(Sync(shop=shop, number=number) for number in range(150) for shop in (1, 2))
    found, is_sure = here.look_in_line(ids[-1], seconds=0)
    assert (found and found.uuid, is_sure) == (ids[-1], True)
    assert here.look_in_line("none", seconds=0) == (None, True)


def test_the_page_of_one_job_says_where_it_stands(here: Connection) -> None:
    ids = bulk(Sync(shop=1, number=number) for number in range(3))
    found, is_sure = one_job.find(board(), ids[2])
    assert found is not None
    assert is_sure
    assert found.waiting is not None
    assert (found.waiting.place, found.waiting.group, found.waiting.position) == (
        *("in line", "shop:1", 2),
    )
    assert (found.job, found.queue, found.connection) == (f"{__name__}.Sync", "mail", "here")
    assert '"number": 2' in str(found.payload)
    assert one_job.find(board(), "00000000-0000-7000-8000-000000000000") == (None, True)


@pytest.mark.parametrize("text", ["", "class:*"])
def test_all_that_a_filter_chooses_are_removed(here: Connection, text: str) -> None:
    needs_search(here)
    dispatch(Plain()).send()
    bulk(Sync(shop=shop, number=number) for number in range(10) for shop in (1, 2))
    tracked = [dispatch(Only(shop=3, number=number)).send() for number in range(4)]
    chosen = [*jobs.chosen_of(here, "mail", Place.READY, Filter(text, WAITING))]
    assert len(chosen) == 25
    assert all(jobs.remove(here, each) for each in chosen)
    assert here.size("mail") == 0
    assert group_lines.lines(here.context, "mail") == []
    for uuid in tracked:
        known = job_status(uuid)
        assert known is not None
        assert known.state.value == "CANCELLED"
    dispatch(Only(shop=3, number=1)).send()
    assert here.size("mail") == 1, "its lock is free"


def test_one_in_the_middle_is_removed_and_the_others_keep_their_order(here: Connection) -> None:
    ids = bulk(Sync(shop=1, number=number) for number in range(5))
    chosen = [*jobs.chosen_of(here, "mail", Place.READY, Filter("args.number:3", WAITING))]
    assert [jobs.remove(here, each) for each in chosen] == [True]
    assert [jobs.remove(here, each) for each in chosen] == [False]
    assert [each.uuid for each in pages(here)] == [*ids[:3], ids[4]]
    assert cancel(ids[1]) is Cancelling.REMOVED
    assert [each.uuid for each in pages(here)] == [ids[0], ids[2], ids[4]]


def test_one_with_more_than_its_group_is_not_cancelled_by_halves(here: Connection) -> None:
    dispatch(Only(shop=1)).send()
    uuid = dispatch(Only(shop=1, number=1)).send()
    if Capability.SEARCH in here.capabilities:
        assert cancel(uuid) is Cancelling.REMOVED
        assert job_status(uuid).state is State.CANCELLED  # type: ignore[union-attr] # it is tracked
    else:
        assert cancel(uuid) is Cancelling.NOTED
        assert here.look_in_line(uuid)[0]


def test_one_that_got_its_place_meanwhile_is_removed_all_the_same(here: Connection) -> None:
    needs_search(here)
    ids = bulk(Sync(shop=1, number=number) for number in range(3))
    first, second, *_ = jobs.chosen_of(here, "mail", Place.READY, ALL)
    assert first.uuid == ids[1]
    assert here.cancel(ids[0]) is Cancelling.REMOVED
    assert here.find(ids[1]) is not None
    assert jobs.remove(here, first)
    assert here.find(ids[2]) is not None
    assert jobs.remove(here, second)
    assert here.size("mail") == 0


def test_a_removal_is_tried_again_if_its_group_has_changed(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk(Sync(shop=1, number=number) for number in range(3))
    (found, *_) = in_line.page(here.context, "mail", 1).jobs
    apply, changed = here.backend.apply, list[bool]()

    def meanwhile(*steps: Step) -> Any:
        if not changed:
            changed.append(True)
            dispatch(Sync(shop=1, number=3)).send()
        return apply(*steps)

    monkeypatch.setattr(here.backend, "apply", meanwhile)
    assert here.remove_in_line(found)
    assert changed
    assert here.size("mail") == 3
