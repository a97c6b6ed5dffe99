"""The timeout of a job runs from when its handler begins; a hang before that is ended, too."""

from __future__ import annotations

import pytest

from tests.support.process import Project


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "event"),
    [((), "JobProcessing"), (("--isolate", "--grace", 0.5), "JobForked")],
    ids=["alone", "isolated"],
)
def test_the_time_until_the_handler_begins_is_not_the_job_s(
    project: Project, options: tuple[object, ...], event: str
) -> None:
    project.configure(f'[listeners]\n{event} = ["begins:late"]')
    project.write("begins.py", "import time\n\ndef late(event): time.sleep(4)\n")
    project.write(
        "timed.py",
        "from jobs import Sleep\n\nclass Timed(Sleep):\n    timeout = 5\n",
    )
    project.push("timed.Timed", {"seconds": 3})
    project.drain("--tries", 1, *options)
    assert project.notes("end")


@pytest.mark.slow
def test_a_hang_until_the_handler_begins_is_ended(project: Project) -> None:
    project.configure('[listeners]\nJobForked = ["begins:never"]')
    project.write("begins.py", "import time\n\ndef never(event): time.sleep(600)\n")
    project.push("Sleep", {"seconds": 1}, timeout=1)
    result = project.drain("--tries", 1, "--isolate", "--grace", 0.5)
    assert "JobTimedOut" in project.failure().exception, result.out
