"""The life of an alert: raised once, repeated while it lasts, resolved after a quiet time.

Values only: the checker passes in the current problems, and gets the new state with the
notifications to send. So it is the same on any backend, and whoever writes the state may send.
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
"""The most current alerts."""
_MOST_TELLINGS = 500
_FORGOTTEN = 600.0
"""Seconds after which an alert without a rule is dropped.

Until then another version may have it.
"""
_GIVEN_UP = 3600.0
"""Seconds after which a notification is dropped that no channel accepted."""
_LONGEST_PAUSE = 300.0


class RuleFinding(NamedTuple):
    """A current problem."""

    rule: Rule
    connection: str
    what: str
    """The queue, class or worker; "" for the whole connection."""
    value: float
    text: str
    settle: Callable[[], None] | None = None
    """Called once the notification is recorded."""

    @property
    def key(self) -> str:
        """Identifies the alert."""
        return f"{self.rule.text}\n{self.connection}\n{self.what}"


@dataclass
class Evaluation:
    """The result of a check: problems, and rules that could not be checked."""

    found: list[RuleFinding] = field(default_factory=list)
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why a rule could not be checked, by rule text and connection ("" for all)."""


class Alert(BaseModel):
    """An alert that is raised or about to be. Times are epoch seconds."""

    id: str
    rule: str
    connection: str
    what: str
    value: float
    text: str
    since: float
    """When the problem was first found."""
    seen: float
    """When the problem was last found."""
    quiet: float = 0.0
    """When it was last gone; 0 while it lasts."""
    notified_at: float = 0.0
    """When the last notification was sent; 0: it has not lasted long enough yet."""


class Notification(BaseModel):
    """A notification for one channel, until the channel accepts it."""

    id: str
    channel: str
    event: str
    alert: Alert
    at: float
    due: float
    tries: int = 0
    begun: float = 0.0
    """When a checker began to send it; 0 if none is sending it."""


class AlertRecords(BaseModel):
    """All stored alerts, as one text."""

    number: int = 0
    """Grows with each change, so that no text is repeated."""
    alerts: dict[str, Alert] = {}
    notifications: list[Notification] = []

    @classmethod
    def read(cls, text: str | None) -> AlertRecords:
        """Read the text; an incompatible text of another version counts as empty."""
        try:
            return cls() if text is None else cls.model_validate_json(text)
        except ValidationError:
            return cls()

    def on(self) -> list[Alert]:
        """Return the current alerts, the latest first."""
        return sorted(
            (each for each in self.alerts.values() if each.notified_at), key=lambda a: -a.since
        )

    def settle(self, seen: Evaluation) -> None:
        """Call `settle` of the problems whose alert was sent."""
        for each in seen.found:
            if (
                each.settle is not None
                and each.key in self.alerts
                and self.alerts[each.key].notified_at
            ):
                each.settle()

    # -- checking the rules -----------------------------------------------------------------------

    def look(self, seen: Evaluation, terms: AlertTerms, now: float) -> None:
        """Update the alerts with the result of a check."""
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
        if not alert.notified_at:
            if now - alert.since >= found.rule.lasting:
                self._notify(RAISED, alert, terms, now)
        elif terms.remind and now - alert.notified_at >= terms.remind:
            self._notify(REMINDED, alert, terms, now)

    def _not_found(self, key: str, seen: Evaluation, terms: AlertTerms, now: float) -> None:
        alert = self.alerts[key]
        if alert.rule not in terms.rules:
            if now - alert.seen >= _FORGOTTEN:
                del self.alerts[key]
        elif {(alert.rule, alert.connection), (alert.rule, "")} & seen.unknown.keys():
            return
        elif not alert.notified_at:
            del self.alerts[key]
        else:
            alert.quiet = alert.quiet or now
            if now - alert.quiet >= terms.calm:
                del self.alerts[key]
                if terms.resolved:
                    self._notify(RESOLVED, alert, terms, now)

    def _notify(self, event: str, alert: Alert, terms: AlertTerms, now: float) -> None:
        alert.notified_at = now
        for channel in terms.channels:
            self.notifications.append(
                Notification(
                    id=f"{alert.id}.{event}.{int(now)}",
                    channel=channel,
                    event=event,
                    alert=alert.model_copy(),
                    at=now,
                    due=now,
                )
            )

    # -- notifications ----------------------------------------------------------------------------

    def begin(self, terms: AlertTerms, now: float) -> list[Notification]:
        """Return the notifications to send now, one for each channel, and mark them as begun.

        A notification that did not end within the channel's time is sent again.
        """
        self._give_up(now)
        begun = []
        for channel, longest in terms.channels.items():
            mine = [each for each in self.notifications if each.channel == channel]
            if any(each.begun and now < each.begun + longest for each in mine):
                continue
            due = next((each for each in mine if each.due <= now), None)
            if due is not None:
                due.begun, due.tries = now, due.tries + 1
                begun.append(due)
        return begun

    def ended(self, notification: Notification, *, well: bool, now: float) -> bool:
        """Record the end of a notification. Returns whether it was still known."""
        for each in self.notifications:
            if (each.id, each.channel) == (notification.id, notification.channel):
                if well:
                    self.notifications.remove(each)
                else:
                    each.begun, each.due = 0.0, now + min(_LONGEST_PAUSE, 2.0**each.tries)
                return True
        return False

    def next_due(self, terms: AlertTerms) -> float | None:
        """Return when the next notification is due, in epoch seconds."""
        due = (
            max(each.due, each.begun + terms.channels[each.channel] if each.begun else 0.0)
            for each in self.notifications
            if each.channel in terms.channels
        )
        return min(due, default=None)

    def _give_up(self, now: float) -> None:
        late = [each for each in self.notifications if now - each.at > _GIVEN_UP and not each.begun]
        late += self.notifications[: max(0, len(self.notifications) - _MOST_TELLINGS)]
        for each in late:
            if each in self.notifications:
                self.notifications.remove(each)
                log.error("an alert was never sent (%s): %s", each.channel, each.alert.text)


@dataclass(frozen=True, slots=True)
class AlertTerms:
    """How alerts are sent."""

    rules: Collection[str]
    channels: Mapping[str, float]
    """The channels, and the seconds after which an unfinished notification counts as lost."""
    calm: float = 60.0
    remind: float = 0.0
    resolved: bool = True


def texts(found: Iterable[Rule]) -> frozenset[str]:
    """Return the texts of rules."""
    return frozenset(each.text for each in found)
