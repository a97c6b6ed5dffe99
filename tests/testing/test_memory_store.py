"""The store in memory keeps the promises of the contract."""

from __future__ import annotations

import threading
import time

from qframe.testing import MemoryStore


def test_values_live_until_their_time_is_up() -> None:
    store = MemoryStore()
    store.set("a", "1")
    store.set("b", "2", ttl=0.05)
    assert store.get("a", "b", "c") == ["1", "2", None]
    assert store.keys("") == ["a", "b"]
    gone = time.monotonic() + 5
    while store.get("b") != [None] and time.monotonic() < gone:
        time.sleep(0.01)
    assert store.keys("") == ["a"]
    assert store.add("b", "3")


def test_add_and_delete() -> None:
    store = MemoryStore()
    assert store.add("a", "1")
    assert not store.add("a", "2")
    assert not store.delete("a", "2")
    assert store.delete("a", "1")
    assert not store.delete("a")
    store.set("a", "")
    assert store.delete("a", "")


def test_a_step_is_added_once() -> None:
    store = MemoryStore()
    assert store.increment({"a": 2, "b": -1}, "me", "1")
    assert not store.increment({"a": 2, "b": -1}, "me", "1")
    assert store.increment({"a": 2}, "me", "2")
    assert store.get("a", "b") == ["4", "-1"]


def test_all_keys_are_swapped_or_none() -> None:
    store = MemoryStore()
    assert store.swap({"a": (None, "1"), "b": (None, "2")})
    assert not store.swap({"a": ("1", None), "b": ("x", "3")})
    assert store.get("a", "b") == ["1", "2"]
    assert store.swap({"a": ("1", None), "b": ("2", "3")}, ttl=60)
    assert store.get("a", "b") == [None, "3"]


def test_of_many_threads_one_has_a_lock() -> None:
    store = MemoryStore()
    won: list[int] = []

    def take(number: int) -> None:
        if store.add("lock", str(number)):
            won.append(number)
        for _ in range(200):
            store.increment({"n": 1}, f"m{number}", f"{number}-{_}")

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("lock", "n") == [str(won[0]), "1600"]
