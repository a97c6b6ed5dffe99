"""The same in Django's words: tasks, which qframe runs."""

import asyncio
import importlib.util
import os
import time
from pathlib import Path

import django
from shop.models import Order

from qframe import DontHandle

if importlib.util.find_spec("django.tasks") is not None:
    from django.tasks import task
else:  # Django 4.2 to 5.2
    from django_tasks import task


@task
def receipt(order: int) -> str:
    """Write the receipt of an order."""
    text = f"receipt {order}"
    Order.objects.filter(pk=order).update(receipt=text)
    return text


@task
async def count() -> int:
    """Count the orders."""
    return await Order.objects.acount()


@task(takes_context=True)
def stubborn(context, good_at: int) -> int:
    """Fail until it is tried for the `good_at`th time."""
    if context.attempt < good_at:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


if django.VERSION[:2] != (6, 0):  # whose decorator takes no options

    @task(takes_context=True, tries=2)
    def twice(context) -> int:
        """Fail the first time."""
        return stubborn.func(context, 2)


@task(takes_context=True)
def killed(context, folder: str) -> int:
    """Be killed, with its worker, the first time."""
    Path(folder, f"began-{context.attempt}").write_text(str(os.getpid()))
    if context.attempt == 1:
        time.sleep(60)
    return context.attempt


@task
def slow(seconds: float) -> None:
    """Take a while."""
    time.sleep(seconds)


@task
async def slow_on_loop(seconds: float) -> None:
    """Take a while, beside others."""
    await asyncio.sleep(seconds)


@task
def catalogue(pages: int) -> object:
    """Return a text of so many letters; with none, what JSON does not have."""
    return "x" * pages if pages else object()


@task
async def catalogue_on_loop(pages: int) -> object:
    """Return the same."""
    return catalogue.func(pages)


@task
def unwilling() -> None:
    """Find that there is nothing to be done."""
    raise DontHandle("nothing to be done")


@task
async def unwilling_on_loop() -> None:
    """Find the same."""
    unwilling.func()
