"""A job on the loop sees what ends it, also where the signal comes between two of its steps."""

from __future__ import annotations

import asyncio
from types import FrameType, SimpleNamespace
from typing import cast

import pytest

from qframe.exceptions import JobTimedOut
from qframe.worker.slots.interrupts import SlotInterrupts, Steps, current


@pytest.mark.parametrize("between", [Steps.send, Steps.throw, SlotInterrupts.seen])
def test_a_job_that_awaits_sees_why_it_ends(between: SimpleNamespace) -> None:
    seen = []

    async def job() -> None:
        try:
            await asyncio.sleep(20)
        except JobTimedOut as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        interrupts = SlotInterrupts(lambda _: None, asyncio.get_running_loop())
        interrupts.running(60)
        current.set(interrupts)
        interrupts.task = asyncio.create_task(Steps(job(), interrupts))
        await asyncio.sleep(0)
        signalled = cast("FrameType", SimpleNamespace(f_code=between.__code__))
        interrupts.fire(JobTimedOut("late"), signalled)
        with pytest.raises(JobTimedOut):
            await interrupts.task
        interrupts.task = None

    asyncio.run(main())
    assert seen == ["late", "cleaned up"]
