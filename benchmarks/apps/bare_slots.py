"""Fifty tasks of an event loop, or fifty threads, that do nothing but the job: there is no queue.

`python -m benchmarks.apps.bare_slots tasks`, or `threads`.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from benchmarks.apps import effects

_MANY = 50


async def tasks() -> None:
    """Run for ever."""

    async def run() -> None:
        while True:
            await effects.append()

    await asyncio.gather(*(run() for _ in range(_MANY)))


def threads() -> None:
    """Run for ever."""

    def run() -> None:
        while True:
            effects.write_byte()

    for _ in range(_MANY):
        threading.Thread(target=run).start()


if __name__ == "__main__":
    if sys.argv[1] == "threads":
        threads()
    else:
        asyncio.run(tasks())
