"""What the jobs do, the same on every side: one byte, or one line, appended to a file.

With `BENCH_SLEEPS` in the environment a job notes its process too, and goes on for so many seconds.
With `BENCH_GATE` a process waits in its first job until so many have one. With `BENCH_WAITS` each
job waits for so many seconds: where it is a coroutine it awaits them, else its thread sleeps. With
`BENCH_COMPUTES` each hundredth of the jobs that note their time computes for so many seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time

from benchmarks.apps import GATE, PIDS, TIMES, WRITTEN

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_written = os.open(WRITTEN, _FLAGS)
_times = os.open(TIMES, _FLAGS)


def _write_byte() -> None:
    os.write(_written, b".")


def _write_byte_and_sleep() -> None:
    with open(PIDS, "a") as file:  # noqa: PTH123 (in the folder jobs run in, as the others)
        file.write(f"{os.getpid()}\n")
    os.write(_written, b".")
    time.sleep(float(os.environ["BENCH_SLEEPS"]))


def _write_byte_past_the_gate() -> None:
    global _waited  # noqa: PLW0603 (once in a process)
    if not _waited:
        _waited = True
        gate = os.open(GATE, _FLAGS)
        os.write(gate, b".")
        while os.fstat(gate).st_size < int(os.environ["BENCH_GATE"]):
            time.sleep(0.001)
        os.close(gate)
    os.write(_written, b".")


def _wait_and_write_byte() -> None:
    time.sleep(float(os.environ["BENCH_WAITS"]))
    os.write(_written, b".")


_waited = False
_KINDS = {
    "BENCH_SLEEPS": _write_byte_and_sleep,
    "BENCH_GATE": _write_byte_past_the_gate,
    "BENCH_WAITS": _wait_and_write_byte,
}
write_byte = next((kind for name, kind in _KINDS.items() if os.environ.get(name)), _write_byte)
"""Append one byte: the whole effect of a no-op job."""


async def _write_byte_on_loop() -> None:
    write_byte()


async def _await_and_write_byte() -> None:
    await asyncio.sleep(_waits)
    os.write(_written, b".")


_waits = float(os.environ.get("BENCH_WAITS", "0"))
append = _await_and_write_byte if _waits else _write_byte_on_loop
"""The same for a job that is a coroutine."""


def _write_since(moment: float) -> None:
    now = time.time()
    os.write(_times, f"{now - moment:.6f}\n".encode())
    write_byte()


def _write_since_or_compute(moment: float) -> None:
    """Note the moment as well: it says which job this is."""
    now = time.time()
    if next(_numbers) % 100:
        os.write(_times, f"{now - moment:.6f} {moment:.6f}\n".encode())
    else:
        os.write(_times, f"- {moment:.6f}\n".encode())
        burn(_computes)
    write_byte()


_numbers = itertools.count(1)
_computes = float(os.environ.get("BENCH_COMPUTES", "0"))
write_since = _write_since_or_compute if _computes else _write_since
"""Append the seconds that have passed since an epoch time."""


def burn(seconds: float) -> None:
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
