from __future__ import annotations

import pytest

from qframe.operations import holds
from tests.console.conftest import Shop


def test_hold_holds_unhold(shop: Shop) -> None:
    assert shop.run("holds").lines == ["nothing is held"]
    said = shop.run(
        "hold", "class:shop.Order args.number:7", "--for", "2h", "--queue", "mail",
        "--why", "a\nbank", "--connection", "database",
    )  # fmt: skip
    assert said.code == 0
    (made,) = holds.listed(shop.queue)
    line = f"{made.id}: database holds class:shop.Order args.number:7 until {made.until} UTC; "
    assert said.lines == [f"{line}qframe unhold {made.id} ends it"]
    assert said.err.splitlines() == [
        "qframe: arguments that are secret or encrypted match no args.NAME: term"
    ]
    header, row = shop.run("holds").lines
    assert header.split() == [
        "id", "connection", "filter", "queues", "until", "who", "why", "aside",
    ]  # fmt: skip
    assert row.startswith(f"{made.id}  database")
    (listed,) = shop.run("holds", "--json").rows
    assert (listed["queues"], listed["why"], listed["aside"]) == (["mail"], "a bank", 0)
    assert "@" in listed["who"]
    assert 7100 < listed["seconds_left"] <= 7200
    (ended,) = shop.run("unhold", made.id, "--json").rows
    assert ended == {"id": made.id, "connection": "database", "back": 0}
    assert (
        shop.run("unhold", made.id).only().endswith(f"there is no hold '{made.id}': qframe holds")
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["class:a"], "Missing option '--for'."),
        (["class:a", "--for", "soon"], "--for takes a time like 90s, 5m, 2h, 3d or 1w, not 'soon'"),
        (["class:a", "--for", "15d"], "a hold lasts at most 14 days, and some time"),
        (["class:a", "--for", "1" * 400], "--for takes at most 100 years"),
        (["state:ready", "--for", "2h"], "there is no filter state: of jobs to hold"),
        (["class:", "--for", "2h"], "the filter 'class:' cannot be read at 'class:'"),
        (["!", "--for", "2h"], "the filter '!' cannot be read at '!'"),
        (["class:a", "--for", "2h", "--queue", "a b"], "'a b'"),
        (["connection:none", "--for", "2h"], "the filter allows no connection"),
        (["  ", "--for", "2h"], "argument 2 is empty"),
    ],
)
def test_what_cannot_be_held(shop: Shop, words: list[str], why: str) -> None:
    said = shop.run("hold", *words)
    assert said.code == 2
    assert why in said.only()


def test_a_connection_that_does_not_answer_is_said_and_the_exit_code(shop: Shop) -> None:
    shop.write(
        "qframe.toml", '[connections.away]\ndriver = "redis"\nurl = "redis://127.0.0.1:1/0"\n'
    )
    said = shop.run("hold", "class:shop.Order", "--for", "2h")
    (line,) = said.err.splitlines()
    assert line.startswith("qframe: redis://127.0.0.1:1/0 does not answer")
    (made,) = holds.listed(shop.queue)
    (line_of_the_other,) = said.lines
    assert line_of_the_other.startswith(f"{made.id}: database holds class:shop.Order until ")
    assert said.code == 69
    assert shop.run("hold", "class:shop.Order", "--for", "2h", "--json").code == 69
    away = shop.run("hold", "connection:away", "--for", "2h")
    assert (away.code, away.only()) == (69, line)
    assert shop.run("hold", "connection:database", "--for", "2h").code == 0
    absent = shop.run("unhold", "0badcafe")
    assert (absent.code, absent.only()) == (69, line)
    assert shop.run("unhold", made.id).code == 0
