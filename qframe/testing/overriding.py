"""override_resource: a test's own factory in place of a resource's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from qframe.resources import plans


def override_resource(
    factory: Callable[..., Any], other: Callable[..., Any]
) -> AbstractContextManager[None]:
    """In the body, jobs get what `other` makes in place of what `factory` does.

    `with override_resource(make_pool, FakePool): drain()`. `other` is any factory that a `Resource`
    takes, such as a class, or `lambda: pool`. It applies in all threads of the process; the inner
    one of two counts. Raises `JobDefinitionError` for what is no factory.
    """
    return plans.overridden(factory, other)
