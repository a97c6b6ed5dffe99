"""Middleware: code around a job's run, and the middleware that comes with qframe."""

from qframe.middleware.base import Middleware, store_of
from qframe.middleware.fail_on import FailOn
from qframe.middleware.limits import Limit
from qframe.middleware.rate_limited import RateLimited
from qframe.middleware.skip import Skip, SkipIfBatchCancelled
from qframe.middleware.throttles_exceptions import ThrottlesExceptions
from qframe.middleware.without_overlapping import WithoutOverlapping

__all__ = [
    "FailOn",
    "Limit",
    "Middleware",
    "RateLimited",
    "Skip",
    "SkipIfBatchCancelled",
    "ThrottlesExceptions",
    "WithoutOverlapping",
    "store_of",
]
