"""in_parts: what an error of a request that is made in parts says of those that were done."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager

from qframe.exceptions import BackendUnavailable


@contextmanager
def in_parts(done: Sized) -> Iterator[None]:
    """Let an error in the block be in doubt if there are parts that are `done`."""
    try:
        yield
    except BackendUnavailable as error:
        error.in_doubt = error.in_doubt or len(done) > 0
        raise
