"""Unique and debounced jobs: the rule of a class, and the lock in a payload."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.payload import timing
from qframe.payload.text import one_line

DEFAULT_FOR = 3600
"""The default life of a lock in seconds."""
_LONGEST_NAME = 80


class UniqueRule(NamedTuple):
    """What a job class declares, computed once."""

    seconds: float
    until: str
    delay: float = 0.0
    """Seconds that a dispatch waits for a later one; 0 if it is not debounced."""

    @property
    def key(self) -> str:
        """The payload key, and the prefix of the fact's key."""
        return "debounce" if self.delay else "unique"

    def wire(self, job: object, name: str, data: object) -> dict[str, Any]:
        """Return the payload's entry. Raises `InvalidJob` for an invalid id."""
        named = f"{name}\n{_identity(job, data)}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(named, digest_size=16).hexdigest()
        key = f"{self.key}:{name[-_LONGEST_NAME:]}:{digest}"
        said: dict[str, Any] = {"key": key, "for": self.seconds}
        return {**said, "until": self.until} if self.until else said


def _identity(job: object, data: object) -> str:
    """Return the text that identifies a job among those of its class."""
    given: Any = type(job).unique_id  # type: ignore[attr-defined] # of a job class
    if given is None:
        return "=" + json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if callable(given):
        given = given(job)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise InvalidJob(
            f"{type(job).__name__}.unique_id must give a text or a whole number, not "
            f"{one_line(repr(given), 60)}"
        )
    return f":{given}"


def rule_of(cls: Any) -> UniqueRule | None:  # noqa: ANN401 (a job class, which is made from this)
    """Return the rule of a class. Raises `JobDefinitionError` for conflicting options."""
    if cls.unique and cls.debounce is not None:
        raise JobDefinitionError(
            f"{cls.__name__}: unique and debounce do not go together: of unique jobs the first "
            "dispatch wins, of debounced ones the last"
        )
    if cls.debounce is not None:
        delay = timing.tidy(timing.seconds_until(cls.debounce))
        return UniqueRule(max(10 * delay, DEFAULT_FOR), "", delay)
    if cls.unique:
        return UniqueRule(timing.tidy(timing.seconds_until(cls.unique_for)), cls.unique_until)
    for option in ("unique_id", "unique_for", "unique_until"):
        if option in vars(cls) and cls.is_runnable():
            raise JobDefinitionError(
                f"{cls.__name__}.{option} does nothing without unique = True, or debounce"
            )
    return None
