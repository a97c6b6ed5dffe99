"""A record of what happened to jobs that no death of a process can take back.

One file opened for appending, one `write` per line: `P id` before a push, `E id` after it
returned; `S id attempt pid` at a job's start; `D id` as the last act of its body; `A id` after its
acknowledgement returned.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


class Ledger:
    """The writing side; each process has its own."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, *words: object) -> None:
        line = " ".join((event, *map(str, words))) + "\n"
        os.write(self._file, line.encode())


@dataclass
class Account:
    """What a ledger adds up to."""

    pushing: Counter[str] = field(default_factory=Counter)
    pushed: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    attempts: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Path) -> Account:
        account = cls()
        kinds = {
            "P": account.pushing,
            "E": account.pushed,
            "S": account.started,
            "D": account.done,
            "A": account.acknowledged,
        }
        for line in file.read_text().splitlines():
            event, name, *rest = line.split(" ")
            kinds[event][name] += 1
            if event == "S":
                account.attempts.setdefault(name, []).append(int(rest[0]))
        return account

    def lost(self, left: set[str]) -> set[str]:
        """Give the accepted jobs that were neither done nor are left in the queue."""
        return self.pushed.keys() - self.done.keys() - left

    def ghosts(self) -> set[str]:
        """Give the jobs that ran but were never sent."""
        return self.started.keys() - self.pushing.keys()

    def acknowledged_twice(self) -> set[str]:
        return {name for name, count in self.acknowledged.items() if count > 1}

    def ran_again(self) -> int:
        """Count the runs that reached their end after another one had."""
        return sum(count - 1 for count in self.done.values())
