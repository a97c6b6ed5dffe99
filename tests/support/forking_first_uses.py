"""Forks while another thread makes the first use of pydantic's core, and uses it in the child.

`python -m tests.support.forking_first_uses ROUNDS` prints the jobs whose child hung.
Each round is of a process of its own, forked from one that has used nothing yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import UTC, datetime
from enum import Enum
from uuid import UUID

from pydantic import BaseModel

from qframe import Queueable

_DEADLINE = 20


class Kind(Enum):
    ONE = "one"


class Model(BaseModel):
    number: int = 1


class Plain(Queueable):
    value: str = "a"

    def handle(self) -> None:
        pass


class OfMoment(Queueable):
    value: datetime = datetime(2000, 1, 1, tzinfo=UTC)

    def handle(self) -> None:
        pass


class OfKind(Queueable):
    value: Kind = Kind.ONE

    def handle(self) -> None:
        pass


class OfId(Queueable):
    value: UUID = UUID(int=1)

    def handle(self) -> None:
        pass


class OfModel(Queueable):
    value: Model = Model()

    def handle(self) -> None:
        pass


def _try(job: Queueable, steps: int) -> int:
    sys.setswitchinterval(1e-6)
    begins = threading.Event()

    def use() -> None:
        begins.set()
        job.to_data()

    thread = threading.Thread(target=use)
    thread.start()
    begins.wait()
    for _ in range(steps):
        pass
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # Python's own is not reached in the core
        signal.alarm(_DEADLINE)
        job.to_data()
        os._exit(0)
    thread.join()
    return os.waitpid(child, 0)[1]


def main() -> None:
    for job in (Plain(), OfMoment(), OfKind(), OfId(), OfModel()):
        for number in range(int(sys.argv[1])):
            pid = os.fork()
            if not pid:
                os._exit(bool(_try(job, number % 40)))
            if os.waitpid(pid, 0)[1]:
                print(type(job).__name__, flush=True)
                break
    print("over", flush=True)


if __name__ == "__main__":
    main()
