"""The log of first starts: what was started is known until it has ended, and then forgotten."""

from __future__ import annotations

from qframe.drivers.broker.start_log import StartedHere, StartLog
from qframe.drivers.memory.backend import MemoryBackend


def test_a_start_is_known_until_all_that_began_with_it_have_ended() -> None:
    facts = MemoryBackend()
    log, here = StartLog("started:r", lambda: facts), StartedHere()
    log.note(here, ["a", "b"])
    log.note(here, ["c"])
    assert [log.has(each) for each in ("a", "b", "c", "d", "")] == [True, True, True, False, False]
    here.end(["a", "c", "unknown"])
    log.note(here, ["d"])
    assert [log.has(each) for each in ("a", "b", "c", "d")] == [True, True, False, True]
    here.end(["b", "d"])
    log.leave(here)
    assert facts.scan("started:") == []


def test_the_starts_of_another_connection_stay() -> None:
    facts = MemoryBackend()
    log, lost, here = StartLog("started:r", lambda: facts), StartedHere(), StartedHere()
    log.note(lost, ["a"])
    log.note(here, ["b"])
    here.end(["a", "b"])
    log.leave(here)
    assert (log.has("a"), log.has("b")) == (True, False)
    assert not StartLog("started:other", lambda: facts).has("a")
