"""The suite's tests on each of our backends."""

from qframe.testing.conformance.test_health import *  # noqa: F403
