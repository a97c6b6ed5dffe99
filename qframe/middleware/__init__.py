"""Middleware: what a job's run goes through, and the ones that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.middleware.base import Middleware
    from qframe.middleware.fail_on import FailOn
    from qframe.middleware.limits import Limit
    from qframe.middleware.rate_limited import RateLimited
    from qframe.middleware.skip import Skip
    from qframe.middleware.skip_if_batch_cancelled import SkipIfBatchCancelled
    from qframe.middleware.stores import store_of
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


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    _PLACES = {
        "FailOn": "fail_on",
        "Limit": "limits",
        "Middleware": "base",
        "RateLimited": "rate_limited",
        "Skip": "skip",
        "SkipIfBatchCancelled": "skip_if_batch_cancelled",
        "ThrottlesExceptions": "throttles_exceptions",
        "WithoutOverlapping": "without_overlapping",
        "store_of": "stores",
    }

    def __getattr__(name: str) -> object:
        """Import it when it is asked for: the pipeline beside them is part of every run."""
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 (not before it is needed)

        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{place}"), name)
        return found
