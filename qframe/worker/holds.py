"""WorkerHolds: the holds of a connection, as a worker knows them, and the jobs they choose."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qframe.contracts.status import State
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import HELD, Filter, Filtered
from qframe.features.base import End
from qframe.features.hold import Hold, HoldFeature, holds_key, read_holds
from qframe.features.reserved import ReservedJob
from qframe.payload import envelope

log = logging.getLogger("qframe")

_INTERNAL = "qframe.features."


@dataclass(frozen=True, slots=True)
class ChosenByHold:
    """What the filter of a hold sees of a job."""

    uuid: str
    connection: str
    queue: str
    name: str
    payload: bytes
    message: Mapping[str, Any] = field(default_factory=dict)
    exception: str = ""
    failed_at: float = 0.0
    hosts: Sequence[str] = ()
    state: str = "ready"

    @classmethod
    def of(cls, job: ReservedJob) -> ChosenByHold:
        message = job.message or {}
        name = envelope.display_name(message) if message else job.name
        return cls(job.own_uuid, job.connection_name, job.queue, name, job.raw_body, message)


class ReadHold:
    """A hold with its filter, read once."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self._filter = Filter(hold.filter, HELD)

    def chooses(self, job: Filtered) -> bool:
        queues = self.hold.queues
        return (not queues or job.queue in queues) and self._filter.fits(job)


class WorkerHolds:
    """The holds that a worker knows of: `heard` is called at each look at the store."""

    def __init__(self, connection: str) -> None:
        self.key = holds_key(connection)
        """The fact that `heard` is told."""
        self.active: Sequence[ReadHold] = ()
        """Empty for most workers, whose jobs then cost nothing more."""
        self._text: str | None = None

    def heard(self, text: str | None) -> None:
        if text == self._text:
            return
        self._text = text
        found: list[ReadHold] = []
        for hold in read_holds(text):
            try:
                found += [] if hold.ended else [ReadHold(hold)]
            except ConfigurationError as error:  # of a later version, or changed by somebody
                log.warning("the hold %s is not kept by this worker: %s", hold.id, error)
        self.active = found

    def of(self, job: ReservedJob) -> Hold | None:
        """Returns the hold for which a job is to be set aside.

        That is none for the internal jobs by which batches, flows and groups go on.
        """
        if str((job.message or {}).get("job")).startswith(_INTERNAL):
            return None
        seen = ChosenByHold.of(job)
        found = (each.hold for each in self.active if each.hold.is_active and each.chooses(seen))
        return max(found, key=lambda hold: hold.until, default=None)

    def end(self, job: ReservedJob, hold: Hold) -> End:
        """Returns the end that sets a job aside, and lets the job bring it about."""
        feature = HoldFeature(hold, self._text or "")
        job.features = (*job.features, feature)
        delay = feature.delay(job.context.backend)
        return End(State.WAITING, delay, hold.shown, set_aside=True)
