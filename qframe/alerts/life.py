"""The life of an alert: raised once, told again while it lasts, over when all was well for a while.

Values only: whoever looks gives what is wrong now, and gets the state as it is then, with what is
to be told. So it is the same on any backend, and who writes it decides who tells.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from qframe.payload.text import one_line
from qframe.rules import Rule

log = logging.getLogger("qframe")

RAISED, REMINDED, RESOLVED = "raised", "reminder", "resolved"
_MOST = 200
"""So many alerts are on at most."""
_MOST_TELLINGS = 500
_FORGOTTEN = 600.0
"""Seconds after which an alert goes whose rule nobody has: until then, another version may."""
_GIVEN_UP = 3600.0
"""Seconds after which something is told no more that nobody took."""
_LONGEST_PAUSE = 300.0


class RuleFinding(NamedTuple):
    """Something that is wrong now."""

    rule: Rule
    connection: str
    what: str
    """The queue, class or worker that it is about; "" where that is the whole connection."""
    value: float
    text: str
    settle: Callable[[], None] | None = None
    """What is to be done once it is written that this is told."""

    @property
    def key(self) -> str:
        """Tell it from others."""
        return f"{self.rule.text}\n{self.connection}\n{self.what}"


@dataclass
class Evaluation:
    """What a look has found, and which rules could not be looked at on which connections."""

    found: list[RuleFinding] = field(default_factory=list)
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    """By the rule's text and the connection, "" for all of them: why."""


class Alert(BaseModel):
    """Something that is, or is about to be, told of. Epoch times."""

    id: str
    rule: str
    connection: str
    what: str
    value: float
    text: str
    since: float
    """When it was first found."""
    seen: float
    """When it was last found."""
    quiet: float = 0.0
    """Since when it is not found any more; 0: it is."""
    told: float = 0.0
    """When it was last told; 0: it has not lasted long enough yet."""


class Telling(BaseModel):
    """One thing to be told by one channel, until that has taken it."""

    id: str
    channel: str
    event: str
    alert: Alert
    at: float
    due: float
    tries: int = 0
    begun: float = 0.0
    """When somebody began; 0: nobody does just now."""


class AlertRecords(BaseModel):
    """All that is kept of alerts, as one text."""

    number: int = 0
    """Grows with each change, so that no state comes again."""
    alerts: dict[str, Alert] = {}
    tellings: list[Telling] = []

    @classmethod
    def read(cls, text: str | None) -> AlertRecords:
        """Read what was written; what another version wrote differently is as nothing."""
        try:
            return cls() if text is None else cls.model_validate_json(text)
        except ValidationError:
            return cls()

    def on(self) -> list[Alert]:
        """Give the alerts that are on, the latest first."""
        return sorted((each for each in self.alerts.values() if each.told), key=lambda a: -a.since)

    def settle(self, seen: Evaluation) -> None:
        """Do what is to be done of what is told."""
        for each in seen.found:
            if each.settle is not None and each.key in self.alerts and self.alerts[each.key].told:
                each.settle()

    # -- a look -----------------------------------------------------------------------------------

    def look(self, seen: Evaluation, terms: AlertTerms, now: float) -> None:
        """Take in what was seen."""
        for each in seen.found:
            self._found(each, terms, now)
        there = {each.key for each in seen.found}
        for key in [key for key in self.alerts if key not in there]:
            self._not_found(key, seen, terms, now)

    def _found(self, found: RuleFinding, terms: AlertTerms, now: float) -> None:
        alert = self.alerts.get(found.key)
        if alert is None:
            if len(self.alerts) >= _MOST:
                return
            alert = Alert(
                id=secrets.token_hex(8),
                rule=found.rule.text,
                connection=found.connection,
                what=one_line(found.what, 200),
                value=found.value,
                text=one_line(found.text, 300),
                since=now,
                seen=now,
            )
            self.alerts[found.key] = alert
        alert.text, alert.value = one_line(found.text, 300), round(found.value, 3)
        alert.seen, alert.quiet = now, 0.0
        if not alert.told:
            if now - alert.since >= found.rule.lasting:
                self._tell(RAISED, alert, terms, now)
        elif terms.remind and now - alert.told >= terms.remind:
            self._tell(REMINDED, alert, terms, now)

    def _not_found(self, key: str, seen: Evaluation, terms: AlertTerms, now: float) -> None:
        alert = self.alerts[key]
        if alert.rule not in terms.rules:
            if now - alert.seen >= _FORGOTTEN:
                del self.alerts[key]
        elif {(alert.rule, alert.connection), (alert.rule, "")} & seen.unknown.keys():
            return
        elif not alert.told:
            del self.alerts[key]
        else:
            alert.quiet = alert.quiet or now
            if now - alert.quiet >= terms.calm:
                del self.alerts[key]
                if terms.resolved:
                    self._tell(RESOLVED, alert, terms, now)

    def _tell(self, event: str, alert: Alert, terms: AlertTerms, now: float) -> None:
        alert.told = now
        for channel in terms.channels:
            self.tellings.append(
                Telling(
                    id=f"{alert.id}.{event}.{int(now)}",
                    channel=channel,
                    event=event,
                    alert=alert.model_copy(),
                    at=now,
                    due=now,
                )
            )

    # -- telling ----------------------------------------------------------------------------------

    def begin(self, terms: AlertTerms, now: float) -> list[Telling]:
        """Give what is to be told now, one thing by each channel, and note that it begins.

        What somebody began and did not end within the channel's time is told again.
        """
        self._give_up(now)
        begun = []
        for channel, longest in terms.channels.items():
            mine = [each for each in self.tellings if each.channel == channel]
            if any(each.begun and now < each.begun + longest for each in mine):
                continue
            due = next((each for each in mine if each.due <= now), None)
            if due is not None:
                due.begun, due.tries = now, due.tries + 1
                begun.append(due)
        return begun

    def ended(self, telling: Telling, *, well: bool, now: float) -> bool:
        """Note how a telling ended; says whether it was still known."""
        for each in self.tellings:
            if (each.id, each.channel) == (telling.id, telling.channel):
                if well:
                    self.tellings.remove(each)
                else:
                    each.begun, each.due = 0.0, now + min(_LONGEST_PAUSE, 2.0**each.tries)
                return True
        return False

    def next_due(self, terms: AlertTerms) -> float | None:
        """Give when there is something to tell next, an epoch time."""
        due = (
            max(each.due, each.begun + terms.channels[each.channel] if each.begun else 0.0)
            for each in self.tellings
            if each.channel in terms.channels
        )
        return min(due, default=None)

    def _give_up(self, now: float) -> None:
        late = [each for each in self.tellings if now - each.at > _GIVEN_UP and not each.begun]
        late += self.tellings[: max(0, len(self.tellings) - _MOST_TELLINGS)]
        for each in late:
            if each in self.tellings:
                self.tellings.remove(each)
                log.error("an alert was never told (%s): %s", each.channel, each.alert.text)


@dataclass(frozen=True, slots=True)
class AlertTerms:
    """How alerts are told."""

    rules: Collection[str]
    channels: Mapping[str, float]
    """The channels, and after how many seconds one that has not ended never will."""
    calm: float = 60.0
    remind: float = 0.0
    resolved: bool = True


def texts(found: Iterable[Rule]) -> frozenset[str]:
    """Give the texts of rules."""
    return frozenset(each.text for each in found)
