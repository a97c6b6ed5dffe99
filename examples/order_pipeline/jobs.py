"""The jobs: the links of an order's chain, and what follows when one fails."""

from __future__ import annotations

import functools
from pathlib import Path

from examples.order_pipeline.shop import CardDeclined, Order, Shop, SoldOut, charge
from qframe import Queueable, chain


class Step(Queueable):
    """Something that is done for an order."""

    shop: Path
    order: int

    tries = 3
    backoff = 0.2

    @property
    def books(self) -> Shop:
        """The shop, opened once in each worker."""
        return _opened(self.shop)

    def wanted(self) -> Order:
        """Read the order."""
        return self.books.order(self.order)


class ReserveStock(Step):
    """Take the items from stock; where there are none the chain ends here."""

    def handle(self) -> None:
        """Do it; a second run takes nothing."""
        try:
            self.books.reserve(self.wanted())
        except SoldOut as error:
            self.fail(error)  # it would not help to try again


class ChargeCard(Step):
    """Charge the card, and have an invoice sent at the very end where one is wanted."""

    def handle(self) -> None:
        """Do it; the line to the bank is down once for each tenth order."""
        order = self.wanted()
        if order.id % 10 == 0 and self.attempts == 1:
            raise ConnectionError("the bank does not answer")
        try:
            charge(order.card)
        except CardDeclined as error:
            self.fail(error)
            return
        self.books.note(order, "charged")
        if order.invoice:
            self.append_to_chain(SendInvoice(shop=self.shop, order=self.order))


class ShipOrder(Step):
    """Send the parcel."""

    def handle(self) -> None:
        """Do it."""
        order = self.wanted()
        self.books.note(order, "shipped")
        self.books.end(order, "done")


class SendInvoice(Step):
    """Send the invoice."""

    def handle(self) -> None:
        """Do it."""
        self.books.note(self.wanted(), "invoiced")


class CancelOrder(Step):
    """Follow a link that has failed for good: put back what was reserved, and say why."""

    def handle(self) -> None:
        """Do it; a second run puts nothing back."""
        caught = self.caught
        why = "nobody knows" if caught is None else caught.error.partition(":")[0]
        self.books.cancel(self.wanted(), why)


def place(shop: Path, order: int) -> str:
    """Have an order done: one link after the other, the next when the one before it is done."""
    links = [step(shop=shop, order=order) for step in (ReserveStock, ChargeCard, ShipOrder)]
    return chain(links).catch(CancelOrder(shop=shop, order=order)).dispatch()


@functools.cache
def _opened(file: Path) -> Shop:
    return Shop(file)
