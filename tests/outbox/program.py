"""A relay, or a program that dispatches within transactions, to be killed.

`python -m tests.outbox.program relay POINT`: the relay dies at a point of its first exchange, or
at none. `... dispatch NAME COUNT`: commits or rolls back one order with its job after the other.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from qframe import Queueable, QueueManager, dispatch, manager
from qframe.contracts.step import Step
from qframe.drivers.database import outbox as tables
from qframe.drivers.redis.backend import RedisBackend
from qframe.outbox.relay import Relay

POINTS = ["claimed", "applied", "removed", "committed"]


class Order(Queueable):
    name: str

    job_name = "orders.Order"
    queue = "orders"

    def handle(self) -> None:
        """Nothing: what is looked at is the queue."""


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then(act: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
    def done(*given: Any, **named: Any) -> Any:
        result = act(*given, **named)
        after()
        return result

    return done


def relay(point: str) -> None:
    queues = QueueManager()
    manager.use(queues)
    found = queues.outbox()
    assert found is not None
    apply = RedisBackend.apply

    def applied(self: RedisBackend, *steps: Step) -> Any:
        if point == "claimed":
            die()
        results = apply(self, *steps)
        if point == "applied":
            die()
        return results

    RedisBackend.apply = applied  # type: ignore[method-assign]
    claim = tables._DatabaseClaim
    if point == "removed":
        claim.remove = then(claim.remove, die)  # type: ignore[method-assign]
    made = Relay(queues, found)
    if point == "committed":
        made.turn()
        die()
    made.run(os.pipe()[0], lambda: False, until_empty=point != "forever")


def dispatcher(name: str, count: int) -> None:
    queues = QueueManager()
    manager.use(queues)
    engine = create_engine(queues.settings.connections["main"]["url"])
    with Session(engine) as session:
        for number in range(count):
            order = f"{name}-{number}"
            session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": order})
            dispatch(Order(name=order)).within(session)
            if number % 5 == 4:
                session.rollback()
            else:
                session.commit()


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        relay(sys.argv[2])
    else:
        dispatcher(sys.argv[2], int(sys.argv[3]))
