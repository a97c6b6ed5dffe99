from __future__ import annotations

import re

import pytest

from tests.console.conftest import Shop


def push(shop: Shop, count: int = 2) -> None:
    for number in range(count):
        shop.queue.push_raw(f'{{"uuid": "u-{number}", "job": "app.A"}}', "mail")


def test_clear_and_undo(shop: Shop) -> None:
    push(shop)
    said = shop.run("clear", "database", "--queue", "mail")
    assert said.lines == ["deleted 2 jobs from database:mail"]
    found = re.fullmatch(r"qframe: (qframe undo (\w+) takes it back within 60 min)\n", said.err)
    assert found, said
    (act,) = shop.run("undo", "--list", "--json").rows
    assert (act["id"], act["action"], act["of"]) == (found[2], "clear", "database:mail")
    assert (act["jobs"], act["lost"], act["connections"]) == (2, 0, ["database"])
    assert "clear   database:mail     2" in shop.run("undo", "--list").out
    of = f"2 jobs of `clear` database:mail by {act['who']} at {act['at']} UTC"
    assert shop.run("undo", "--dry-run").lines == [f"would bring back {of}"]
    assert shop.run("undo").lines == [f"brought back {of}"]
    assert shop.queue.sizes("mail").ready == 2
    assert shop.run("undo").only() == "qframe: nothing can be taken back"
    wrong = shop.run("undo", "x\n" * 50)
    assert wrong.code == 2
    assert "cannot be taken back: qframe undo --list" in wrong.only()


def test_the_question_says_what_comes_back(shop: Shop) -> None:
    push(shop)
    said = shop.run("clear", "database", "--queue", "mail", "--dry-run")
    assert said.lines == [
        "would delete 2 jobs from database:mail (undo brings back 2 within 60 min)"
    ]
    said = shop.run("clear", "database", "--queue", "mail", "--dry-run", "--no-bin")
    assert said.lines == ["would delete 2 jobs from database:mail for good"]


def test_cancel_by_a_filter_and_undo(shop: Shop) -> None:
    push(shop, 3)
    said = shop.run("cancel", "--where", "uuid:u-1", "--dry-run")
    assert said.lines == ["would cancel 1 job that waits (undo brings back 1 within 60 min)"]
    shop.run("cancel", "--where", "uuid:u-1")
    assert shop.queue.sizes("mail").ready == 2
    assert shop.run("undo", "--yes").lines[0].startswith("brought back 1 job of `cancel` uuid:u-1 ")
    assert shop.queue.sizes("mail").ready == 3


def test_flush_forget_and_undo(shop: Shop) -> None:
    for uuid in ("a", "b", "c"):
        shop.keep(uuid)
    shop.run("forget", "b")
    assert shop.run("flush", "--dry-run").lines == [
        "would remove 2 failed jobs (undo brings back 2 within 60 min)"
    ]
    shop.run("flush")
    assert shop.kept() == []
    shop.run("undo")
    assert sorted(shop.kept()) == ["a", "c"]
    shop.run("undo")
    assert sorted(shop.kept()) == ["a", "b", "c"]


@pytest.mark.parametrize("words", [("flush",), ("forget", "a"), ("forget", "--where", "uuid:a")])
def test_without_a_bin_they_are_gone(shop: Shop, words: tuple[str, ...]) -> None:
    shop.keep("a")
    shop.run(*words, "--no-bin")
    assert shop.kept() == []
    assert shop.run("undo", "--list").lines == ["nothing can be taken back"]


def test_prune_keeps_nothing(shop: Shop) -> None:
    shop.keep("a", failed_at=1.0)
    shop.run("prune")
    assert shop.kept() == []
    assert shop.run("undo", "--list", "--json").rows == []


def test_no_bin_is_emptied_for_an_act_that_is_not_there(shop: Shop) -> None:
    push(shop)
    shop.run("clear", "database", "--queue", "mail")
    wrong = shop.run("undo", "x\ny", "--purge", "--yes")
    assert wrong.code == 2
    assert "the act 'x y' has nothing in a bin: qframe undo --list" in wrong.only()
    assert len(shop.run("undo", "--list", "--json").rows) == 1


def test_a_bin_that_cannot_be_emptied_is_no_success(shop: Shop) -> None:
    shop.write(
        "qframe.toml",
        '[connections.database]\ndriver = "database"\n'
        '[connections.away]\ndriver = "redis"\nurl = "redis://127.0.0.1:1/0"\n',
    )
    push(shop)
    shop.run("clear", "database", "--queue", "mail")
    said = shop.run("undo", "--purge")
    assert (said.code, said.lines) == (1, ["removed 1 act from the bin"])
    assert said.err.endswith("qframe: the bin of away was not emptied\n")


def test_the_bin_is_emptied(shop: Shop) -> None:
    push(shop)
    shop.run("clear", "database", "--queue", "mail")
    assert shop.run("undo", "--purge").lines == ["removed 1 act from the bin"]
    assert shop.queue.backend.scan("bin") == []


def test_the_question_of_a_flush_says_what_the_bin_does_not_take(shop: Shop) -> None:
    shop.write("qframe.toml", "[connections.database]\n[bin]\njobs = 1\n")
    for uuid in ("a", "b", "c"):
        shop.keep(uuid)
    said = shop.run("flush", "--dry-run")
    kept, lost = "undo brings back 1 within 60 min", "2 jobs for good: the bin is full"
    assert said.lines == [f"would remove 3 failed jobs ({kept}; {lost})"]
    said = shop.run("flush")
    assert said.lines == ["removed 3 failed jobs"]
    assert said.err.endswith(" takes it back within 60 min; 2 for good: the bin is full\n")
