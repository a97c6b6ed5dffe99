"""Logs: filters out records that another handler has already written to the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator


def unwritten(level: int) -> Callable[[logging.LogRecord], bool]:
    """Returns the filter of a handler of the root logger.

    It drops what a logger has written to the terminal by a handler of its own, as Django's do.
    Below `level` that handler decides: what it drops is dropped here, too.
    """

    def is_to_be_written(record: logging.LogRecord) -> bool:
        nearer = [each for each in _handlers_below_root(record.name) if _is_for_terminal(each)]
        if any(_writes(each, record) for each in nearer):
            return False
        return record.levelno >= level or not nearer

    return is_to_be_written


def _handlers_below_root(name: str) -> Iterator[logging.Handler]:
    """Yields the handlers that get a record of this logger before those of the root."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        yield from logger.handlers
        logger = logger.parent


def _is_for_terminal(handler: logging.Handler) -> bool:
    is_file = isinstance(handler, logging.FileHandler)
    return isinstance(handler, logging.StreamHandler) and not is_file


def _writes(handler: logging.Handler, record: logging.LogRecord) -> bool:
    return record.levelno >= handler.level and bool(handler.filter(record))
