"""The shop's jobs: most do well, some fail for reasons of their own, some take their time."""

from __future__ import annotations

import time

from qframe import Queueable, Secret


class SendReceipt(Queueable):
    """A mail, which some servers refuse."""

    job_name = "shop.mail.SendReceipt"
    queue = "mail"
    tags = ("shop",)

    order: int
    to: str

    def handle(self) -> None:
        """Send it."""
        time.sleep(0.004)
        if self.order % 9 == 0:
            raise TimeoutError(f"smtp.example.com did not answer within {5 + self.order % 4} s")
        if "@" not in self.to:
            raise ValueError(f"no address: {self.to!r}")


class ChargeCard(Queueable):
    """A payment; its token is a secret."""

    job_name = "shop.payments.ChargeCard"
    queue = "payments"
    encrypted = False  # in the backend; the page shows stars

    order: int
    cents: int
    token: Secret[str]

    def handle(self) -> None:
        """Charge it."""
        time.sleep(0.02)
        if self.order % 17 == 3:  # noqa: PLR2004 (some)
            raise RuntimeError(f"order {self.order}: card declined (insufficient funds)")


class ResizeImage(Queueable):
    """A picture of the catalogue."""

    job_name = "shop.catalogue.ResizeImage"
    queue = "images"
    path: str

    def handle(self) -> None:
        """Resize it."""
        time.sleep(0.03)
        if self.path.endswith("7.png"):
            raise OSError(f"cannot identify image file '{self.path}'")


class Deliver(Queueable):
    """A call of a customer's server, some of which are gone."""

    job_name = "shop.webhooks.Deliver"
    queue = "webhooks"
    tries = 2
    order: int

    def handle(self) -> None:
        """Call it."""
        time.sleep(0.01)
        if self.order % 12 == 5:  # noqa: PLR2004 (some)
            raise ConnectionError(f"https://hooks.example.com/{self.order} answered 410 Gone")


class ExportYear(Queueable):
    """What runs for long."""

    job_name = "shop.reports.ExportYear"
    queue = "reports"
    timeout = 3600
    year: int

    def handle(self) -> None:
        """Take a while."""
        time.sleep(600)


class RenderPage(Queueable):
    """One of the members of a batch."""

    job_name = "shop.catalogue.RenderPage"
    queue = "images"
    page: int

    def handle(self) -> None:
        """Render it."""
        time.sleep(0.05)
        if self.page == 13:  # noqa: PLR2004 (one)
            raise KeyError("template")
