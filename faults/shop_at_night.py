"""The shop of `faults.night`: its settings and its program, as text, so that deploys change it."""

from __future__ import annotations

SETTINGS = """\
default = "database"
jobs = ["shop"]
version = "2.4.1"
metric_tags = ["shop:*"]

[connections.database]
driver = "database"
retry_after = 60

[queues.reports]
concurrency = 1
"""

PROGRAM = '''\
"""A shop. A job waits while a file blocks it."""

import os
import signal
import time
from pathlib import Path

from qframe import Queueable


def blocked(name):
    while Path(f"{name}.blocks").exists():
        time.sleep(0.05)


class Mail(Queueable):
    to: str
    queue = "mail"

    def handle(self):
        blocked("mail")


class News(Queueable):
    queue = "mail"

    def handle(self):
        blocked("mail")


class Report(Queueable):
    number: int
    queue = "reports"

    def handle(self):
        blocked("report")


class Order(Queueable):
    number: int
    queue = "orders"

    def handle(self):
        blocked("report")


class Ship(Queueable):
    order: int
# carrier
    queue = "mail"

    def handle(self):
        pass


class Charge(Queueable):
    shop: int
    queue = "charges"

    def tags(self):
        return [f"shop:{self.shop}"]

    def handle(self):
        blocked(f"shop-{self.shop}")


class Import(Queueable):
    queue = "imports"

    def handle(self):
        rows, ends = [], time.monotonic() + 6
        while time.monotonic() < ends:
            if len(rows) < 60:
                rows.append(bytearray(os.urandom(1024) * 4096))
            sum(range(2_000_000))
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does it
'''

GIFT = """

class Gift(Queueable):
    to: str
    queue = "mail"

    def handle(self):
        pass
"""
