"""Lock: a lease of a few seconds in a store, renewed as long as its holder lives."""

from __future__ import annotations

import logging
import secrets
import time
from threading import Lock as Mutex

from qframe.drivers import heartbeat, process
from qframe.drivers.guard import guarded
from qframe.drivers.heartbeat import Beat, Heartbeat
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

_SOONER = 1.0
"""The most seconds until a failed renewal is retried."""


class Lock:
    """One lock with at most one owner; the store has the owner's name.

    The heartbeat renews it every third of `lease` seconds, so a holder that is killed frees it
    within `lease`. Only its owner renews or releases it; a forked child does neither. Every call to
    the store raises `BackendUnavailable`.
    """

    def __init__(self, store: Store, name: str, owner: str, lease: float) -> None:
        self.name = name
        self.owner = f"{owner}:{time.time():.3f}-{secrets.token_hex(6)}"
        self.holder: str | None = None
        """The name of the owner that had it when it could not be taken."""
        self._store = store
        self._lease = lease
        self._pid = process.pid()
        self._mine = False
        self._moving = Mutex()
        self._renewed_by: tuple[Heartbeat, Beat] | None = None

    def take(self, instead_of: str | None = None) -> bool:
        """Take the lock if it is free, or `instead_of` a dead owner.

        Returns whether it was taken.
        """
        with guarded:
            self._mine = True  # if the answer is lost, `release` must free it
            began = time.monotonic()
            self.holder = self._store.claim(self.name, self.owner, self._lease, instead_of)
            self._mine = self.holder is None
            if self._mine:
                beats, every = heartbeat.current(), self._lease / 3
                first = began + every - time.monotonic()  # the store may have been slow
                self._renewed_by = beats, beats.add(every, self.renew, first)
        return self._mine

    def release(self) -> None:
        """Free the lock if it is ours; without an answer from the store it expires.

        Never raises errors of the store: it runs at the end of an attempt, and must not change its
        outcome.
        """
        if not self._mine or self._pid != process.pid():
            return
        with guarded:
            self._renew_no_more()
            with self._moving:  # a renewal in progress would write it again
                self._mine = False
                try:
                    self._store.delete(self.name, self.owner)
                except Exception as error:  # noqa: BLE001 (as said above, whatever a driver raises)
                    log.warning(
                        "the lock %s could not be freed, and is free in %g s: %s",
                        self.name,
                        self._lease,
                        error,
                    )

    def renew(self) -> float | None:
        """Extend the lock, or take an expired one again if it is free.

        Returns the seconds until the next time; None for the usual interval.
        """
        with self._moving:
            if not self._mine:
                return None
            try:
                found = self._store.claim(self.name, self.owner, self._lease, self.owner)
                if found == "":  # it had expired
                    found = self._store.claim(self.name, self.owner, self._lease)
                    if found is None:
                        log.warning(
                            "the lock %s had run out while it was held, and was taken again",
                            self.name,
                        )
            except BackendUnavailable as error:
                log.warning("the lock %s could not be renewed: %s", self.name, error)
                return min(_SOONER, self._lease / 3)
            if found is None:
                return None
            self._mine = False
        self._renew_no_more()
        log.error(
            "the lock %s was lost while it was held: a second job may run meanwhile", self.name
        )
        return None

    def _renew_no_more(self) -> None:
        if self._renewed_by is not None:
            beats, beat = self._renewed_by
            beats.drop(beat)


def age(holder: str) -> float:
    """Return the seconds for which an owner has had a lock, from the time in its name."""
    since, _, _ = holder.rpartition(":")[2].partition("-")
    try:
        return max(0.0, time.time() - float(since))  # 0 also if it is not a number
    except ValueError:
        return 0.0
