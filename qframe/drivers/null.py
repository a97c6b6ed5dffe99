"""The null connection: what is pushed is dropped (Laravel's NullQueue)."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.config import NullSettings
from qframe.contracts import FailedJob, FailedStore
from qframe.drivers.base import BaseQueue


class NullQueue(BaseQueue):
    """Drops every job, for tests and for switching a feature off. It promises nothing."""

    settings_model = NullSettings

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Drop the messages."""
        del messages, queue, delay
        return ""

    def ping(self) -> str:
        return "drops every job"


class NullFailedStore(FailedStore):
    """Keeps no failed job: `failed = {driver = "null"}`."""

    def add(self, record: FailedJob) -> None:
        """Drop the record."""

    def find(self, uuid: str) -> FailedJob | None:
        del uuid
        return None

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> Sequence[FailedJob]:
        del limit, after, queue
        return ()

    def count(self) -> int:
        return 0

    def forget(self, uuid: str) -> bool:
        del uuid
        return False

    def flush(self, before: float | None = None) -> int:
        del before
        return 0
