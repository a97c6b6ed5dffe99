"""Changes: tells when source files under a folder change, by watchfiles, which is an extra."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from qframe.exceptions import ConfigurationError


def watching(root: Path) -> Callable[[Callable[[], None]], None]:
    """Give what begins to watch, in a thread, and calls a function after each change.

    Python files and those of the configuration count; hidden folders and libraries do not.
    Raises `ConfigurationError` where watchfiles is not installed.
    """
    try:
        import watchfiles  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigurationError(
            "--watch needs the package watchfiles: pip install 'qframe[watch]'"
        ) from None

    def begin(ring: Callable[[], None]) -> None:
        def watch() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            only = watchfiles.PythonFilter(extra_extensions=(".toml",))
            for _ in watchfiles.watch(root, watch_filter=only, raise_interrupt=False):
                ring()

        threading.Thread(target=watch, name="qframe-watch", daemon=True).start()

    return begin
