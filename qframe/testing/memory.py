"""A store in this process's memory: what locks and limits are kept in while no backend is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from qframe.contracts import Store


class MemoryStore(Store):
    """Keeps what a backend's store keeps, for as long as the object lives."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[str, tuple[str, float]] = {}

    def get(self, *keys: str) -> list[str | None]:
        """Give the values of the keys, None for each that is not there."""
        with self._lock:
            return [self._value(key) for key in keys]

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Set a value, whatever was there."""
        with self._lock:
            until = float("inf") if ttl is None else time.monotonic() + ttl
            self._values[key] = (value, until)

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Set a value unless there is one."""
        return self.swap({key: (None, value)}, ttl)

    def delete(self, key: str, value: str | None = None) -> bool:
        """Remove a key, only if it still holds `value` where one is given."""
        with self._lock:
            held = self._value(key)
            return held is not None and self.swap({key: (value or held, None)})

    def keys(self, prefix: str) -> Sequence[str]:
        """List the keys that begin with `prefix`, sorted."""
        with self._lock:
            return sorted(
                key
                for key in list(self._values)
                if key.startswith(prefix) and self._value(key) is not None
            )

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        """Add to whole numbers, unless this step was added already."""
        with self._lock:
            if self._value(marker) == step:
                return False
            for key, amount in amounts.items():
                self.set(key, str(int(self._value(key) or 0) + amount))
            self.set(marker, step, 3600)
            return True

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        """Change keys from what is expected to what is wanted, all of them or none."""
        with self._lock:
            if any(self._value(key) != expected for key, (expected, _) in changes.items()):
                return False
            for key, (_, wanted) in changes.items():
                if wanted is None:
                    self._values.pop(key, None)
                else:
                    self.set(key, wanted, ttl)
            return True

    def _value(self, key: str) -> str | None:
        value, until = self._values.get(key, (None, 0.0))
        if value is not None and until <= time.monotonic():
            del self._values[key]
            return None
        return value
