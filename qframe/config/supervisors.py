"""SupervisorSettings: what `qframe supervise` runs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from qframe.config.values import Float, Int, QueueName, Seconds, Section
from qframe.payload.text import nearest


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, bool | int | float | str) else value


_Processes = Annotated[Int, Field(ge=1, le=1000)]
SupervisorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")]


class SupervisorSettings(Section):
    """What `qframe supervise` runs for some queues, in Horizon's terms.

    `balance`: `auto` gives each queue the processes it needs, `simple` the same number, `off` runs
    processes that work all queues in order. Each queue has at least `min_processes`, all together
    at most `max_processes`. Every `balance_cooldown` seconds a queue gets at most
    `balance_max_shift` more; waiting jobs should be gone `clear_within` seconds later. `strategy`:
    jobs count by the `time` they run, or all the same (`size`). If there are too few processes,
    `order` decides: the first queue first (`strict`), or `weights`. `nice` is the niceness of the
    processes. The other settings are options of `qframe work`.
    """

    connection: str | None = None
    queues: list[QueueName] = []
    balance: Literal["off", "simple", "auto"] = "auto"
    min_processes: _Processes = 1
    max_processes: _Processes = 1
    balance_max_shift: _Processes = 3
    balance_cooldown: Annotated[Float, Field(ge=1, le=3600)] = 3
    strategy: Literal["time", "size"] = "time"
    order: Literal["weighted", "strict"] = "weighted"
    weights: dict[QueueName, Annotated[Float, Field(gt=0, le=1000)]] = {}
    clear_within: Annotated[Float, Field(ge=1, le=86400)] = 10
    timeout: Seconds = 60
    tries: Annotated[Int, Field(ge=0, le=1_000_000)] = 1
    backoff: Annotated[list[Seconds], BeforeValidator(_one_or_more)] = [0]
    grace: Seconds = 5
    sleep: Seconds = 3
    rest: Seconds = 0
    memory: Annotated[Float, Field(ge=0, le=2**24)] = 256
    max_jobs: Annotated[Int, Field(ge=0, le=10**9)] = 0
    max_time: Seconds = 0
    force: bool = False
    concurrency: Annotated[Int, Field(ge=1, le=10_000)] = 1
    isolate: bool = False
    preload: bool = False
    schedule: bool = True
    stop_timeout: Annotated[Float, Field(ge=0, le=86400)] = 0
    nice: Annotated[Int, Field(ge=0, le=19)] = 0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        queues = self.queues or ["default"]
        if len({*queues}) < len(queues):
            raise ValueError("queues: each comes once")
        groups = 1 if self.balance == "off" else len(queues)
        if self.min_processes * groups > self.max_processes:
            raise ValueError(
                f"max_processes {self.max_processes} is fewer than min_processes "
                f"{self.min_processes} of {groups} queues"
            )
        for name in self.weights:
            if name not in queues:
                raise ValueError(f"weights: {name!r} is none of its queues{nearest(name, queues)}")
        if self.weights and (self.order == "strict" or self.balance != "auto"):
            raise ValueError('weights are for balance = "auto" and order = "weighted"')
        return self
