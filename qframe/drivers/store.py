"""Store: small shared state beside the queues, as named texts, over any backend with facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Operation, Outcome, Set, Step, Unset

_PAGE = 1000


class Store:
    """Keys and values shared by all processes: restart token, pauses, locks, limits, metrics.

    A value set with `ttl` (seconds, by the backend's clock) is gone after that; without it, it
    stays. Raises `BackendUnavailable`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def get(self, *keys: str) -> list[str | None]:
        """Give the values of the keys, None for each that is not there."""
        return self.backend.read(*keys) if keys else []

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Set a value, whatever was there."""
        self._done(Set(key, value, ttl))

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Set a value unless there is one; says whether it was set. Of two callers one wins."""
        return self._done(Expect(key, None), Set(key, value, ttl))

    def claim(
        self, key: str, value: str, ttl: float | None = None, instead_of: str | None = None
    ) -> str | None:
        """Set a value where the key holds nothing, or `instead_of`; else give what it holds."""
        step = Step(None, Expect(key, instead_of), Set(key, value, ttl))
        (result,) = self.backend.apply(step)
        return None if result.applied else result.holds or ""

    def takes_turn(self, key: str, who: str, seconds: float) -> bool:
        """Whether it is this one's turn, for so long: the one's who had it, or a free one."""
        held = self.claim(key, who, seconds)
        return held is None or (
            held == who and self.claim(key, who, seconds, instead_of=who) is None
        )

    def delete(self, key: str, value: str | None = None) -> bool:
        """Remove a key, only if it still holds `value` where one is given; says whether it did."""
        expected = value if value is not None else self.get(key)[0]
        return expected is not None and self._done(Expect(key, expected), Unset(key))

    def keys(self, prefix: str) -> list[str]:
        """List the keys that begin with `prefix`, sorted."""
        return [key for key, _ in self.items(prefix)]

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        """List what is under the keys that begin with `prefix`, by key."""
        after = ""
        while page := self.backend.scan(prefix, _PAGE, after):
            yield from page
            after = page[-1][0]
            if len(page) < _PAGE:  # nothing follows, and nobody has to be asked for that
                break

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        """Change keys from what is expected to what is wanted, all of them or none.

        `changes` gives both for each key; None stands for a key that is not there. So
        `{"lock": (None, "me")}` takes, `{"lock": ("me", "me")}` prolongs and `{"lock": ("me",
        None)}` gives back. What is written lives for `ttl`.
        """
        operations: list[Operation] = [
            Expect(key, expected) for key, (expected, _) in changes.items()
        ]
        for key, (_, wanted) in changes.items():
            operations.append(Unset(key) if wanted is None else Set(key, wanted, ttl))
        return self._done(*operations)

    def _done(self, *operations: Operation) -> bool:
        (result,) = self.backend.apply(Step(None, *operations))
        return result.outcome is Outcome.APPLIED


def pause_key(connection: str, queue: str = "") -> str:
    """Give the key under which a queue, or every queue of a connection, is paused."""
    return f"pause:{connection}:{queue}" if queue else f"pause:{connection}"
