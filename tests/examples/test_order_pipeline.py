"""The orders, each a chain: whole, as a reader would run it, and its links one by one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.order_pipeline import __main__ as demo
from examples.order_pipeline.jobs import (
    CancelOrder,
    ChargeCard,
    ReserveStock,
    SendInvoice,
    ShipOrder,
    place,
)
from examples.order_pipeline.shop import (
    STOCK,
    CardDeclined,
    Order,
    Shop,
    SoldOut,
    expected,
    some_orders,
)
from qframe.dispatch.batch import Caught
from qframe.testing import fake, run

ROOT = Path(__file__).parents[2]
GOOD, BAD = "79927398713", "79927398710"


@pytest.mark.usefixtures("fresh")
def test_every_order_ends_as_it_must() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.order_pipeline", "--orders", "40"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    told = dict(re.findall(r"^(\w[\w: ]*?) +(\d+)", ran.stdout, re.MULTILINE))
    ends = [expected(order)[0] for order in some_orders(40)]
    states = ["done", "cancelled: CardDeclined", "cancelled: SoldOut"]
    assert [int(told[state]) for state in states] == [ends.count(state) for state in states]
    assert min(int(told[state]) for state in states) >= 1
    assert ran.stdout.endswith("step by step, and the stock is right\n")


@pytest.fixture
def file(fresh: Path) -> Path:
    return fresh / "shop.sqlite3"


@pytest.fixture
def shop(file: Path) -> Iterator[Shop]:
    with closing(Shop(file)) as made:
        yield made


def opened(shop: Shop, number: int = 1, card: str = GOOD, item: str = "lamp") -> Order:
    order = Order(number, item, 2, card, invoice=number == 1)
    shop.open_with([order])
    return order


def test_an_order_is_a_chain(file: Path) -> None:
    with fake() as queued:
        place(file, 7)
    queued.assert_chained(
        [step(shop=file, order=7) for step in (ReserveStock, ChargeCard, ShipOrder)]
    )
    assert queued.chains[0].catch == [CancelOrder(shop=file, order=7)]


def test_an_invoice_comes_last(file: Path, shop: Shop) -> None:
    opened(shop)
    run(ChargeCard(shop=file, order=1)).assert_appended(SendInvoice(shop=file, order=1))
    assert run(ReserveStock(shop=file, order=1)).appended == []


def test_the_bank_does_not_answer_at_first(file: Path, shop: Shop) -> None:
    opened(shop, 10)
    run(ChargeCard(shop=file, order=10)).assert_retried(0.2)
    again = run(ChargeCard(shop=file, order=10), attempts=2)
    again.assert_done()
    assert again.appended == []


def test_what_was_reserved_is_put_back_once(file: Path, shop: Shop) -> None:
    order = opened(shop, card=BAD)
    for _ in range(2):
        run(ReserveStock(shop=file, order=1)).assert_done()
    assert shop.stock()["lamp"] == STOCK["lamp"] - 2
    run(ChargeCard(shop=file, order=1)).assert_failed_with(CardDeclined)
    for _ in range(2):
        run(
            CancelOrder(shop=file, order=1), caught=Caught("", "", "CardDeclined: no")
        ).assert_done()
    assert shop.stock() == STOCK
    assert (shop.state(order), shop.steps(order)) == expected(order)


def test_sold_out(file: Path, shop: Shop) -> None:
    order = opened(shop, item="umbrella")
    run(ReserveStock(shop=file, order=1)).assert_failed_with(SoldOut)
    assert shop.steps(order) == []


def test_what_is_wrong_is_told_and_fails(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    order = opened(shop)
    assert demo.report(shop, [order], 1, 0) == 1
    told = capsys.readouterr().out
    assert "order 1: ('open', []) is not ('done', ['reserved', 'charged', 'shipped'" in told
    shop.reserve(order)
    assert demo.report(shop, [order], 1, 0) == 1
    assert "498 of lamp are left, not 500" in capsys.readouterr().out
