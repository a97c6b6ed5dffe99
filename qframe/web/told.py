"""Told: the line about an action, on the page from which it was asked, and how to undo it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from qframe.operations.actions.wanted import Done, Wanted
from qframe.payload.text import one_line

KEYS = ("said", "undo", "bulk")
"""The parameters of an address that tell of an action."""
_REVERSED = {
    "pause": "resume",
    "resume": "pause",
    "silence": "unsilence",
    "unsilence": "silence",
    "quiet": "unquiet",
    "unquiet": "quiet",
    "pause-schedule": "resume-schedule",
    "resume-schedule": "pause-schedule",
}
"""The actions that can be undone, each with the one that does it."""
_UNDOING = {*_REVERSED.values(), "scale", "remove-schedule", "unhold", "undo"}
"""What a page offers as undo: at most what is done again with one click, or asks first."""
BULK_WORDS = {
    "retry": {"running": "Queueing failed jobs again", "done": "Queued failed jobs again"},
    "watch-retry": {"running": "Choosing failed jobs", "done": "Chose failed jobs to retry"},
    "forget": {"running": "Removing failed jobs", "done": "Removed failed jobs"},
    "cancel": {"running": "Cancelling jobs", "done": "Cancelled jobs"},
    "check-payloads": {"running": "Checking stored jobs", "done": "Checked stored jobs"},
}
for _words in BULK_WORDS.values():
    _words |= {"cancelled": "Stopped", "broken": "Not finished"}


class Told(NamedTuple):
    """What a page tells of the last action."""

    text: str
    undo: str
    """The action that undoes it; ""."""
    of: Mapping[str, str]
    """What that acts on."""
    bulk: str
    """The id of an action in the background."""

    @property
    def label(self) -> str:
        """The words on the button that undoes it."""
        number = self.of.get("number", "")
        return f"Undo: back to {number[:6]}" if self.undo == "scale" else "Undo"

    @classmethod
    def of_query(cls, get: Callable[[str], str]) -> Told:
        """Reads the parameters of an address; one that undoes nothing is no undo."""
        action, _, of = get("undo").partition("?")
        known = action if action in _UNDOING else ""
        said = get("said")[:300]
        text = f"{said[0].upper()}{said[1:]}." if said else ""
        return cls(text, known, dict(parse_qsl(of)), get("bulk")[:40])


def parameters(action: str, wanted: Wanted, done: Done) -> list[tuple[str, str]]:
    """Returns the parameters that tell of an action."""
    if done.bulk:
        return [("bulk", done.bulk)]
    told = [("said", one_line(done.text, 200))]
    of = dict(done.undo)
    if action in _REVERSED and done.changed:
        of = {"action": _REVERSED[action], "connection": wanted.connection, "queue": wanted.queue}
        of |= {"cause": wanted.cause, "id": wanted.id}
    if of:
        undo = of.pop("action")
        given = {key: value for key, value in of.items() if value}
        told.append(("undo", f"{undo}?{urlencode(given)}"))
    return told
