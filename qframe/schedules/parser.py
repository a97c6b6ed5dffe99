"""Parser: reads when a schedule is due from a text, as on the command line and the page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line
from qframe.schedules.cadences import Cadences
from qframe.schedules.calendar import Calendar
from qframe.schedules.options import ScheduleOptions


class Written(Cadences):
    """The result of parsing a text; `read` makes it."""

    def __init__(self) -> None:
        self.options = ScheduleOptions()


_WORDS = {name for name in vars(Cadences) if not name.startswith("_") and name != "options"}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WHOLE = re.compile(r"[0-9]{1,9}")


def read(text: str) -> Calendar:
    """Parse `*/5 * * * *`, `every 90s`, `daily_at 13:00; weekdays`, `at 2026-12-01T10:00Z`.

    Laravel's methods with their arguments, separated by semicolons. Raises `ConfigurationError`.
    """
    cadences = Written()
    for part in text.split(";"):
        words = part.split()
        if not words:
            continue
        _add_words(cadences, words)
    if not cadences.options.calendar.is_set:
        raise ConfigurationError(f"{one_line(text, 80)!r} does not say when")
    return cadences.options.calendar


def _add_words(cadences: Cadences, words: list[str]) -> None:
    name, *given = words
    name = name.lower().replace("-", "_")
    if name == "every" and len(given) == 1:
        cadences.every(_interval(given[0]))
    elif name == "at" and len(given) == 1 and len(given[0]) > 8:  # noqa: PLR2004 (no time of day)
        cadences.at(_moment(given[0]))
    elif name in _WORDS and name != "cron":
        arguments = [int(each) if _WHOLE.fullmatch(each) else each for each in given]
        try:
            getattr(cadences, name)(*arguments)
        except TypeError:
            taken = " ".join(given) or "nothing"
            raise ConfigurationError(f"{name} does not take {one_line(taken, 60)}") from None
    elif name == "timezone":
        raise ConfigurationError("the time zone is an option of its own: --timezone Europe/Vienna")
    elif name != "cron" and name.replace("_", "").isalpha():  # no field of a cron expression
        known = sorted(_WORDS)
        raise ConfigurationError(
            f"{one_line(words[0], 40)!r} is not a method for times{nearest(name, known)}: write "
            "one of Laravel's, such as daily_at 13:00, or a cron expression"
        )
    else:
        cadences.cron(" ".join(words))


def _interval(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:].lower()
    if text.isdecimal():
        number, unit = text, "s"
    if not number.isdecimal() or unit not in _UNITS:
        raise ConfigurationError(f"{one_line(text, 40)!r} is no interval, like 90s, 5m, 2h, 1d")
    return timedelta(seconds=int(number[:9]) * _UNITS[unit])


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{one_line(text, 40)!r} is no moment, like 2026-12-01T10:00+01:00"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
