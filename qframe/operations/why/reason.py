"""Reason: one sentence about what keeps a job from running, and when that was read."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel

from qframe.payload.text import one_line, printable
from qframe.payload.timing import iso, lasting

Level = Literal["mend", "wait", "fine"]

NOTHING_TO_MEND, TO_MEND, UNKNOWN = 0, 1, 3
"""Exit codes of `qframe why`."""

_LEVELS: dict[str, Level] = {
    "silent": "mend",
    "unsigned": "mend",
    "unreadable": "mend",
    "failed": "mend",
    "unknown class": "mend",
    "paused": "mend",
    "on hold": "mend",
    "no worker": "mend",
    "worker died": "mend",
    "quiet": "mend",
    "elsewhere": "mend",
    "buried": "mend",
    "schedule off": "mend",
    "not relayed": "mend",
    "blocked": "mend",
    "absent": "mend",
    "cancelling": "wait",
    "superseded": "wait",
    "expired": "wait",
    "event": "wait",
    "before it": "wait",
    "group": "wait",
    "limit": "wait",
    "rate limit": "wait",
    "lock": "wait",
    "exceptions": "wait",
    "delayed": "wait",
    "lease": "wait",
    "moved": "wait",
    "fewer workers": "wait",
    "busy": "wait",
    "order": "wait",
    "turn": "wait",
    "schedule": "wait",
    "held": "wait",
    "causes": "fine",
    "running": "fine",
    "ended": "fine",
    "ready": "fine",
}
"""All kinds of reasons, the first to mend first; and whether somebody has to mend it."""
_ORDER = [*_LEVELS]
_LONGEST = 2000
"""Characters of a sentence that are shown: names of other programs may be long."""


class Reason(BaseModel):
    """One reason, in a sentence."""

    kind: str
    text: str
    mend: str = ""
    """What mends it: a command, or what to do; "" if it passes by itself, or cannot be mended."""
    level: Level
    """`mend`: it stays until somebody acts; `wait`: it passes by itself; `fine`: it is none."""
    read_at: str
    """When what it says was read (UTC)."""


class Explanation(BaseModel):
    """Why one job does not run, or what holds a queue or class up."""

    about: str
    """`job`, `queue`, `class`, or `nothing` if nothing is known of what was asked for."""
    uuid: str = ""
    job: str = ""
    connection: str = ""
    queue: str = ""
    state: str
    """In a few words, how it stands."""
    reasons: list[Reason]
    """All that hold at once, the first to mend first."""
    unknown: list[str]
    """What cannot be known here, or was not looked at."""
    read_at: str
    seconds: float
    """How long it took to read all this."""

    @property
    def code(self) -> int:
        """The exit code that it stands for."""
        if self.about == "nothing":
            return UNKNOWN
        needed = any(each.level == "mend" for each in self.reasons)
        return TO_MEND if needed else NOTHING_TO_MEND


class Why(BaseModel):
    """All that is known of what was asked for: a queue may be on several connections."""

    asked: str
    found: list[Explanation]

    @property
    def code(self) -> int:
        """The worst exit code of them."""
        codes = [each.code for each in self.found]
        return TO_MEND if TO_MEND in codes else max(codes, default=UNKNOWN)


class Reasons:
    """The reasons of one explanation in the making."""

    def __init__(self) -> None:
        self.found: list[Reason] = []
        self.unknown: list[str] = []
        self.began = time.time()

    def add(self, kind: str, text: str, at: float, mend: str = "") -> None:
        """Adds a sentence about what was read at a moment (epoch seconds)."""
        level = _LEVELS.get(kind, "wait")  # a middleware of a program may have a kind of its own
        said = {"text": printable(text, _LONGEST), "mend": printable(mend, _LONGEST)}
        self.found.append(Reason(kind=kind, **said, level=level, read_at=clock(at)))

    def cannot_know(self, text: str) -> None:
        """Adds what cannot be known, once."""
        if text not in self.unknown:
            self.unknown.append(text)

    def has(self, *kinds: str) -> bool:
        """Whether there is a reason of one of these kinds."""
        return any(each.kind in kinds for each in self.found)

    @property
    def in_order(self) -> list[Reason]:
        """The reasons, the first to mend first."""

        def rank(reason: Reason) -> int:
            return _ORDER.index(reason.kind if reason.kind in _LEVELS else "limit")

        return sorted(self.found, key=rank)

    def explained(
        self,
        about: str,
        state: str,
        *,
        uuid: str = "",
        job: str = "",
        connection: str = "",
        queue: str = "",
    ) -> Explanation:
        """Returns the explanation with these reasons."""
        return Explanation(
            about=about,
            uuid=uuid,
            job=job,
            connection=connection,
            queue=queue,
            state=state,
            reasons=self.in_order,
            unknown=self.unknown,
            read_at=clock(self.began),
            seconds=round(max(0.0, time.time() - self.began), 3),
        )


def command(*words: str) -> str:
    """Returns a command to copy: names of other programs are quoted for the shell."""
    return shlex.join(("qframe", *(one_line(each, 300) for each in words)))


def clock(epoch: float) -> str:
    """Formats a moment with its tenths of a second, for what may be otherwise a second later."""
    whole = math.floor(epoch)
    return f"{iso(whole)}.{int((epoch - whole) * 10)}"


def ago(epoch: float | None) -> str:
    """Returns how long ago a moment was; "" if it is unknown."""
    return "" if not epoch else f"{lasting(max(0.0, time.time() - epoch))} ago"


def until(epoch: float) -> str:
    """Returns a moment to come, and how far off it is."""
    return f"until {iso(epoch)} UTC, in {lasting(max(0.0, epoch - time.time()))}"


def together(words: Iterable[str], most: int = 3) -> str:
    """Joins a few names: `a, b and 5 others`."""
    every = [*words]
    if len(every) <= 1:
        return "".join(every)
    if len(every) <= most:
        return f"{', '.join(every[:-1])} and {every[-1]}"
    return f"{', '.join(every[:most])} and {len(every) - most:,} others"
