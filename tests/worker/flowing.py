"""Jobs of flows, for `test_flows`; copied into its projects."""

from __future__ import annotations

import os
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from qframe import Flow, FlowRun, Queueable, batch, chain, queueable

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND)


def note(*words: object) -> None:
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


class Price(Queueable):
    order: int

    def handle(self) -> Decimal:
        return Decimal("9.90")


class Stock(Queueable):
    order: int

    async def handle(self) -> list[str]:
        return ["a", "b", "c"]


class Invoice(Queueable):
    price: Decimal
    stock: list[str]

    def handle(self) -> str:
        note("invoice", self.price, type(self.price).__name__, *self.stock)
        return "inv"


class Sealed(Queueable):
    """Its fields, and its result, are encrypted."""

    word: str
    encrypted: ClassVar[bool] = True

    def handle(self) -> str:
        note("sealed", self.word)
        return self.word + "!"


class Link(Queueable):
    number: int

    def handle(self) -> int:
        return self.number + (self.previous.result or 0)


class Fails(Queueable):
    """Fails unless there is a file."""

    file: str

    def handle(self) -> int:
        if not Path(self.file).exists():
            raise ValueError("no file")
        return 7


@queueable
def end(names: list[str], invoice: str, total: int, word: str) -> None:
    note("end", *names, invoice, total, word)


@queueable
def undo(order: int) -> None:
    note("undo", order)


def order() -> FlowRun:
    """Dispatch a flow with a node of each kind."""
    flow = Flow("order 7")
    price, stock = flow.add(Price(order=7)), flow.add(Stock(order=7))
    invoice = flow.add(Invoice(price=price.result, stock=stock.result))
    words = flow.map(Sealed, over=stock.result)
    links = flow.add(chain([Link(number=1), Link(number=10)]))
    many = flow.add(batch([Link(number=2), Link(number=3)]), after=[links])
    last = end.job(words.result, invoice.result, links.result, "w")
    flow.add(last, after=[many])
    return flow.catch(undo.job(7)).dispatch()


class Work(Queueable):
    """A node of a random graph, named by its flow and number."""

    flow: int
    number: int
    before: list[int] = []  # noqa: RUF012 (each job gets its own)
    tries: ClassVar[int | None] = 0

    def handle(self) -> int:
        note("S", self.flow, self.number, *self.before)
        time.sleep(0.002)
        note("E", self.flow, self.number)
        return self.number


class Numbers(Queueable):
    flow: int
    tries: ClassVar[int | None] = 0

    def handle(self) -> list[int]:
        return [*range(1000, 1010)]


class Item(Queueable):
    flow: int
    number: int
    tries: ClassVar[int | None] = 0

    def handle(self) -> int:
        note("S", self.flow, self.number)
        note("E", self.flow, self.number)
        return self.number


def graph(flow: int, size: int = 20) -> list[list[int]]:
    """Give what each node of a random graph follows; the same each time."""
    chance = random.Random(flow)
    return [
        sorted({chance.randrange(number) for _ in range(chance.randrange(4))} if number else ())
        for number in range(size)
    ]


def dispatch_random(flow: int) -> str:
    """Dispatch a random graph, with a map behind it that all nodes come before."""
    made = Flow(f"random {flow}")
    for number, before in enumerate(graph(flow)):
        results = [made.nodes[each].result for each in before]
        if results:
            made.add(Work(flow=flow, number=number, before=results))
        else:
            made.add(Work(flow=flow, number=number))
    listing = made.add(Numbers(flow=flow), after=[*made.nodes])
    items = made.map(Item, over=listing.result, flow=flow)
    made.add(Work(flow=flow, number=99, before=items.result))
    return made.dispatch().id
