"""The shop: its orders, its stock, and what was done for each order, in an SQLite file."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

STOCK = {"lamp": 500, "chair": 500, "kettle": 500, "umbrella": 0}


class SoldOut(Exception):
    """There are not enough of an item."""


class CardDeclined(Exception):
    """The bank does not accept a card."""


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants."""

    id: int
    item: str
    quantity: int
    card: str
    invoice: bool


class Shop:
    """The database. Every step for an order is a row, so that one done twice is done once."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, count INT);
            CREATE TABLE IF NOT EXISTS orders (
                id INTEGER PRIMARY KEY, item TEXT, quantity INT, card TEXT, invoice INT,
                state TEXT DEFAULT 'open'
            );
            CREATE TABLE IF NOT EXISTS steps (
                number INTEGER PRIMARY KEY, id INT, step TEXT, UNIQUE (id, step)
            );
            """
        )

    def open_with(self, orders: Iterable[Order]) -> None:
        """Write down stock and orders."""
        with self._transaction():
            self._database.executemany("INSERT INTO stock VALUES (?, ?)", STOCK.items())
            self._database.executemany(
                "INSERT INTO orders (id, item, quantity, card, invoice) VALUES (?, ?, ?, ?, ?)",
                map(astuple, orders),
            )

    def order(self, number: int) -> Order:
        """Read an order."""
        query = "SELECT id, item, quantity, card, invoice FROM orders WHERE id = ?"
        identity, item, quantity, card, invoice = self._database.execute(
            query, (number,)
        ).fetchone()
        return Order(identity, item, quantity, card, bool(invoice))

    def reserve(self, order: Order) -> None:
        """Take an order's items from stock; raises `SoldOut`."""
        with self._transaction():
            if self._is_new(order, "reserved"):
                query = "UPDATE stock SET count = count - ? WHERE item = ? AND count >= ?"
                values = (order.quantity, order.item, order.quantity)
                if not self._database.execute(query, values).rowcount:
                    raise SoldOut(f"no {order.quantity} of {order.item}")

    def note(self, order: Order, step: str) -> None:
        """Write down that a step was done."""
        with self._transaction():
            self._is_new(order, step)

    def end(self, order: Order, state: str) -> None:
        """Write down how an order ended."""
        self._database.execute("UPDATE orders SET state = ? WHERE id = ?", (state, order.id))

    def cancel(self, order: Order, why: str) -> None:
        """Give up an order, and put back what was reserved."""
        with self._transaction():
            if "reserved" in self.steps(order) and self._is_new(order, "put back"):
                query = "UPDATE stock SET count = count + ? WHERE item = ?"
                self._database.execute(query, (order.quantity, order.item))
            self.end(order, f"cancelled: {why}")

    def steps(self, order: Order) -> list[str]:
        """Give what was done for an order, in order."""
        query = "SELECT step FROM steps WHERE id = ? ORDER BY number"
        return [step for (step,) in self._database.execute(query, (order.id,))]

    def state(self, order: Order) -> str:
        """Say how an order stands."""
        query = "SELECT state FROM orders WHERE id = ?"
        return str(self._database.execute(query, (order.id,)).fetchone()[0])

    def stock(self) -> dict[str, int]:
        """Count what is left."""
        return dict(self._database.execute("SELECT item, count FROM stock"))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _is_new(self, order: Order, step: str) -> bool:
        query = "INSERT OR IGNORE INTO steps (id, step) VALUES (?, ?)"
        return bool(self._database.execute(query, (order.id, step)).rowcount)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            yield


def charge(card: str) -> None:
    """Be the bank; raises `CardDeclined` where the card's check digit is wrong (Luhn)."""
    digits = [int(digit) for digit in reversed(card)]
    total = sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    if total % 10:
        raise CardDeclined(f"card ending in {card[-4:]}")


def some_orders(count: int) -> list[Order]:
    """Make up orders, the same ones each time; the digits of about one card in ten are wrong."""
    chance = random.Random(7)  # noqa: S311 (no secret)
    orders = []
    for number in range(1, count + 1):
        card = f"{chance.randrange(10**15):015}"
        card += next(digit for digit in "0123456789" if _is_good(card + digit))
        if chance.random() < 0.1:
            card = card[:-1] + str((int(card[-1]) + 1) % 10)
        item = chance.choices(list(STOCK), weights=(4, 4, 4, 1))[0]
        orders.append(Order(number, item, chance.randint(1, 3), card, chance.random() < 0.3))
    return orders


def expected(order: Order) -> tuple[str, list[str]]:
    """Say, without any queue, how an order has to end, and what has to be done for it."""
    if STOCK[order.item] < order.quantity:
        return "cancelled: SoldOut", []
    if not _is_good(order.card):
        return "cancelled: CardDeclined", ["reserved", "put back"]
    steps = ["reserved", "charged", "shipped"]
    return ("done", [*steps, "invoiced"]) if order.invoice else ("done", steps)


def _is_good(card: str) -> bool:
    try:
        charge(card)
    except CardDeclined:
        return False
    return True
