"""An open page asks less where nothing happens, and at once more when something has."""

from __future__ import annotations

import html
import re
import time

import pytest

from qframe.contracts.step import Push, Step
from qframe.operations import board
from qframe.operations.reading import NotYetError
from qframe.web import job_pages, rendering
from qframe.web.app import EVERY, pause
from tests.web.conftest import Site


def test_a_page_that_stays_the_same_is_looked_at_half_as_often() -> None:
    pauses = [pause(same) for same in range(8)]
    assert pauses == [EVERY] * 5 + [2 * EVERY] * 3


def test_an_overview_says_what_it_does_not_know_yet(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise NotYetError

    monkeypatch.setattr(board.Board, "queues", never)
    monkeypatch.setattr(board.Board, "unsafe", never)
    text = small.client().get("/").text
    assert "Still loading: how many jobs wait, what is unsafe." in text
    assert not re.search(r"<dt>Ready</dt><dd>\d", text)


def test_lists_name_the_queues_that_are_not_counted_yet(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise NotYetError

    monkeypatch.setattr(board.Board, "queues", never)
    queues, jobs = (small.client().get(path).text for path in ("/queues", "/jobs"))
    assert "Still loading: how many jobs there are." in queues
    assert "Still loading: how many jobs each queue has." in jobs
    for text in (queues, jobs):
        assert "database:default</a>" in text


def test_all_slow_counts_of_a_page_share_its_time(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    def late(_self: board.Board, patience: float) -> None:
        time.sleep(max(0.0, patience))
        raise NotYetError

    def trend(_self: board.Board, *_: object, patience: float = 0.0, **_more: object) -> None:
        given.append(patience)
        if patience:
            raise NotYetError

    monkeypatch.setattr(board.Board, "queues", late)
    monkeypatch.setattr(board.Board, "trend", trend)
    monkeypatch.setattr(rendering, "_PATIENCE", 0.05)
    assert "Still loading" in small.client().get("/").text
    assert given[-1] <= rendering.LEAST_PATIENCE


def test_a_filter_that_has_no_time_left_says_at_how_many_it_looked(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK", "_LEAST"):
        monkeypatch.setattr(job_pages, name, 0.0)
    pushed = [
        b'{"uuid": "u-%d", "job": "app.A", "data": {"user": %d}}' % (n, n) for n in range(700)
    ]
    small.queue.backend.apply(Step(None, *(Push("mail", raw, 0.0) for raw in pushed)))
    path: str | None = "/jobs?queue=mail&filter=args.user:650"
    told = []
    while path is not None:
        text = small.client().get(path).text
        told.append((re.search(r"Examined (\d+)", text)[1], "u-650" in text))  # type: ignore[index]
        following = re.search(r'rel="next" href="([^"]+)"', text)
        path = html.unescape(following[1]) if following else None
    assert told == [("250", False), ("250", False), ("200", True)]
