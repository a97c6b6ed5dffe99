"""What deletes many jobs asks on a terminal, and says beforehand what it would do."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from tests.console.conftest import Said, Shop

Answering = Callable[..., Said]


class Typed(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def answering(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Run a command at a terminal with one answer."""

    def run(answer: str, *words: object) -> Said:
        monkeypatch.setattr(sys, "stdin", Typed(f"{answer}\n"))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        return shop.run(*words)

    return run


def waiting(shop: Shop) -> int:
    return shop.queue.size("mail")


def push(shop: Shop, count: int = 3) -> None:
    for number in range(count):
        payload = {"uuid": f"u-{number}", "job": "shop.Order", "data": {"number": number}}
        shop.queue.push_raw(json.dumps(payload), "mail")


BACK = "undo brings back {} within 60 min"
CLEAR = ("clear", "database", "--queue", "mail")
CANCEL = ("cancel", "--where", "queue:mail")


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (CLEAR, f"Delete 3 jobs from database:mail ({BACK.format(3)})? [y/N]"),
        (CANCEL, f"Cancel 3 jobs that wait ({BACK.format(3)})? [y/N]"),
        ((*CANCEL, "--running"), f"that wait ({BACK.format(3)}) and 0 that run? [y/N]"),
    ],
)
def test_jobs_that_wait(
    shop: Shop, answering: Answering, words: tuple[str, ...], question: str
) -> None:
    push(shop)
    said = answering("n", *words)
    assert (said.code, said.out.strip()) == (1, "nothing was changed")
    assert question in said.err
    assert waiting(shop) == 3
    said = answering("y", *words)
    assert (said.code, waiting(shop)) == (0, 0)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("flush",), f"Remove 2 failed jobs ({BACK.format(2)})? [y/N]"),
        (("flush", "--hours", "1"), f"Remove 1 failed job ({BACK.format(1)})? [y/N]"),
        (("forget", "--where", "class:shop.*"), f"Forget 2 failed jobs ({BACK.format(2)})? [y/N]"),
    ],
)
def test_failed_jobs(
    shop: Shop, answering: Answering, words: tuple[str, ...], question: str
) -> None:
    shop.keep("old", failed_at=1000.0)
    shop.keep("new")
    said = answering("", *words)
    assert (said.code, said.out.strip()) == (1, "nothing was changed")
    assert question in said.err
    assert len(shop.kept()) == 2
    said = answering("y", *words)
    assert (said.code, len(shop.kept())) == (0, 1 if "--hours" in words else 0)


def test_yes_is_not_asked(shop: Shop, answering: Answering) -> None:
    push(shop)
    said = answering("n", *CLEAR, "--yes")
    assert (said.code, waiting(shop)) == (0, 0)
    assert "?" not in said.err


def test_a_pipe_is_not_asked(shop: Shop) -> None:
    push(shop)
    said = shop.run(*CLEAR)
    assert (said.code, waiting(shop)) == (0, 0)
    assert "?" not in said.err


def test_pruning_is_for_cron_and_never_asks(shop: Shop, answering: Answering) -> None:
    shop.keep("old", failed_at=1000.0)
    said = answering("n", "prune")
    assert (said.code, said.err, shop.kept()) == (0, "", [])


@pytest.mark.parametrize(
    ("words", "would"),
    [
        (CLEAR, f"would delete 3 jobs from database:mail ({BACK.format(3)})"),
        (CANCEL, f"would cancel 3 jobs that wait ({BACK.format(3)})"),
        (("flush",), f"would remove 1 failed job ({BACK.format(1)})"),
        (("forget", "--where", "class:shop.*"), f"would forget 1 failed job ({BACK.format(1)})"),
        (("forget", "u-9"), "would forget u-9"),
    ],
)
def test_a_dry_run_changes_nothing(shop: Shop, words: tuple[str, ...], would: str) -> None:
    push(shop)
    shop.keep("u-9")
    said = shop.run(*words, "--dry-run")
    assert (said.code, said.out) == (0, f"{would}\n")
    assert waiting(shop) == 3
    assert shop.kept() == ["u-9"]


def test_a_dry_run_of_one_cancel_is_refused(shop: Shop) -> None:
    assert "--dry-run goes with --where" in shop.run("cancel", "u", "--dry-run").only()
