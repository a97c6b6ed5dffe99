"""A lock in a store: a lease of a few seconds, renewed as long as its holder lives."""

from __future__ import annotations

import logging
import secrets
import time
from threading import Lock as Mutex

from qframe import host
from qframe.contracts import Store
from qframe.exceptions import BackendUnavailable
from qframe.guard import guarded
from qframe.middleware.renewals import renewals

log = logging.getLogger("qframe")

_SOONER = 1.0
"""Seconds until a renewal that did not reach the store is tried again, at most."""


class Lock:
    """One lock, held by at most one owner; what the store holds is the owner's name.

    Taken, it is renewed every third of `lease` seconds by a thread of this process, so a holder
    that is killed frees it within `lease`. Only its owner renews or releases it. A forked child
    does neither. All that talks to the store raises `BackendUnavailable`.
    """

    def __init__(self, store: Store, name: str, owner: str, lease: float) -> None:
        self.name = name
        self.owner = f"{owner}:{secrets.token_hex(6)}"
        self.due = 0.0
        """When it is to be renewed, by the monotonic clock."""
        self._store = store
        self._lease = lease
        self._pid = host.pid()
        self._mine = False
        self._moving = Mutex()

    def holder(self) -> str | None:
        """Give the name of the owner, whoever it is."""
        return self._store.get(self.name)[0]

    def take(self) -> bool:
        """Take the lock if nobody has it; says whether it was taken."""
        return self._take_from(None)

    def take_over(self, holder: str) -> bool:
        """Take the lock from an owner known to be dead; says whether it was taken."""
        return self._take_from(holder)

    def _take_from(self, holder: str | None) -> bool:
        with guarded():
            self._mine = True  # perhaps: should the answer be lost, `release` is to free it
            self._begin()
            if holder is None:
                self._mine = self._store.add(self.name, self.owner, self._lease)
            else:
                self._mine = self._store.swap({self.name: (holder, self.owner)}, self._lease)
            if self._mine:
                renewals.keep(self)
        return self._mine

    def release(self) -> None:
        """Free the lock if it is ours; when the store does not answer it frees itself.

        Never raises anything of the store's: it is called at the end of an attempt, whose outcome
        it must not change.
        """
        if not self._mine or self._pid != host.pid():
            return
        with guarded():
            renewals.drop(self)
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

    def renew(self) -> None:
        """Prolong the lock; one that ran out is taken again, if nobody else has."""
        with self._moving:
            if not self._mine:
                return
            try:
                self._begin()
                if self._store.swap({self.name: (self.owner, self.owner)}, self._lease):
                    return
                self._mine = self._store.add(self.name, self.owner, self._lease)
            except BackendUnavailable as error:
                log.warning("the lock %s could not be renewed: %s", self.name, error)
                self.due = time.monotonic() + min(_SOONER, self._lease / 3)
                return
            if self._mine:
                log.warning(
                    "the lock %s had run out while it was held, and was taken again", self.name
                )
                return
        renewals.drop(self)
        log.error(
            "the lock %s was lost while it was held: a second job may run meanwhile", self.name
        )

    def _begin(self) -> None:
        """Count the lease from before the store is asked, as the store may be slow."""
        self.due = time.monotonic() + self._lease / 3
