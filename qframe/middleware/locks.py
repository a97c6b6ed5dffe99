"""A lock in a store: a lease of a few seconds, renewed as long as its holder lives."""

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
"""Seconds until a renewal that did not reach the store is tried again, at most."""


class Lock:
    """One lock, held by at most one owner; what the store holds is the owner's name.

    Taken, it is renewed every third of `lease` seconds by the heartbeat, so a holder that is killed
    frees it within `lease`. Only its owner renews or releases it. A forked child does neither. All
    that talks to the store raises `BackendUnavailable`.
    """

    def __init__(self, store: Store, name: str, owner: str, lease: float) -> None:
        self.name = name
        self.owner = f"{owner}:{time.time():.3f}-{secrets.token_hex(6)}"
        self.holder: str | None = None
        """The name of the owner who had it when it could not be taken."""
        self._store = store
        self._lease = lease
        self._pid = process.pid()
        self._mine = False
        self._moving = Mutex()
        self._renewed_by: tuple[Heartbeat, Beat] | None = None

    def take(self, instead_of: str | None = None) -> bool:
        """Take the lock if nobody has it, or an owner known to be dead; says whether it did."""
        with guarded:
            self._mine = True  # perhaps: should the answer be lost, `release` is to free it
            began = time.monotonic()
            self.holder = self._store.claim(self.name, self.owner, self._lease, instead_of)
            self._mine = self.holder is None
            if self._mine:
                beats, every = heartbeat.current(), self._lease / 3
                first = began + every - time.monotonic()  # as the store may have been slow
                self._renewed_by = beats, beats.add(every, self.renew, first)
        return self._mine

    def release(self) -> None:
        """Free the lock if it is ours; when the store does not answer it frees itself.

        Never raises anything of the store's: it is called at the end of an attempt, whose outcome
        it must not change.
        """
        if not self._mine or self._pid != process.pid():
            return
        with guarded:
            self._renew_no_more()
            with self._moving:  # a renewal under way would put it back
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
        """Prolong the lock; one that ran out is taken again, if nobody else has.

        Gives the seconds until the next time, None for as many as ever.
        """
        with self._moving:
            if not self._mine:
                return None
            try:
                found = self._store.claim(self.name, self.owner, self._lease, self.owner)
                if found == "":  # it had run out
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
    """Give the seconds for which an owner has had a lock, as far as its name says."""
    since, _, _ = holder.rpartition(":")[2].partition("-")
    try:
        return max(0.0, time.time() - float(since))  # 0 also where that is no number
    except ValueError:
        return 0.0
