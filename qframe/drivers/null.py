"""The null driver: drops every message and every fact (Laravel's NullQueue)."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.facts import Latch
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import APPLIED, Expect, Forget, Outcome, Reservation, Result, Step


class NullBackend(Backend):
    """Drops everything, for tests and for switching a feature off. It guarantees nothing."""

    capabilities = Capability.NONE

    def __init__(self, name: str = "null", settings: ConnectionSettings | None = None) -> None:
        del name, settings
        self.timing = Timing()

    def apply(self, *steps: Step) -> list[Result]:
        return [_applied(step) for step in steps]

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        del queues, limit
        return [], self.apply(*first)

    def read(self, *keys: str) -> list[str | None]:
        return [None for _ in keys]

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        del prefix, limit, after, last_first
        return []

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        del key, labels
        return None

    def find_failed(self, uuid: str) -> FailedJob | None:
        del uuid
        return None

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        del limit, after, queue
        return []

    def count_failed(self) -> int:
        return 0

    def described(self) -> str:
        return "null"

    def check(self) -> Health:
        return Health("drops every job")


def _applied(step: Step) -> Result:
    """Refuse a step that expects something to exist."""
    for each in step.operations:
        if isinstance(each, Expect) and each.value is not None:
            return Result(Outcome.REFUSED, each.key)
        if isinstance(each, Forget):
            return Result(Outcome.REFUSED, each.uuid)
    return APPLIED
