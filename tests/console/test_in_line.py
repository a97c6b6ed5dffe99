"""Commands about jobs that stand in the line of their group."""

from __future__ import annotations

import json

import pytest

from tests.console.conftest import Shop


@pytest.fixture
def ids(shop: Shop) -> list[str]:
    """Give the ids of three jobs of a group, of which the first has a message."""
    shop.write("qframe.toml", '[groups.mail]\norder = "strict"\n')
    shop.write(
        "sync.py",
        "from qframe import Queueable\n"
        "class Sync(Queueable):\n"
        "    number: int\n"
        "    queue = 'mail'\n"
        "    group = 'shop:1'\n"
        "    tags = ('a', 'b')\n"
        "    def handle(self) -> None: ...\n",
    )
    more: tuple[list[str], ...] = ([], [], ["--track"])
    fields = [json.dumps({"number": number}) for number in range(3)]
    return [
        shop.run("dispatch", "sync.Sync", each, *options).out.strip()
        for each, options in zip(fields, more, strict=True)
    ]


def test_status_says_where_one_stands(shop: Shop, ids: list[str]) -> None:
    said = shop.run("status", ids[1])
    assert (said.code, said.err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in said.lines)
    assert shown == {
        "uuid": ids[1],
        "state": "WAITING",
        "name": "sync.Sync",
        "connection": "database",
        "queue": "mail",
        "tags": "a, b",
        "group": "shop:1",
        "position": "1",
        "remark": "not tracked",
    }
    tracked = shop.run("status", ids[2], "--json").rows
    assert (tracked["state"], tracked["group"], tracked["position"]) == ("WAITING", "shop:1", 2)
    assert tracked["queued_at"]
    assert shop.run("status", ids[0]).code == 2


def test_a_filter_cancels_them(shop: Shop, ids: list[str]) -> None:
    said = shop.run("cancel", "--where", "args.number:1,2")
    assert said.out == "cancelled 2 jobs\n"
    assert shop.queue.size("mail") == 1
    assert shop.run("status", ids[2], "--json").rows["state"] == "CANCELLED"
    assert shop.run("cancel", "--where", "queue:mail").out == "cancelled 1 job\n"
    assert shop.queue.size("mail") == 0
