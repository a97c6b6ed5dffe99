"""Tags of jobs, for lists and filters; at Horizon's place in the payload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qframe.contracts.job import Job
from qframe.exceptions import InvalidJob, InvalidPayload
from qframe.payload.text import one_line

KEY = "tags"
"""Payload key: the tags."""
MOST = 20
LONGEST = 100


def of(job: Any, name: str) -> list[str]:  # noqa: ANN401 (a job, from a higher layer)
    """Return the tags of a job, each once. Raises `InvalidJob` for invalid ones."""
    given = job.tags() if callable(job.tags) else job.tags
    if isinstance(given, str) or not isinstance(given, list | tuple | set | frozenset):
        raise InvalidJob(f"{name}: tags are a list of texts, not {_shown(given)}")
    ordered = sorted(given, key=str) if isinstance(given, set | frozenset) else given
    for each in ordered:
        if not isinstance(each, str) or not each.strip():
            raise InvalidJob(f"{name}: a tag is a text that is not empty, not {_shown(each)}")
        if len(each) > LONGEST or not each.isprintable():
            raise InvalidJob(
                f"{name}: a tag has at most {LONGEST} characters, all printable, "
                f"unlike {_shown(each)}"
            )
    found = list(dict.fromkeys(ordered))
    if len(found) > MOST:
        raise InvalidJob(f"{name}: a job has at most {MOST} tags, not {len(found)}")
    return found


def read(payload: Mapping[str, Any]) -> list[str]:
    """Return the tags in a payload of any origin."""
    tags = payload.get(KEY)
    if not isinstance(tags, list):
        return []
    return [str(tag)[:LONGEST] for tag in tags[:MOST] if isinstance(tag, str | int) and tag != ""]


def of_reserved(job: Job) -> list[str]:
    """Return the tags of a reserved job; [] if its payload is refused."""
    try:
        return read(job.payload)
    except InvalidPayload:
        return []


def _shown(value: object) -> str:
    return one_line(repr(value), 60)
