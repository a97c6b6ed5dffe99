"""Jobs that dispatch from the event loop they run on."""

from __future__ import annotations

import asyncio

from jobs import Note, note  # type: ignore[import-not-found]

from qframe import Queueable, abulk, ajob_status, await_for, batch, chain, dispatch


class Dispatches(Queueable):
    """Awaits every call there is, and drops one."""

    word: str

    async def handle(self) -> None:
        words = [
            f"{self.word}-{name}" for name in ("bulk1", "bulk2", "one", "link1", "link2", "member")
        ]
        first, second, one, *links, member = (Note(word=word) for word in words)
        ids = await abulk([first, second])
        made = await batch([member]).name(self.word)
        tracked, identity = await asyncio.gather(dispatch(one).track(), chain(links))
        status = await ajob_status(tracked)
        assert status is not None
        note("awaited", len(ids), made.total, status.name, len(identity))
        dispatch(Note(word=f"{self.word}-dropped"))


class Waits(Queueable):
    """Waits for another job, which the same worker runs."""

    async def handle(self) -> None:
        other = await dispatch(Note(word="other")).track()
        note("waited", (await await_for(other, 30)).state)


class Adds(Queueable):
    """Adds to its batch, again where it is tried again."""

    async def handle(self) -> None:
        mine = self.batch()
        assert mine is not None
        await mine.aadd(Note(word="added"))
        if self.attempts == 1:
            raise ValueError("once more")
