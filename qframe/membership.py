"""Which batch a job belongs to, as its payload says, and whether it is a member or tells of one."""

from __future__ import annotations

from typing import Any, NamedTuple

KEY = "batch"
"""The payload's key."""
_LONGEST = 64


class Member(NamedTuple):
    """A member of a batch: `number` is its place, the same in every link of a chain."""

    batch: str
    number: int

    def wire(self) -> dict[str, Any]:
        """Give what a payload says of it."""
        return {"id": self.batch, "n": self.number}


def batch_of(message: dict[str, Any]) -> str | None:
    """Give the id of the batch a payload names, as member or as callback."""
    said = message.get(KEY)
    identity = said.get("id") if isinstance(said, dict) else None
    return identity if isinstance(identity, str) and 0 < len(identity) <= _LONGEST else None


def member_of(message: dict[str, Any]) -> Member | None:
    """Give the member a payload is; None of a callback, or of what could be none."""
    identity = batch_of(message)
    number = message[KEY].get("n") if identity is not None else None
    if identity is None or type(number) is not int or not 0 <= number < 2**31:
        return None
    return Member(identity, number)
