"""Store: small shared values by key, over any backend with facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Operation, Outcome, Set, Step, Unset
from qframe.payload.timing import seconds_until

_PAGE = 1000


class Store:
    """Keys and values that all processes share: restart token, pauses, locks, limits, metrics.

    A value set with `ttl` (seconds, by the backend's clock, up to 100 years) expires after that;
    otherwise it stays. Raises `BackendUnavailable`, and `ValueError` or `TypeError` for a wrong
    `ttl`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def get(self, *keys: str) -> list[str | None]:
        """Return the values of the keys, None for each key that does not exist."""
        return self.backend.read(*keys) if keys else []

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Set a value, replacing any other."""
        self._done(_set(key, value, ttl))

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Set a value unless the key has one.

        Returns whether it was set; of two callers one wins.
        """
        return self._done(Expect(key, None), _set(key, value, ttl))

    def claim(
        self, key: str, value: str, ttl: float | None = None, instead_of: str | None = None
    ) -> str | None:
        """Set a value if the key holds none or `instead_of`; otherwise return what it holds."""
        step = Step(None, Expect(key, instead_of), _set(key, value, ttl))
        (result,) = self.backend.apply(step)
        return None if result.applied else result.holds or ""

    def takes_turn(self, key: str, who: str, seconds: float) -> bool:
        """Take or keep a turn for `seconds`.

        Returns whether `who` has it: it was free or its own.
        """
        held = self.claim(key, who, seconds)
        return held is None or (
            held == who and self.claim(key, who, seconds, instead_of=who) is None
        )

    def delete(self, key: str, value: str | None = None) -> bool:
        """Remove a key; if `value` is given, only with this value.

        Returns whether it was removed.
        """
        expected = value if value is not None else self.get(key)[0]
        return expected is not None and self._done(Expect(key, expected), Unset(key))

    def keys(self, prefix: str) -> list[str]:
        return [key for key, _ in self.items(prefix)]

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Iterate over the keys that begin with `prefix` and their values, sorted by key."""
        after = ""
        while page := self.backend.scan(prefix, _PAGE, after):
            yield from page
            after = page[-1][0]
            if len(page) < _PAGE:  # this was the last page: do not ask for another
                break

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        """Change several keys from an expected value to a new one, all of them or none.

        `changes` has both values for each key; None stands for a missing key. So `{"lock": (None,
        "me")}` takes a lock, `{"lock": ("me", "me")}` extends it and `{"lock": ("me", None)}` frees
        it. New values live for `ttl` seconds. Returns whether the keys were changed.
        """
        operations: list[Operation] = [
            Expect(key, expected) for key, (expected, _) in changes.items()
        ]
        for key, (_, wanted) in changes.items():
            operations.append(Unset(key) if wanted is None else _set(key, wanted, ttl))
        return self._done(*operations)

    def _done(self, *operations: Operation) -> bool:
        (result,) = self.backend.apply(Step(None, *operations))
        return result.outcome is Outcome.APPLIED


def _set(key: str, value: str, ttl: float | None) -> Set:
    return Set(key, value, None if ttl is None else seconds_until(ttl, "ttl"))


def pause_key(connection: str, queue: str = "") -> str:
    """Return the key that marks a queue, or all queues of a connection, as paused."""
    return f"pause:{connection}:{queue}" if queue else f"pause:{connection}"


def pause_note_key(connection: str, queue: str = "") -> str:
    """Return the key that says who has paused it, and from where; not every pause has one."""
    return f"pause-note:{connection}:{queue}"
