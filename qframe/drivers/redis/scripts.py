"""The Lua scripts beside this module, by name; called by their SHA1."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


class Script:
    """One script: its text and the digest by which a server knows it."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


class Command:
    """A command to send, with what is sent instead where the server forgot its script.

    An `optional` one may be refused: the next one does as well.
    """

    __slots__ = ("optional", "script", "words")

    def __init__(
        self, *words: str | bytes | float, script: Script | None = None, optional: bool = False
    ) -> None:
        self.words = words
        self.script = script
        self.optional = optional

    def named(self) -> list[str]:
        """Name the keys it touches, which a script is told and the others name first."""
        if self.script is None:
            return [str(word) for word in self.words[1:2]]
        return [str(word) for word in self.words[3 : 3 + int(self.words[2])]]

    def whole(self) -> Command:
        """Give the command with the script's text in place of its digest."""
        if self.script is None:
            return self
        return Command("EVAL", self.script.text, *self.words[2:])


def call(name: str, keys: tuple[str, ...], *arguments: str | bytes | float) -> Command:
    """Give the command that runs a script on its keys."""
    found = script(name)
    return Command("EVALSHA", found.digest, len(keys), *keys, *arguments, script=found)


@cache
def script(name: str) -> Script:
    """Read a script: what is shared, then its own text.

    `NAME+status` can also take notes of tracked jobs, `NAME+batch` count the members of batches.
    `NAME+tracked` is NAME, and behind it the notes of the jobs it has moved; `NAME+counted` counts
    the one it removes; `NAME+counted+tracked` is the first in the second.
    """
    name, *more = name.split("+")
    text = _text(name)
    for each in more:
        if each in _WRAPPERS:
            text = _moving(text, each)
    heads = ["shared", *(_WRAPPERS.get(each, each) for each in more)]
    return Script("\n".join([*map(_text, heads), text]))


def wrapped(script: Script, name: str) -> Script:
    """Give a script that runs another one as its function `move`."""
    return Script(_moving(script.text.decode(), name))


_WRAPPERS = {"tracked": "status", "counted": "batch"}
"""What runs another script as its function `move`, and what stands before both then."""


def _moving(text: str, name: str) -> str:
    return f"local function move(KEYS, ARGV)\n{text}\nend\n{_text(name)}"


def _text(name: str) -> str:
    return (resources.files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")
