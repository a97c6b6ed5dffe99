"""FlowRecord and FlowNode: the state of a flow, a graph of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodeState(StrEnum):
    """The state of a node of a flow."""

    WAITING = "waiting"
    """It waits for nodes before it."""
    PUSHED = "pushed"
    """Its jobs wait in their queue, or run."""
    DONE = "done"
    FAILED = "failed"
    """Its job, or one of its jobs, has failed; a retry of that may repair it."""
    SKIPPED = "skipped"
    """Its job was passed over: another one has its lock, or a middleware skipped it."""
    CANCELLED = "cancelled"
    """It was cancelled, or a node before it, or the flow."""


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """The state of one flow. Times are epoch seconds; None if not yet."""

    id: str
    name: str
    connection: str
    queue: str
    """The queue of its internal jobs."""
    total: int
    """The number of nodes. A chain, a batch and a map count as one each."""
    settled: int
    """The number of nodes that have ended, in whatever way."""
    failed: int
    """The number of nodes among these that have failed and may be repaired by a retry."""
    notified: frozenset[str]
    """What followed: `catch`, `end`."""
    created_at: float
    cancelled_at: float | None = None
    finished_at: float | None = None
    """When the last node ended, for the first time."""

    @property
    def is_finished(self) -> bool:
        """Whether every node has ended."""
        return self.settled >= self.total

    @property
    def state(self) -> str:
        """The state in a word: `running`, `failed`, `cancelled` or `done`.

        `failed`: a node has failed; others may still run.
        """
        if self.cancelled_at is not None:
            return "cancelled"
        if self.failed:
            return "failed"
        return "done" if self.is_finished else "running"


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A node of a flow."""

    number: int
    """From 0, in the order in which they were added."""
    name: str
    state: NodeState
    after: tuple[int, ...]
    """The numbers of the nodes that it follows."""
    on_failure: str
    """What its failure does to the nodes after it: `block`, `continue` or `cancel`."""
    uuid: str = ""
    """The id of its job; of a chain's first link; the failed job if it has failed. "" for a map."""
    at: float | None = None
    """When it ended (epoch seconds)."""
    error: str = ""
    remark: str = ""
    jobs: int | None = None
    """How many jobs a map has; None before that is known, and for other nodes."""
    ended: int = 0
    """How many of these have ended."""
