"""Reload: watches source files under a folder with watchfiles, an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import ConfigurationError


def watching(root: Path) -> Callable[[Callable[[], None]], None]:
    """Returns what starts a thread that calls a function after each change.

    Python files and those of the configuration count; hidden folders and libraries do not. Raises
    `ConfigurationError` if watchfiles is not installed.
    """
    try:
        import watchfiles  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigurationError(
            "--watch needs the package watchfiles: pip install 'qframe[watch]'"
        ) from None

    def begin(changed: Callable[[], None]) -> None:
        def watch() -> None:
            only = watchfiles.PythonFilter(extra_extensions=(".toml",))
            for _ in watchfiles.watch(root, watch_filter=only, raise_interrupt=False):
                changed()

        start_thread("qframe-watch", watch)

    return begin
