"""What a backend can do: declared by its `Queue`, asked before it is relied on."""

from __future__ import annotations

from enum import Flag, auto


class Capability(Flag):
    """One thing a backend may be able to do.

    A call that needs a capability the backend does not declare raises `Unsupported`.
    """

    NONE = 0
    RESERVE = auto()
    """Jobs wait and can be reserved by a worker (not `sync`, not `null`)."""
    DELAY = auto()
    """A job can be due later."""
    AHEAD = auto()
    """Several jobs can be held at once; only a start counts an attempt."""
    RENEW = auto()
    """A lease can be prolonged while its job runs."""
    FENCE = auto()
    """A settle by a worker whose lease passed to another is refused."""
    UNCOUNTED = auto()
    """A job can be given back with its attempt not counted."""
    BURY = auto()
    """A job can be put aside in the backend until it is kicked."""
    WAIT = auto()
    """`wait` ends when a push, a due delay or an expired lease brings work; else it only sleeps."""
    LIST = auto()
    """The names of the queues that hold jobs can be listed."""
    SIZE = auto()
    """Jobs can be counted."""
    CLEAR = auto()
    """Waiting jobs can be deleted."""
    CANCEL = auto()
    """A waiting job can be found by its uuid and removed."""
    HISTORY = auto()
    """Where each attempt ran, and its error, is kept beside the job."""
    ATOMIC_FAIL = auto()
    """Recording a failure in the backend's own failed store and removing the job is one step."""
    TAKE_UP = auto()
    """A job whose worker died can be settled by another process of its host, by its ticket."""
    DURABLE = auto()
    """What was pushed survives the death of every process of ours."""
