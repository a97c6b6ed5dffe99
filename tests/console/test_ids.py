"""An id may be given by any beginning or end that only one has."""

from __future__ import annotations

import json

import pytest

from qframe.console.output import short
from tests.console.conftest import Shop

ONE = "0199c8f0-1111-7abc-8000-00000000cafe"
TWO = "0199c8f0-2222-7abc-8000-00000000beef"


def dispatched(shop: Shop, *options: str) -> str:
    return shop.run("dispatch", "shop.Order", '{"number": 1}', *options).out.strip()


@pytest.mark.parametrize("given", ["0199c8f0-11", "0000cafe", "CAFE", ONE])
@pytest.mark.parametrize("command", ["failed", "retry", "forget", "status"])
def test_a_failed_job(shop: Shop, command: str, given: str) -> None:
    shop.keep(ONE)
    shop.keep(TWO)
    said = shop.run(command, given)
    assert said.code == 0, said
    if command in {"failed", "status"}:
        assert ONE in said.out
        assert TWO not in said.out
    else:
        assert shop.kept() == [TWO]


@pytest.mark.parametrize("command", ["failed", "retry", "forget", "status"])
def test_one_that_several_have_is_refused_naming_them(shop: Shop, command: str) -> None:
    shop.keep(ONE)
    shop.keep(TWO)
    said = shop.run(command, "0199c8f0")
    assert said.code == 2
    line = said.only()
    assert line.startswith("qframe: '0199c8f0' begins or ends several ids: ")
    assert ONE in line
    assert TWO in line
    assert sorted(shop.kept()) == sorted([ONE, TWO])


def test_of_many_some_are_named(shop: Shop) -> None:
    for number in range(9):
        shop.keep(f"0199c8f0-{number}")
    assert shop.run("forget", "0199c8f0").only().endswith(", and others")


@pytest.mark.parametrize("given", ["0199c8f0-1", "afe", "c8f0-1111"])
def test_what_is_in_the_middle_or_too_short_is_none(shop: Shop, given: str) -> None:
    shop.keep("x" + ONE + "y")
    assert shop.run("forget", given).code == 2
    assert len(shop.kept()) == 1


def test_the_whole_id_of_one_that_begins_another_is_that_one(shop: Shop) -> None:
    shop.keep("order-1")
    shop.keep("order-12")
    assert shop.run("forget", "order-1").out == "forgot order-1\n"
    assert shop.kept() == ["order-12"]


def test_a_tracked_job_and_one_to_cancel(shop: Shop) -> None:
    uuid, other = dispatched(shop, "--track"), dispatched(shop, "--track")
    assert json.loads(shop.run("status", short(uuid), "--json").out)["uuid"] == uuid
    assert shop.run("status", uuid[:13]).code in {0, 2}
    assert shop.run("cancel", short(uuid)).out == f"cancelled {uuid}\n"
    assert shop.run("status", short(other), "--json").rows["state"] == "WAITING"
    assert shop.queue.size() == 1


def test_one_that_waits_untracked_is_cancelled_by_its_end_or_beginning(shop: Shop) -> None:
    first = dispatched(shop)
    second = dispatched(shop)
    assert first[:4] == second[:4]  # uuids of one minute
    assert first in shop.run("cancel", first[:4]).only()
    assert shop.queue.size() == 2
    assert shop.run("cancel", short(first).upper()).out == f"cancelled {first}\n"
    assert shop.run("cancel", second[:20]).out == f"cancelled {second}\n"
    assert shop.queue.size() == 0


def test_the_short_id_is_the_end() -> None:
    assert short(ONE) == "0000cafe"
    assert short("\x1b") == "\\x1b"
