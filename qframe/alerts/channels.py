"""The channels: event listeners, webhook, command and mail."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from qframe import events
from qframe.alerts.channel import Channel, NotSent, message, trusting, why
from qframe.alerts.deadline import Deadline
from qframe.alerts.life import RESOLVED, Notification
from qframe.alerts.mail import Mail
from qframe.config import AlertSettings, CommandSettings, WebhookSettings
from qframe.payload.text import one_line


class ListenerChannel(Channel):
    """Listeners of `AlertRaised` and `AlertResolved` in the checking process."""

    def send(self, notification: Notification) -> None:
        """Fire the event."""
        alert = notification.alert
        about = (alert.rule, alert.connection, alert.what, alert.text, alert.value, alert.since)
        if notification.event == RESOLVED:
            events.fire(events.AlertResolved, *about)
        else:
            events.fire(events.AlertRaised, *about, notification.event != "raised")


class Webhook(Channel):
    """A signed POST of JSON."""

    def __init__(self, settings: WebhookSettings) -> None:
        self.timeout = settings.timeout
        self._url = settings.url.get_secret_value()
        self._secret = settings.secret.get_secret_value() if settings.secret else ""
        self._ca = settings.ca

    def send(self, notification: Notification) -> None:
        """Post it. Raises `NotTold` for any answer except 2xx. Follows no redirection."""
        import http.client  # noqa: PLC0415 (only a channel needs it)

        parts = urlsplit(self._url)
        body, host = json.dumps(message(notification)).encode(), parts.hostname or ""
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = kind(host, parts.port or kind.default_port)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with Deadline(self.timeout) as deadline:
            try:
                connection.sock = deadline.connect(host, connection.port)
                if is_secure:
                    context = trusting(self._ca)
                    connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
                connection.request("POST", path, body, self._headers(notification, body))
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                raise NotSent(f"{parts.hostname}: {why(error)}") from None
            finally:
                connection.close()
        if not 200 <= status < 300:  # noqa: PLR2004 (success)
            raise NotSent(f"{parts.hostname} answered {status}")

    def _headers(self, notification: Notification, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Qframe-Id": notification.id}
        if self._secret:
            now = str(int(time.time()))
            headers |= {
                "Qframe-Timestamp": now,
                "Qframe-Signature": f"v1={signature(self._secret, now, body)}",
            }
        return headers


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Sign the timestamp, a dot, and the body: HMAC-SHA256, in hex."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class CommandChannel(Channel):
    """A program of the user, run without a shell."""

    def __init__(self, settings: CommandSettings) -> None:
        self.timeout = settings.timeout
        self._run = settings.run

    def send(self, notification: Notification) -> None:
        """Run it, with JSON on its stdin. Raises `NotTold` unless it exits 0 in time."""
        text = json.dumps(message(notification)).encode()
        name = self._run[0]
        try:
            pid, given = self._start()
        except OSError as error:
            raise NotSent(f"{one_line(name, 100)}: {error.strerror}") from None
        with suppress(BrokenPipeError):  # the program does not read it, which is allowed
            os.write(given, text)  # shorter than any pipe
        os.close(given)
        code = self._wait(pid)
        if code is None:
            raise NotSent(f"{one_line(name, 100)} was killed after {self.timeout:g} s")
        if code:
            raise NotSent(f"{one_line(name, 100)}: exit {code}")

    def _start(self) -> tuple[int, int]:
        """Start it in its own process group, with no signals blocked (this thread blocks them)."""
        reader, writer = os.pipe()
        try:
            pid = os.posix_spawnp(
                self._run[0],
                self._run,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0o600),
                    (os.POSIX_SPAWN_CLOSE, writer),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
            )
        except OSError:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        return pid, writer

    def _wait(self, pid: int) -> int | None:
        until = time.monotonic() + self.timeout
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            select.select([], [], [], 0.02)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None


def configured(settings: AlertSettings) -> dict[str, Channel]:
    """Return the configured channels by name."""
    found: dict[str, Channel] = {"listener": ListenerChannel()}
    if settings.webhook is not None:
        found["webhook"] = Webhook(settings.webhook)
    if settings.mail is not None:
        found["mail"] = Mail(settings.mail)
    if settings.command is not None:
        found["command"] = CommandChannel(settings.command)
    return found


def by_name(settings: AlertSettings) -> Mapping[str, str]:
    """Describe where each channel sends, never with a secret."""
    found = {"listener": "AlertRaised, AlertResolved"}
    if settings.webhook is not None:
        host = urlsplit(settings.webhook.url.get_secret_value()).hostname
        signed = "signed" if settings.webhook.secret else "not signed"
        found["webhook"] = f"{host} ({signed})"
    if settings.mail is not None:
        found["mail"] = f"{', '.join(settings.mail.to)} by {settings.mail.host}"
    if settings.command is not None:
        found["command"] = settings.command.run[0]
    return found
