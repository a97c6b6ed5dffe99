"""Binning: commands that remove jobs put them into the bin, and say how to take that back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qframe.console.person import person
from qframe.console.text import print_error, say
from qframe.manager import QueueManager
from qframe.operations.bin import BinAction


@contextmanager
def binning(queues: QueueManager, action: str, of: str, *, is_on: bool) -> Iterator[BinAction]:
    """Gives the act of this command, and notes at its end what is in the bin."""
    act = BinAction(queues, action, of, person(), is_on=is_on)
    try:
        yield act
    finally:
        act.close()


def say_with_undo(text: str, act: BinAction) -> None:
    """Prints what was done, and on stderr what can be taken back of it."""
    if text:
        say(text)
    if told := act.told():
        print_error(told, 0)
