"""The programs that jobs are moved from, by the word of the command line."""

from __future__ import annotations

from qframe.importing.celery import CeleryMessages
from qframe.importing.found import JobSource
from qframe.importing.resque import ResqueJobs
from qframe.importing.rq import RqJobs

SOURCES: dict[str, type[JobSource]] = {
    each.name: each for each in (CeleryMessages, RqJobs, ResqueJobs)
}
