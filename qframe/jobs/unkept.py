"""Unkept: the durable calls of a job that no worker runs; nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from qframe.exceptions import QframeError


class Unkept:
    """Calls the function of each step. Nothing can sleep or wait for an event."""

    @property
    def is_stopping(self) -> bool:
        """Return False."""
        return False

    def step(
        self,
        _name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        _within: object,
    ) -> Any:  # noqa: ANN401 (what the function returns)
        """Call the function."""
        return function(*arguments, **keywords)

    def sleep(self, name: str, delay: object) -> NoReturn:  # noqa: ARG002 (it raises for any)
        """Raise `QframeError`."""
        raise QframeError(f"the job cannot sleep ({name}): no worker runs it")

    def wait_for_event(self, name: str, timeout: object) -> NoReturn:  # noqa: ARG002 (as above)
        """Raise `QframeError`."""
        raise QframeError(f"the job cannot wait for the event {name}: no worker runs it")

    def cursor(self, _name: str, default: Any) -> Any:  # noqa: ANN401 (its type)
        """Return the default."""
        return default

    def checkpoint(self, name: str, value: object) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def call_again(self) -> None:
        """Nothing: each name may be used again anyway."""
