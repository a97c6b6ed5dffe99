"""The job: the mail that confirms a booking."""

from __future__ import annotations

import os
import smtplib
from datetime import date
from email.message import EmailMessage

from qframe import Queueable


class SendConfirmation(Queueable):
    """Tell a guest that the table is theirs, through the server at SMTP_HOST and SMTP_PORT."""

    guest: str
    email: str
    seats: int
    evening: date

    queue = "mail"
    tries = 5
    backoff = (1, 5, 30)  # a mail server that is down now may be up again in a moment
    timeout = 30

    def handle(self) -> None:
        """Send it. Whatever smtplib raises has the job tried again."""
        mail = EmailMessage()
        mail["From"] = "tables@restaurant.example"
        mail["To"] = self.email
        mail["Subject"] = f"Your table on {self.evening:%d %B %Y}"
        # The same in every attempt: should the job run twice, both mails are known to be one.
        mail["Message-ID"] = f"<{self.job.uuid}@restaurant.example>"
        mail.set_content(f"Dear {self.guest},\n\na table for {self.seats} is reserved for you.\n")
        host, port = os.environ.get("SMTP_HOST", "127.0.0.1"), os.environ.get("SMTP_PORT", "25")
        with smtplib.SMTP(host, int(port), "restaurant.example", timeout=10) as server:
            server.send_message(mail)
