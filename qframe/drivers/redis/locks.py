"""Locks of unique jobs in Redis: taken and freed by the scripts that move the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from qframe.drivers.redis.scripts import Command, Script, wrapped
from qframe.unique import Lock

Step = tuple[Lock, str, int]
"""A lock, and what a script does with it: `take`, `retake` or `set`, and the milliseconds it lasts;
or `free`, and the part of the script's reply that says whether the job was moved."""


def locked(command: Command, start: str, steps: Sequence[Step]) -> Command:
    """Give the command that runs a command's script and takes or frees locks in the same step."""
    script = command.script
    if script is None:
        raise TypeError(f"{command.words[0]!r} is not a script")
    _, _, number, *rest = command.words
    count = int(number)
    keys = [*rest[:count], *(start + lock.key for lock, _, _ in steps)]
    words = [word for lock, verb, value in steps for word in (verb, lock.uuid, value)]
    more = _locking(script)
    return Command(
        "EVALSHA", more.digest, len(keys), *keys, *rest[count:], *words, len(steps), script=more
    )


def taking(lock: Lock, delay: float) -> Step:
    """Give the step of a push."""
    milliseconds = max(1, int((lock.seconds + delay) * 1000))
    return lock, "set" if lock.is_token else "take", milliseconds


def retaking(lock: Lock) -> Step:
    """Give the step of a failed job's push: a later dispatch that took its place keeps it."""
    _, verb, milliseconds = taking(lock, 0)
    return lock, "retake" if lock.is_token else verb, milliseconds


@cache
def _locking(script: Script) -> Script:
    return wrapped(script, "locked")
