"""Jobs of which only so many run at once, and how many did by the ledger."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.process import Project


def push(
    project: Project,
    count: int,
    *,
    queue: str = "mail",
    job: str = "Waits",
    seconds: float = 0.3,
    first: int = 0,
) -> None:
    """Queue jobs, each with a word of its own."""
    for number in range(first, first + count):
        word = f"{queue}-{job}-{number}"
        project.push(f"at_once.{job}", {"word": word, "seconds": seconds}, queue=queue)


def ended(project: Project, prefix: str = "") -> int:
    return len({line[1] for line in project.notes("end") if line[1].startswith(prefix)})


def ended_before(project: Project, prefix: str, others: str) -> int:
    """Count by the ledger how many of `prefix` had ended when the last of `others` did."""
    ends = [line[1] for line in project.notes("end")]
    last = max(place for place, word in enumerate(ends) if word.startswith(others))
    return sum(word.startswith(prefix) for word in ends[:last])


def most_at_once(
    project: Project, prefix: str, killed: Mapping[int, float] | None = None, since: float = 0
) -> int:
    """Count by the ledger how many ran at once at most; `killed` says when processes were."""
    moments: list[tuple[float, int]] = []
    ends = {tuple(line[1:3]): float(line[3]) for line in project.notes("end")}
    for line in project.notes("start"):
        if line[1].startswith(prefix):
            moments.append((float(line[3]), 1))
            gone = (killed or {}).get(int(line[4]), float("inf"))
            end = min(ends.get((line[1], line[2]), float("inf")), gone)
            moments.append((end, -1))
    running = most = 0
    for moment, change in sorted(moments):
        running += change
        most = max(most, running) if moment >= since else most
    return most


def permits(project: Project) -> list[str]:
    """Give the permits that jobs have."""
    return project.queue.store.keys("permit:")
