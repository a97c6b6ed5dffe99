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
    """Read a script: what is shared, then its own text."""
    folder = resources.files(__package__) / "lua"
    shared, own = ((folder / f"{part}.lua").read_text("utf-8") for part in ("shared", name))
    return Script(f"{shared}\n{own}")
