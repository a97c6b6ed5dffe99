"""What the marks of jobs that must not overlap say: which did, and how long their key was busy.

A job notes `S number attempt pid moment` at its start and `D number attempt pid moment` as its last
act, by the clock that all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(order=True, frozen=True)
class Run:
    """One start; `until` is when it ended, or when its process was killed in it."""

    begun: float
    until: float
    number: str
    attempt: int
    pid: int
    done: bool


def runs(notes: Iterable[Sequence[str]], killed: Mapping[int, float] = {}) -> list[Run]:
    """Give the runs in the order they began; `killed` says when a process was, by its pid.

    Fails where a run has neither an end nor a killer.
    """
    begun: dict[tuple[str, int, int], float] = {}
    found: list[Run] = []
    for event, *words in notes:
        if event not in {"S", "D"}:
            continue
        number, attempt, pid, moment = words
        run = (number, int(attempt), int(pid))
        if event == "S":
            assert run not in begun, f"{run} began twice"
            begun[run] = float(moment)
        else:
            found.append(Run(begun.pop(run), float(moment), *run, done=True))
    for run, start in begun.items():
        assert run[2] in killed, f"{run} began and never ended"
        found.append(Run(start, max(start, killed[run[2]]), *run, done=False))
    return sorted(found)


def overlaps(found: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Give the runs that began while another one ran."""
    both: list[tuple[Run, Run]] = []
    last: Run | None = None
    for run in found:
        if last is not None and run.begun < last.until:
            both.append((last, run))
        if last is None or run.until > last.until:
            last = run
    return both


def busy(found: Sequence[Run]) -> float:
    """Give the share of the time, from the first start to the last end, in which one ran."""
    worked = sum(run.until - run.begun for run in found)
    return worked / (max(run.until for run in found) - found[0].begun)
