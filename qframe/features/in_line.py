"""In line: the jobs of groups that have no message yet; read part by part, found and removed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qframe.contracts.browsing import position
from qframe.contracts.step import Operation, Set, Step, Unset
from qframe.features import group, group_lines
from qframe.features.base import attempts
from qframe.features.context import Context
from qframe.features.group import Group
from qframe.features.group_lines import FoundGroup
from qframe.payload import envelope

_GROUPS = 1000
"""So many groups are read at once, and passed for one page at most."""
_AT_ONCE = 100
"""Jobs that are read at once in a search."""
_AT_LEAST = 10
"""So many parts a search reads however late it is, so that a stall hides no job of a short line."""
_FEW = 3
"""In so many parts the place of a job need not be guessed."""


class LinedJob(NamedTuple):
    """A job that stands in line."""

    uuid: str
    queue: str
    group: str
    position: int
    """1 is the next one. Those before it that were cancelled may count."""
    raw: bytes
    key: str
    """The key of its group's fact."""
    number: int


class LinePage(NamedTuple):
    """A part of the jobs in line of a queue, group after group, in their order."""

    jobs: list[LinedJob]
    looked_at: int
    """How many were looked at; also groups, if many had none in line."""
    after: str
    """Where the next part begins; "" if this is the last."""


def page(context: Context, queue: str, limit: int, after: str = "") -> LinePage:
    """Read up to `limit` jobs in line. There may be fewer although others follow."""
    jobs, looked_at = list[LinedJob](), 0
    digest, _, digits = after.partition(":")
    for passed, found in enumerate(_groups(context, queue, digest)):
        own = found.key.removeprefix(group.state_prefix(queue))
        begin = max(found.line.first, position(digits) if own == digest else 0)
        if passed >= _GROUPS:
            return LinePage(jobs, looked_at + passed, f"{own}:0")
        if begin >= found.line.end:
            continue
        if looked_at >= limit:
            return LinePage(jobs, looked_at, f"{own}:{begin}")
        end = min(found.line.end, begin + limit - looked_at)
        jobs += _jobs(context, queue, found, range(begin, end))
        looked_at += end - begin
        if end < found.line.end:
            return LinePage(jobs, looked_at, f"{own}:{end}")
    return LinePage(jobs, looked_at, "")


def find(
    context: Context, queues: Iterable[str], uuid: str, seconds: float = math.inf
) -> tuple[LinedJob | None, bool]:
    """Find a job in line, for about `seconds`; short lines are searched whole.

    Also returns whether it was found, or all were looked at.
    """
    ends, read = time.monotonic() + seconds, 0
    for queue in queues:
        for found in group_lines.lines(context, queue):
            for numbers in _parts(context, found, uuid):
                for job in _jobs(context, queue, found, numbers):
                    if job.uuid == uuid:
                        return job, True
                read += 1
                if read >= _AT_LEAST and time.monotonic() > ends:
                    return None, False
    return None, True


def remove(context: Context, job: LinedJob, also: Sequence[Operation] = ()) -> bool:
    """Remove a job in line; `also` is applied with that. Returns False if it has a message now.

    One with other features is pushed instead, for a caller that ends it.
    """
    entry, has_more = group.entry_key(job.key, job.number), has_more_features(context, job)
    for _ in attempts(f"a group of {job.queue}"):
        state, text = context.backend.read(job.key, entry)
        if state is None or text is None or text.encode() != job.raw:
            return False
        line = Group(context, job.queue, "").line(state)
        is_first = job.number == line.first
        left = replace(line, first=line.first + 1) if is_first else line
        made = Group(context, job.queue, line.name).change(state, left)
        made.append(Unset(entry) if is_first else Set(entry, ""))
        pushed = context.as_it_is(job.raw, job.queue)
        made += group_lines.out_of_line(context, job.key, pushed) if has_more else also
        (result,) = context.backend.apply(Step(None, *made))
        if result.applied:
            return not has_more
    return False


def has_more_features(context: Context, job: LinedJob) -> bool:
    """Whether more belongs to the end of a job than its group."""
    return group_lines.has_more_features(context, context.as_it_is(job.raw, job.queue))


def _groups(context: Context, queue: str, digest: str) -> Iterator[FoundGroup]:
    """Iterate over the groups of a queue, from the one with this digest."""
    if not group_lines.has_had(context, queue):
        return
    prefix, after = group.state_prefix(queue), ""
    of = Group(context, queue, "").line
    if digest.isalnum():
        after = f"{prefix}{digest}"
        (text,) = context.backend.read(after)
        if text is not None:
            yield FoundGroup(after, text, of(text))
    while some := context.backend.scan(prefix, _GROUPS, after):
        for key, text in some:
            yield FoundGroup(key, text, of(text))
        after = some[-1][0]


def _jobs(context: Context, queue: str, found: FoundGroup, numbers: range) -> list[LinedJob]:
    """Read some jobs of a line, without those that were cancelled or have a message now."""
    texts = context.backend.read(*(group.entry_key(found.key, each) for each in numbers))
    jobs = []
    for number, text in zip(numbers, texts, strict=True):
        if text:
            raw = text.encode()
            at = number - found.line.first + 1
            named = envelope.uuid_of(raw), queue, found.line.name
            jobs.append(LinedJob(*named, at, raw, found.key, number))
    return jobs


def _parts(context: Context, found: FoundGroup, uuid: str) -> list[range]:
    """Return the parts of a line; that of the time when the job was dispatched is the first."""
    line, made = found.line, envelope.dispatched_at(uuid)
    begins = [*range(line.first, line.end, _AT_ONCE)]
    if made is not None and len(begins) > _FEW:
        low, high = 0, len(begins)
        while high - low > 1:
            middle = (low + high) // 2
            (text,) = context.backend.read(group.entry_key(found.key, begins[middle]))
            pushed = envelope.dispatched_at(envelope.uuid_of(text.encode())) if text else None
            if pushed is None:
                break
            low, high = (middle, high) if pushed <= made else (low, middle)
        near = begins[low]
        begins.sort(key=lambda begin: abs(begin - near))
    return [range(begin, min(begin + _AT_ONCE, line.end)) for begin in begins]
