"""The suite's tests on each of our backends."""

from qframe.testing.conformance.test_concurrency import *  # noqa: F403
