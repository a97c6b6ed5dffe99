"""Middleware: what a job's run goes through, and the ones that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.middleware.base import Middleware as Middleware
    from qframe.middleware.base import store_of as store_of
    from qframe.middleware.fail_on import FailOn as FailOn
    from qframe.middleware.limits import Limit as Limit
    from qframe.middleware.rate_limited import RateLimited as RateLimited
    from qframe.middleware.skip import Skip as Skip
    from qframe.middleware.skip import SkipIfBatchCancelled as SkipIfBatchCancelled
    from qframe.middleware.throttles_exceptions import ThrottlesExceptions as ThrottlesExceptions
    from qframe.middleware.without_overlapping import WithoutOverlapping as WithoutOverlapping
else:  # or type checkers would take any name for one of these
    _PLACES = {
        "FailOn": "fail_on",
        "Limit": "limits",
        "Middleware": "base",
        "RateLimited": "rate_limited",
        "Skip": "skip",
        "SkipIfBatchCancelled": "skip",
        "ThrottlesExceptions": "throttles_exceptions",
        "WithoutOverlapping": "without_overlapping",
        "store_of": "base",
    }
    __all__ = list(_PLACES)

    def __getattr__(name: str) -> object:
        """Import it when it is asked for: the pipeline beside them is part of every run."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 (not before it is needed)

        module = importlib.import_module(f"{__name__}.{_PLACES[name]}")
        found = globals()[name] = getattr(module, name)
        return found
