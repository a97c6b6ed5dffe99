"""`qframe why`: its lines, its JSON and its exit codes."""

from __future__ import annotations

import re
import sys

import pytest

from qframe.contracts.step import Push, Step
from tests.console.conftest import Shop


def push(shop: Shop, queue: str = "mail") -> str:
    return str(
        shop.run("dispatch", "shop.Order", '{"number": 7}', "--queue", queue).out.split()[-1]
    )


def test_it_says_the_first_to_mend_first_and_exits_1(shop: Shop) -> None:
    uuid = push(shop)
    shop.run("pause", "mail", "--for", "600")
    said = shop.run("why", uuid)
    assert said.code == 1
    assert said.err == ""
    title, first, mend, second, start, *_ = said.lines
    assert title == f"shop.Order {uuid} on database:mail: ready"
    assert re.fullmatch(
        r"  1\. mail has been paused for \d+s from the command line by \S+@\S+, until .+ UTC, in "
        r"\S+( \S+)?  \(read \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d UTC\)",
        first,
    )
    assert mend == "     -> qframe resume mail --connection database"
    assert second.startswith("  2. no worker of database runs  (read ")
    assert start == "     -> qframe work database --queue mail"
    assert said.lines[-1].startswith("  ?  not known: ")


def test_json_has_the_same(shop: Shop) -> None:
    uuid = push(shop)
    made = shop.run("why", uuid, "--json")
    (found,) = made.rows["found"]
    assert (made.code, found["uuid"], found["queue"]) == (1, uuid, "mail")
    assert (found["about"], found["state"]) == ("job", "ready")
    assert [each["kind"] for each in found["reasons"]] == ["no worker", "turn"]
    assert {*found["reasons"][0]} == {"kind", "text", "mend", "level", "read_at"}


def test_a_queue_and_a_class_are_explained(shop: Shop) -> None:
    push(shop)
    assert shop.run("why", "mail").lines[0] == "database:mail: 1 ready"
    assert shop.run("why", "shop.Order").lines[0] == "shop.Order on database:mail: 1 job waits"
    assert shop.run("why", "shop.Order", "--kind", "class").code == 1


def test_the_limits_of_its_class_are_read_from_the_project(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(
        "apart.py",
        "from qframe import Queueable\nclass Sent(Queueable):\n    def handle(self) -> None: ...\n",
    )
    shop.queue.backend.apply(Step(None, Push("mail", b'{"uuid": "u-1", "job": "apart.Sent"}', 0)))
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    said = shop.run("why", "u-1")
    assert said.lines[0] == "apart.Sent u-1 on database:mail: ready"
    assert "its code is not here" not in said.out


def test_what_nobody_knows_exits_3(shop: Shop) -> None:
    push(shop)
    said = shop.run("why", "mial")
    assert said.code == 3
    assert "did you mean mail?" in said.lines[1]
    assert shop.run("why", "00000000-0000-7000-8000-000000000000").code == 3


@pytest.mark.parametrize(
    "arguments", [("a", "--kind", "thing"), ("a", "--connection", "nowhere"), ("\n",)]
)
def test_wrong_words_exit_2(shop: Shop, arguments: tuple[str, ...]) -> None:
    said = shop.run("why", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.only()


def test_text_of_others_is_printed_harmlessly(shop: Shop) -> None:
    shop.keep("f-1", exception="ValueError: \x1b[31mred\u202e\nnext\n")
    said = shop.run("why", "f-1")
    assert said.code == 1
    assert "\x1b" not in said.out
    assert "\u202e" not in said.out
