"""Commands as bytes, and the Lua scripts beside this module, called by their SHA1."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

from hiredis import pack_command

from qframe import forks

_WITH_FACTS = {"apply", "start"}

Word = str | bytes | int | float


class Script:
    """A script: its text, and the digest that identifies it on a server."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


class RedisCommand:
    """A packed command; for a script also how to send its text, if the server has forgotten it."""

    __slots__ = ("_words", "packed", "script")

    def __init__(
        self, packed: bytes, script: Script | None = None, words: tuple[Word, ...] = ()
    ) -> None:
        self.packed = packed
        self.script = script
        self._words = words

    def whole(self) -> bytes:
        """Return the command with the script's text in place of its digest."""
        if self.script is None:
            return self.packed
        return _packed(("EVAL", self.script.text, *self._words[2:]))


def command(*words: Word) -> RedisCommand:
    """Return a plain command. Raises `UnicodeEncodeError` for text that UTF-8 cannot encode."""
    return RedisCommand(_packed(words))


def call(name: str, keys: Sequence[str | bytes], *arguments: Word) -> RedisCommand:
    """Return the command that runs a script on its keys."""
    found = script(name)
    words = ("EVALSHA", found.digest, len(keys), *keys, *arguments)
    return RedisCommand(_packed(words), found, words)


_packed: Callable[[tuple[Word, ...]], bytes] = pack_command  # type: ignore[assignment] # its stub knows only one word


@cache
def script(name: str) -> Script:
    """Read a script with the shared code before it."""
    parts = ("shared", "facts", name) if name in _WITH_FACTS else ("shared", name)
    with forks.undisturbed():  # may import
        folder = resources.files(__package__) / "lua"
        texts = [(folder / f"{each}.lua").read_text("utf-8") for each in parts]
    return Script("\n".join(texts))
