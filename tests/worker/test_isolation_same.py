"""What becomes of a job is the same with `--isolate`: tests of the worker, run with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.process import Process, Project
from tests.worker.test_attempts import (  # noqa: F401 (collected here, too)
    test_a_job_that_started_in_time_does_not_expire,
    test_an_error_after_a_release_is_only_reported,
    test_async_hooks,
    test_dont_handle_ends_a_job_as_skipped,
    test_fail_by_hand_whatever_tries_are_left,
    test_functions_run,
    test_hooks_are_called_in_order_and_harm_nothing,
    test_retry_until_in_the_past_lets_no_job_start,
    test_the_failure_tells_every_attempt,
    test_whatever_a_job_raises_is_a_failure,
)

pytestmark = pytest.mark.on_redis_too


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Project.start

    def isolated(self: Project, *arguments: object, **more: Any) -> Process:
        if arguments[0] == "work":
            arguments = (*arguments, "--isolate")
        return start(self, *arguments, **more)

    monkeypatch.setattr(Project, "start", isolated)
