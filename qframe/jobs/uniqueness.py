"""Unique and debounced jobs, and idempotency keys: the rule of a class, the key in a payload."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.payload import timing
from qframe.payload.text import one_line

DEFAULT_FOR = 3600
"""The default life of a lock in seconds."""
ONCE = "once"
"""The payload key of an idempotency key, and the prefix of its fact's key."""
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
        fields = {"key": _fact_key(self.key, name, _identity(job, data)), "for": self.seconds}
        return {**fields, "until": self.until} if self.until else fields


class OnceRule(NamedTuple):
    """For how many seconds a job class wants one dispatch of the same job."""

    seconds: float

    @property
    def key(self) -> str:
        """The payload key."""
        return ONCE

    def wire(self, job: object, name: str, data: object) -> dict[str, Any]:
        """Return the payload's entry. Raises `InvalidJob` for an invalid id."""
        return {"key": _fact_key(ONCE, name, _identity(job, data)), "for": self.seconds}


def once(name: str, key: object, within: Any) -> dict[str, Any]:  # noqa: ANN401 (what it is, is the question)
    """Return the payload's entry for an idempotency key. Raises `InvalidJob`."""
    if isinstance(key, bool) or not isinstance(key, str | int | UUID) or key == "":
        raise InvalidJob(
            f"once: the key must be a text, a whole number or a UUID, not {one_line(repr(key), 60)}"
        )
    try:
        seconds = 0 if isinstance(within, datetime) else timing.seconds_until(within, "within")
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"once: {error}") from None
    if not seconds:
        raise InvalidJob(f"once: within must be more than 0 seconds, or a timedelta, not {within}")
    return {"key": _fact_key(ONCE, name, f":{key}"), "for": timing.tidy(seconds)}


def _fact_key(prefix: str, name: str, identity: str) -> str:
    named = f"{name}\n{identity}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(named, digest_size=16).hexdigest()
    return f"{prefix}:{name[-_LONGEST_NAME:]}:{digest}"


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
    if cls.debounce is not None and cls.once is not None:
        raise JobDefinitionError(
            f"{cls.__name__}: debounce and once do not go together: of debounced jobs the last "
            "dispatch wins, with once the first"
        )
    if cls.debounce is not None:
        delay = timing.tidy(timing.seconds_until(cls.debounce))
        return UniqueRule(max(10 * delay, DEFAULT_FOR), "", delay)
    if cls.unique:
        return UniqueRule(timing.tidy(timing.seconds_until(cls.unique_for)), cls.unique_until)
    for option in ("unique_id", "unique_for", "unique_until"):
        if option == "unique_id" and cls.once is not None:
            continue
        if option in vars(cls) and cls.is_runnable():
            raise JobDefinitionError(
                f"{cls.__name__}.{option} does nothing without unique = True, or debounce"
                + (", or once" if option == "unique_id" else "")
            )
    return None


def once_rule_of(cls: Any) -> OnceRule | None:  # noqa: ANN401 (a job class, which is made from this)
    """Return the rule of a class for its idempotency keys."""
    return None if cls.once is None else OnceRule(timing.tidy(timing.seconds_until(cls.once)))
