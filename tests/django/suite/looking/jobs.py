"""Jobs that use the ORM in threads and on the loop, and write into a file what they saw."""

import asyncio
import json
import os
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from shop.models import Order

from qframe import Queueable

TOGETHER = 4
BEGUN = []
KEPT = []
"""Connections, so that none is closed only because nobody has it any more."""


def say(**what):
    """Write a line."""
    with Path(os.environ["SHOP_FOLDER"], "said").open("a") as file:
        file.write(json.dumps(what) + "\n")


def ask(words):
    """Ask the database, by this thread's connection."""
    with connections["default"].cursor() as cursor:
        cursor.execute(words)
        return cursor.fetchone()[0]


def look(where):
    """Use the ORM, and say which connection that was by, and how long its log of queries is."""
    KEPT.append(connections["default"])
    Order.objects.count()
    backend = ask("SELECT pg_backend_pid()")
    say(look=where, backend=backend, queries=len(connections["default"].queries))


class Look(Queueable):
    def handle(self):
        look("thread")


class LookOnLoop(Queueable):
    async def handle(self):
        await Order.objects.acount()
        await sync_to_async(look)("loop")


def begin(block, article):
    """Begin a transaction, and write in it."""
    block.__enter__()
    Order.objects.create(article=article)
    say(transaction=ask("SELECT txid_current()"))
    BEGUN.append(article)


def end(block, error=None):
    """End it."""
    block.__exit__(error and type(error), error, None)


class Hold(Queueable):
    """Have a transaction open until all have one; roll it back, or commit it."""

    article: str
    fails: bool

    def handle(self):
        block = transaction.atomic()
        begin(block, self.article)
        until = time.monotonic() + 20
        while len(BEGUN) < TOGETHER and time.monotonic() < until:
            time.sleep(0.01)
        end(block, KeyError() if self.fails else None)
        say(together=len(BEGUN))


class HoldOnLoop(Queueable):
    """The same."""

    article: str
    fails: bool

    async def handle(self):
        block = transaction.atomic()
        await sync_to_async(begin)(block, self.article)
        until = time.monotonic() + 20
        while len(BEGUN) < TOGETHER and time.monotonic() < until:  # noqa: ASYNC110 (threads wait, too)
            await asyncio.sleep(0.01)
        await sync_to_async(end)(block, KeyError() if self.fails else None)
        say(together=len(BEGUN))
