"""What runs while jobs move: a dispatcher, and moves that are begun again and again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from qframe import Queueable, QueueManager, chain, dispatch, manager
from qframe.moving import QueueMover

HERE = Path(os.environ.get("QFRAME_CONFIG", "")).parent


def note(file: str, name: str) -> None:
    with (HERE / file).open("a", buffering=1) as ledger:
        ledger.write(f"{name}\n")


class LedgerJob(Queueable):
    name: str

    tries = 5
    job_name = "ledger"

    def handle(self) -> None:
        note(f"ran-{self.job.connection_name}", self.name)


class LedgerOfGroup(LedgerJob):
    group = "one"
    job_name = "ledger.group"


def dispatching() -> None:
    for number in range(10**6):
        delay = 1.5 * (number % 3 == 0)
        dispatch(LedgerJob(name=f"plain-{number}")).delay(delay).send()
        note("sent", f"plain-{number}")
        chain([LedgerJob(name=f"link-{number}.{link}") for link in range(2)]).dispatch()
        for link in range(2):
            note("sent", f"link-{number}.{link}")
        dispatch(LedgerOfGroup(name=f"group-{number}")).send()
        note("sent", f"group-{number}")
        time.sleep(0.03)


def moving() -> None:
    queues = QueueManager()
    manager.use(queues)
    QueueMover(queues, "old", "new").waiting()  # so that it is not killed while it imports
    note("moving", "")
    while True:
        QueueMover(queues, "old", "new").move()


if __name__ == "__main__":
    {"dispatch": dispatching, "move": moving}[sys.argv[1]]()
