"""Lines of groups: looked at, counted and cleared, by who operates a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from qframe.contracts.step import Expect, Operation, Set, Step, Unset
from qframe.features.base import Pushing
from qframe.features.context import Context, push_of
from qframe.features.group import (
    KEY,
    Group,
    GroupLine,
    advance,
    are_kept,
    entry_key,
    marker_key,
    state_prefix,
    turn_key,
)
from qframe.payload import envelope

if TYPE_CHECKING:
    from qframe.contracts.failed import FailedJob

_MOST_GROUPS = 100_000
_AT_ONCE = 100
"""Jobs in line that are removed in one step."""


class FoundGroup(NamedTuple):
    """A group that has jobs."""

    key: str
    text: str
    """What its fact holds."""
    line: GroupLine


def has_had(context: Context, queue: str) -> bool:
    """Whether jobs of groups were ever in line in a queue."""
    return are_kept(context) and context.backend.read(marker_key(queue)) != [None]


def lines(context: Context, queue: str) -> list[FoundGroup]:
    """Return the groups of a queue that have jobs."""
    if not has_had(context, queue):
        return []
    of = Group(context, queue, "").line
    found = context.backend.scan(state_prefix(queue), _MOST_GROUPS)
    return [FoundGroup(key, text, of(text)) for key, text in found]


def waiting_queues(context: Context) -> set[str]:
    """Return the queues that have jobs in line: they have no message if a failed job is first."""
    if not are_kept(context):
        return set()
    marks = context.backend.scan(marker_key(""), _MOST_GROUPS)
    names = (key.removeprefix(marker_key("")) for key, _ in marks)
    return {name for name in names if count(context, name)}


def count(context: Context, queue: str) -> int:
    """Count the jobs of a queue that stand in line."""
    return sum(each.line.waiting for each in lines(context, queue))


def clear(context: Context, queue: str) -> int:
    """Remove the jobs in line. Returns how many there were.

    Those with other features are pushed instead, for a caller that ends them one by one.
    """
    total = 0
    for found in lines(context, queue):
        while (removed := _shorten(context, queue, found.key)) is not None:
            total += removed
    return total


def _shorten(context: Context, queue: str, key: str) -> int | None:
    """Remove some jobs of one line. Returns how many; None if there are none."""
    (text,) = context.backend.read(key)
    line = Group(context, queue, "").line(text)
    if not line.waiting:
        return None
    end, removed = min(line.end, line.first + _AT_ONCE), 0
    left = replace(line, first=end)
    made: list[Operation] = [Expect(key, text)]
    made.append(Set(key, left.text()) if left.placed or left.waiting else Unset(key))
    for entry, found in _in_line(context, key, range(line.first, end)):
        made.append(Unset(entry))
        if found:
            job = context.as_it_is(found.encode(), queue)
            has_more = has_more_features(context, job)
            made += out_of_line(context, key, job) if has_more else []
            removed += not has_more
    (result,) = context.backend.apply(Step(None, *made))
    return removed if result.applied else 0


def forget_missing(context: Context, queue: str, is_there: Callable[[str], bool]) -> None:
    """Take the places of jobs back that are nowhere any more."""
    for key, _, line in lines(context, queue):
        group = Group(context, queue, line.name)
        for uuid in line.placed:
            if key == group.key and not is_there(uuid):
                advance(group, uuid)


def has_more_features(context: Context, job: Pushing) -> bool:
    """Whether more belongs to the end of a job than its group."""
    return len(context.features_of(job.message)) > 1


def out_of_line(context: Context, key: str, job: Pushing) -> list[Operation]:
    """Return the operations that push a job from the line of a group, without a place."""
    uuid = envelope.uuid(job.message)
    return [*([Unset(turn_key(key, uuid))] if uuid and context.in_parts else []), push_of(job)]


def _in_line(context: Context, key: str, numbers: range) -> list[tuple[str, str | None]]:
    """Return the facts of jobs in line: keys and values."""
    entries = [entry_key(key, number) for number in numbers]
    return [*zip(entries, context.backend.read(*entries), strict=True)] if entries else []


def forgetting(context: Context, record: FailedJob) -> Sequence[Operation]:
    """Return the operations by which a group goes on whose failed job is forgotten."""
    if f'"{KEY}"'.encode() not in record.payload:
        return ()
    message = context.as_it_is(record.payload, record.queue).message
    group, uuid = Group.of(context, record.queue, message), envelope.uuid(message)
    if group is None or uuid is None:
        return ()
    # In parts nobody would repeat a push that breaks off: a job does it.
    return [group.advancing(uuid)] if context.in_parts else group.left(group.read(), uuid)
