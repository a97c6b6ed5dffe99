"""What a job returned, made again from JSON as the annotation of its `handle` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from qframe.jobs import fits
from qframe.jobs.definition import JobDefinition
from qframe.models import kinds
from qframe.models.fields import with_marks

_AS_JSON_HAS_IT = (Any, None, type(None), bool, int, str, dict, list)


def of_class(job_class: type[Any] | None, result: Any) -> Any:  # noqa: ANN401 (JSON, and any type)
    """Return a result of a job class as its `handle` says, or as it is if that says nothing."""
    if job_class is None or not issubclass(job_class, JobDefinition):
        return result
    return _read(_reader_of(job_class), result)  # type: ignore[arg-type] # a class has a hash


def _read(reader: Callable[[str], Any] | None, result: Any) -> Any:  # noqa: ANN401 (as above)
    if reader is None or result is None:
        return result
    try:
        return reader(json.dumps(result))
    except Exception:  # noqa: BLE001 (a validator may raise anything)
        return result


@lru_cache(maxsize=1024)
def _reader_of(job_class: Any) -> Callable[[str], Any] | None:  # noqa: ANN401 (a class)
    return _reader(fits.returns_of(job_class))


def _reader(returns: Any) -> Callable[[str], Any] | None:  # noqa: ANN401 (any annotation)
    if any(returns is each for each in _AS_JSON_HAS_IT) or fits.holds_secret(returns):
        return None
    try:
        return TypeAdapter(with_marks(returns) if kinds.has_any() else returns).validate_json
    except Exception:  # noqa: BLE001 (an annotation may be anything)
        return None
