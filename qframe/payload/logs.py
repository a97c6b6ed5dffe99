"""Escapes log records about jobs, so that a payload cannot forge lines.

Names, queues, ids and error messages come from anybody who may push. All loggers of qframe escape
unprintable characters in them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping

from qframe.payload.text import printable

_LOGGERS = ("qframe", "qframe.events", "qframe.otel")
_LONGEST = 100_000
_INDENT = "  "


class Escaping(logging.Filter):
    """Escapes the arguments of a record, and the text of its exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape unprintable characters; a format with a line break keeps it."""
        args = record.args
        if args and not isinstance(args, Mapping):
            lines = "\n" in str(record.msg)
            record.args = tuple(_harmless(each, lines=lines) for each in args)
        elif not args and not str(record.msg).isprintable():
            record.msg = _lines(str(record.msg))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not all(map(str.isprintable, _messages(error))):
            text = "".join(traceback.format_exception(error)).rstrip("\n")
            record.exc_text = "\n".join(_INDENT + line for line in _lines(text).split("\n"))
        return True


def install() -> None:
    escaping = Escaping()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(escaping)


def _harmless(value: object, *, lines: bool) -> object:
    if not isinstance(value, str | BaseException):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 (an exception whose own __str__ raises; logging says so)
        return value
    if text.isprintable():
        return value
    return _lines(text) if lines else printable(text, _LONGEST)


def _lines(text: str) -> str:
    """Escape everything except line breaks and tabs."""
    return "\n".join(
        "\t".join(printable(part, _LONGEST) for part in line.split("\t"))
        for line in text.split("\n")
    )


def _messages(error: BaseException) -> list[str]:
    """Return the messages of an exception and its causes."""
    found, seen = list[str](), set[int]()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        try:
            found.append(str(each))
        except Exception:  # noqa: BLE001 (as above)
            found.append("\n")
        found += map(str, getattr(each, "__notes__", ()))
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return found
