"""Mail: alerts by SMTP, over TLS with a checked host name."""

from __future__ import annotations

from qframe.alerts.channel import Channel, NotSent, headline, trusting, why
from qframe.alerts.deadline import Deadline
from qframe.alerts.life import Notification
from qframe.config import MailSettings
from qframe.drivers import process
from qframe.payload.timing import iso

_READY = 220
"""A server's first answer."""


class Mail(Channel):
    """A mail by SMTP."""

    def __init__(self, settings: MailSettings) -> None:
        self.timeout = settings.timeout
        self._settings = settings

    def send(self, notification: Notification) -> None:
        """Send the mail."""
        import smtplib  # noqa: PLC0415 (only mail needs it)
        from email.message import EmailMessage  # noqa: PLC0415 (as above)

        settings, alert = self._settings, notification.alert
        mail = EmailMessage()
        mail["Subject"] = f"[qframe] {headline(notification)}"
        mail["From"], mail["To"] = settings.sender, ", ".join(settings.to)
        mail["Message-ID"] = f"<{notification.id}@qframe>"
        mail["Auto-Submitted"] = "auto-generated"
        lines = {
            "rule": alert.rule,
            "connection": alert.connection,
            "subject": alert.what,
            "value": f"{alert.value:g}",
            "since": f"{iso(alert.since)} UTC",
            "told by": process.NAME,
        }
        shown = [f"{name + ':':<12}{text}" for name, text in lines.items() if text]
        mail.set_content("\n".join([headline(notification), "", *shown, ""]))
        secure = trusting(settings.ca) if settings.tls != "none" else None
        server = smtplib.SMTP()
        server._host = settings.host  # type: ignore[attr-defined]  # noqa: SLF001 (its name for TLS)
        with Deadline(self.timeout) as deadline:
            try:
                server.sock = deadline.connect(settings.host, settings.port)
                if secure is not None and settings.tls == "tls":
                    server.sock = secure.wrap_socket(server.sock, server_hostname=settings.host)
                code, reply = server.getreply()
                if code != _READY:
                    raise smtplib.SMTPConnectError(code, reply)
                if settings.tls == "starttls":
                    server.starttls(context=secure)
                if settings.user is not None and settings.password is not None:
                    server.login(settings.user, settings.password.get_secret_value())
                server.send_message(mail)
            except smtplib.SMTPResponseException as error:
                raise NotSent(f"{settings.host} answered {error.smtp_code}") from None
            except (OSError, smtplib.SMTPException) as error:
                raise NotSent(f"{settings.host}: {why(error)}") from None
            finally:
                server.close()
