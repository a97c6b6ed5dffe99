"""The jobs of the shop, in qframe's own words."""

import os
import time

from django.db import connection
from django.db.models import F
from shop.models import Order

from qframe import Queueable


def look(_: object) -> None:
    """Hear of an event in the worker, and look into the database there."""
    Order.objects.count()


class Ship(Queueable):
    """Ship an order. It is there: the job was committed with it."""

    order: int

    tries = 3
    backoff = (0, 1)

    def handle(self) -> int:
        """Count the shipment."""
        Order.objects.get(pk=self.order)
        return Order.objects.filter(pk=self.order).update(shipped=F("shipped") + 1)


class ShipOnLoop(Queueable):
    """The same, beside others on an event loop."""

    order: int

    async def handle(self) -> int:
        """Count the shipment."""
        return await Order.objects.filter(pk=self.order).aupdate(shipped=F("shipped") + 1)


class Refuse(Queueable):
    """Fail, as what is wrong does."""

    reason: str = "no such address"

    def handle(self) -> None:
        """Fail."""
        raise ValueError(self.reason)


class Connected(Queueable):
    """Say which process, and which connection of the database, a job has."""

    def handle(self) -> list[int]:
        """Ask the database for its connection's number, where it has one."""
        time.sleep(0)
        if connection.vendor != "postgresql":
            Order.objects.count()
            return [os.getpid(), 0]
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return [os.getpid(), cursor.fetchone()[0]]
