"""CompletableJob: a reserved job that can be completed within a transaction of the program."""

from __future__ import annotations

import copy
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import overload

from qframe.contracts.backend import Backend, Capability, Standing
from qframe.contracts.job import Job
from qframe.contracts.status import State
from qframe.contracts.step import Outcome, Reservation, Result
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.drivers.guard import guarded
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    JobAlreadySettled,
    LeaseLost,
    NotCommitted,
    SettleError,
    TransactionUndone,
    Unsupported,
)
from qframe.features.base import End, Plan
from qframe.features.context import Context
from qframe.jobs import completing
from qframe.payload import envelope

_TRIES = 20
_RENEWAL = 0.05
"""Seconds in which a renewal ends that waits for no lock."""
PATIENCE = 2.0
"""Seconds for the end of a transaction within which a job was completed, after the job's end."""
_GLANCE = 0.02
COMPLETING = "completed within a transaction"
_STATE_OF = {
    Standing.OURS: "",
    Standing.GONE: "deleted",
    Standing.TAKEN: "lost",
    Standing.LOCKED: "lost",
}
"""The state of a job that was completed within a transaction."""


class CompletableJob(Job):
    """How a reserved job was settled, and its completion within a transaction."""

    context: Context
    reservation: Reservation
    state = ""
    """How it was settled, in a word or two; "" if it was not."""
    _moving: threading.Lock
    _completion: Plan | None = None
    """The step that completed it within a transaction."""
    start_confirmed = False
    """Whether the answer to its start was read before its handler was called."""
    began_too_early = False
    """Whether a transaction could not complete it because it is older than the job's start."""
    says_completing: Callable[[], bool] | None = None
    """Whether the job's own process has reported a completion, if it runs in one."""

    @abstractmethod
    def plan(self, end: End) -> Plan:
        """Return the plan of the step that ends the reservation this way."""

    @overload
    def complete(self, within: AsyncTransaction) -> Awaitable[None]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def complete(self, within: object = None) -> None: ...

    def complete(self, within: object = None) -> Awaitable[None] | None:
        if within is None:
            self.delete()
        elif is_async(within):
            return run_in(within, self._complete_within)
        else:
            self._complete_within(within)
        return None

    def _complete_within(self, transaction: object) -> None:
        backend = self.context.backend
        if Capability.RESERVE not in backend.capabilities:
            self.delete()
            return
        if Capability.WITHIN not in backend.capabilities:
            raise Unsupported(
                f"the connection {self.connection_name!r} cannot complete a job within a "
                "transaction of a database: its jobs are elsewhere"
            )
        completing.learn(envelope.job_name(self.payload))
        backend.read_replies()  # perhaps that its start came too late
        view = backend.within(transaction)
        if view is backend:
            self.delete()
            return
        with guarded:
            # A renewal in progress may wait for what this very transaction has locked.
            alone = self._moving.acquire(timeout=_RENEWAL)
            try:
                self._complete_through(view)
            finally:
                if alone:
                    self._moving.release()

    def _complete_through(self, view: Backend) -> None:
        """Remove the job through this view of the backend."""
        if self.is_completing:
            self._check_completed(view)
        elif not self.is_lost:  # checked once more
            self._check_open()
        before, self.state = self.state, COMPLETING
        try:
            plan, result = self._last_step(view)
        except BaseException as error:
            self.state = before
            if isinstance(error, TransactionUndone) and not self.start_confirmed:
                self.began_too_early = True
            raise
        if result.lost:
            self.state = "lost"
            raise self._unsettleable()
        self._completion = plan

    def _check_completed(self, view: Backend) -> None:
        """Refuse to complete it again, unless the last transaction was rolled back."""
        standing = view.standing(self.reservation)
        if standing in {Standing.GONE, Standing.LOCKED}:
            raise JobAlreadySettled(
                f"{self.name} {self.uuid} was already completed within a transaction that is open "
                "or committed: complete a job once, or roll that back first"
            )

    def _last_step(self, view: Backend) -> tuple[Plan, Result]:
        """Apply the step of a successful end, through this view."""
        end = End(State.COMPLETE)
        there = copy.copy(self)
        there.context = replace(self.context, backend=view)
        for _ in range(_TRIES):
            plan = there.plan(end)
            (result,) = view.apply(plan)
            if result.outcome is not Outcome.REFUSED:
                return plan, result
        raise BackendUnavailable(f"{self.name} {self.uuid} is changed again and again")

    @property
    def is_completing(self) -> bool:
        """Whether it was completed within a transaction whose result is unknown."""
        return self.state == COMPLETING

    def completing(self) -> None:
        """Note, in the worker, that the job's process completes it within a transaction."""
        completing.learn(envelope.job_name(self.payload))
        self.context.backend.read_replies()
        with self._moving:
            if not self.is_completing:
                self._check_open()
            self.state = COMPLETING

    def still_open(self) -> None:
        if self.is_completing:
            self.state = ""

    def learn_completion(self, let_go: Callable[[], object], patience: float = PATIENCE) -> bool:
        """Find out whether the transaction that completed the job was committed.

        Returns whether the job is done by that. An open transaction has `patience` seconds;
        `let_go` frees what may block it. Raises `NotCommitted` if the job is then still ours or
        locked, `LeaseLost` if another worker has it, and `BackendUnavailable`: the end is then
        settled as for any job, which does nothing to a job that is gone.
        """
        if not self.is_completing:
            return False
        try:
            standing = self._standing(let_go, patience)
        except BackendUnavailable:
            self.state = ""
            raise
        plan, self._completion = self._completion, None
        self.state = _STATE_OF[standing]
        if standing is Standing.GONE:
            if plan is not None:
                plan.applied()
            return True
        if standing is Standing.TAKEN:
            raise self._unsettleable()
        if standing is Standing.OURS:
            raise NotCommitted(
                f"{self.name} was completed within a transaction that did not commit"
            )
        raise NotCommitted(
            f"{self.name} was completed within a transaction that is still open: it is done when "
            "that is committed, and comes back when its lease ends where it is not"
        )

    def _standing(self, let_go: Callable[[], object], patience: float) -> Standing:
        until, waited = time.monotonic() + patience, False
        while True:
            standing = self.context.backend.standing(self.reservation)
            if standing is not Standing.LOCKED or time.monotonic() > until:
                return standing
            if not waited:
                waited = True
                let_go()
            time.sleep(_GLANCE)

    # -- state ------------------------------------------------------------------------------------

    def mark_lost(self) -> None:
        self.state = "lost"

    def _check_open(self) -> None:
        if self.state:
            raise self._unsettleable()

    def _unsettleable(self) -> SettleError:
        if self.state == "lost":
            return LeaseLost(f"{self.name} {self.uuid}: {LOST_LEASE}")
        return JobAlreadySettled(f"{self.name} {self.uuid} was already {self.state}")

    @property
    def is_deleted(self) -> bool:
        return self.state in {"deleted", "failed"}

    @property
    def is_released(self) -> bool:
        return self.state in {"released", "given back"}

    @property
    def has_failed(self) -> bool:
        return self.state == "failed"

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"

    @property
    def is_settled(self) -> bool:
        return bool(self.state)
