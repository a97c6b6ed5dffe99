"""AdvanceGroup: the internal job with which a group goes on where steps are made in parts."""

from __future__ import annotations

from typing import Any, ClassVar

from qframe.features.group import Group, advance
from qframe.features.reserved import running_job
from qframe.jobs.definition import JobDefinition


class AdvanceGroup(JobDefinition):
    """Pushes the next jobs in line, where no job of the group ends that would."""

    tries: ClassVar[int | None] = 0
    backoff: ClassVar[Any] = (1, 5, 30)
    display_name: ClassVar[Any] = "group: goes on"

    name: str
    left: str = ""
    """The uuid of a job that no longer has a place."""

    def handle(self) -> None:
        """Fill the free places of the group."""
        context, running = running_job(self)
        advance(Group(context, self.job.queue, self.name), self.left, running)
