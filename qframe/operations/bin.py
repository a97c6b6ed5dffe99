"""The bin of an act: what `clear`, `flush`, `forget` and `cancel` remove goes there for a while."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from functools import partial

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import ConfigurationError
from qframe.features.binned import BinAct
from qframe.manager import QueueManager
from qframe.operations.binning import Binning
from qframe.payload.text import one_line


class BinAction:
    """One act of somebody: what it removes goes into the bins of the connections concerned.

    With `is_on` false, or if the settings keep nothing, it is removed for good.
    """

    def __init__(
        self, manager: QueueManager, action: str, of: str, who: str, *, is_on: bool = True
    ) -> None:
        self.manager = manager
        self.id = secrets.token_hex(4)
        self._made = partial(BinAct, self.id, action, one_line(of, 300), one_line(who, 100))
        self._is_on = is_on
        self._at: dict[str, Binning] = {}

    def at(self, connection: Connection) -> Binning:
        """Returns the bin of a connection, for this act."""
        found = self._at.get(connection.name)
        if found is None:
            settings, now = self.manager.settings.bin, time.time()
            act = self._made(now, now + settings.seconds)
            found = self._at[connection.name] = Binning(
                connection, act, why_not(self.manager, connection, is_on=self._is_on),
                settings.jobs, settings.bytes,
            )  # fmt: skip
        return found

    def of_failed(self, record: FailedJob) -> Binning | None:
        """Returns the bin for a failed job; None if its connection is not configured any more."""
        try:
            connection = self.manager.connection(record.connection)
        except ConfigurationError:
            return None
        return self.at(connection)

    def forget(self, store: FailedStore, record: FailedJob) -> bool:
        """Removes the record of a failed job. Returns whether it existed."""
        at = self.of_failed(record)
        return store.forget(record) if at is None else at.forget(store, record)

    def close(self) -> None:
        """Notes how much is in the bins; call it at the end, also of an act that broke off."""
        for each in self._at.values():
            each.note()

    @property
    def kept(self) -> int:
        """How many jobs are in the bins."""
        return sum(each.act.jobs for each in self._at.values())

    def _only(self) -> str:
        """Returns the option without which a command would not look at the connection."""
        settings = self.manager.settings
        others = {*self._at}.difference([settings.default, *settings.connections])
        return f" --connection {min(others)}" if others else ""

    def told(self) -> str:
        """Returns in words what can be taken back, to follow what was done; "" for nothing."""
        lost = Counter[str]()
        for each in self._at.values():
            lost.update(each.lost)
        parts = []
        if self.kept:
            minutes = self.manager.settings.bin.seconds / 60
            command = f"qframe undo {self.id}{self._only()}"
            parts.append(f"{command} takes it back within {minutes:g} min")
        if self._is_on and self.manager.settings.bin.seconds:
            parts += [f"{count:,} for good: {why}" for why, count in lost.most_common(3)]
        return "; ".join(parts)


def why_not(manager: QueueManager, connection: Connection, *, is_on: bool = True) -> str:
    """Returns why what is removed from a connection is not kept; "" if it is."""
    if not is_on or not manager.settings.bin.seconds:
        return "there is no bin"
    if Capability.FACTS not in connection.capabilities:
        return f"{connection.name} keeps no facts"
    return ""
