"""What the store beside the queues promises, and the failed store."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from qframe.contracts import Capability, FailedJob, History
from tests.conformance.drivers import Bench

pytestmark = [pytest.mark.needs(Capability.RESERVE), pytest.mark.own_stores]


class TestStore:
    def test_what_is_set_is_there(self, bench: Bench) -> None:
        bench.store.set("a", "1")
        bench.store.set("b", "ä👍 'x' %s \n")
        bench.store.set("empty", "")
        assert bench.store.get("a", "none", "b", "empty") == ["1", None, "ä👍 'x' %s \n", ""]
        assert bench.store.get() == []

    def test_setting_replaces_and_others_see_it(self, bench: Bench) -> None:
        other = bench.another().own_store()
        assert other is not None
        bench.store.set("a", "1", ttl=30)
        bench.store.set("a", "2")
        assert other.get("a") == ["2"]
        bench.forward(100)
        assert other.get("a") == ["2"]

    def test_a_value_is_gone_after_its_ttl(self, bench: Bench) -> None:
        bench.store.set("a", "1", ttl=30)
        bench.store.add("b", "1", ttl=30)
        bench.store.set("c", "1", ttl=30)
        bench.store.set("stays", "1")
        bench.forward(25)
        assert bench.store.get("a", "b", "stays") == ["1", "1", "1"]
        bench.forward(6)
        assert bench.store.get("a", "b", "stays") == [None, None, "1"]
        assert list(bench.store.keys("")) == ["stays"]
        assert not bench.store.delete("a")
        assert not bench.store.delete("b", "1")
        bench.store.set("c", "2")
        assert bench.store.get("c") == ["2"]

    def test_add_sets_only_where_there_is_nothing(self, bench: Bench) -> None:
        assert bench.store.add("a", "1", ttl=30)
        assert not bench.store.add("a", "2")
        assert bench.store.get("a") == ["1"]
        bench.forward(31)
        assert bench.store.add("a", "3")
        assert bench.store.get("a") == ["3"]
        bench.forward(100)
        assert not bench.store.add("a", "4")

    def test_delete_says_whether_it_was_there(self, bench: Bench) -> None:
        bench.store.set("a", "1")
        assert bench.store.delete("a")
        assert not bench.store.delete("a")
        assert bench.store.get("a") == [None]

    def test_delete_of_a_value_spares_another(self, bench: Bench) -> None:
        bench.store.set("a", "1")
        assert not bench.store.delete("a", "2")
        assert bench.store.get("a") == ["1"]
        assert bench.store.delete("a", "1")
        assert bench.store.get("a") == [None]

    def test_keys_are_listed_by_prefix_in_order(self, bench: Bench) -> None:
        for key in ("b:2", "b:10", "b", "a", "b%x", "b_x", "c"):
            bench.store.set(key, "1")
        assert list(bench.store.keys("b:")) == ["b:10", "b:2"]
        assert list(bench.store.keys("b%")) == ["b%x"]
        assert list(bench.store.keys("b_")) == ["b_x"]
        assert list(bench.store.keys("nothing")) == []
        assert len(bench.store.keys("")) == 7

    def test_of_many_threads_that_add_in_step_one_wins(self, bench: Bench) -> None:
        threads, keys = 4, [f"lock-{number}" for number in range(100)]
        won: list[str] = []
        errors: list[BaseException] = []
        step = threading.Barrier(threads)

        def add(name: str) -> None:
            queue = bench.another()
            store = queue.own_store()
            assert store is not None
            try:
                for key in keys:
                    step.wait(30)
                    if store.add(key, name):
                        won.append(key)
            except BaseException as error:  # noqa: BLE001 (shown by the test)
                errors.append(error)
                step.abort()
            finally:
                queue.close()

        running = [threading.Thread(target=add, args=(str(number),)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
        assert errors == []
        assert sorted(won) == sorted(keys)

    def test_of_two_who_add_at_once_one_wins(self, bench: Bench) -> None:
        keys = [f"lock-{number}" for number in range(100)]
        clients = [bench.client(), bench.client()]
        moment = time.time() + 0.3
        for number, client in enumerate(clients):
            client.tell("add", moment, keys, f"client {number}")
        won = [client.answer() for client in clients]
        for client in clients:
            client.close()
        assert sorted(won[0] + won[1]) == sorted(keys)
        for number, mine in enumerate(won):
            assert set(bench.store.get(*mine)) <= {f"client {number}"}

    def test_increment_adds_to_what_is_there_or_not(self, bench: Bench) -> None:
        store = bench.store
        assert store.increment({"a": 2, "b": 2**40}, "marker", "1")
        assert store.increment({"a": 3, "c": -1}, "marker", "2")
        assert store.get("a", "b", "c") == ["5", str(2**40), "-1"]
        store.set("a", "40")
        assert store.increment({"a": 2}, "marker", "3")
        assert store.increment({}, "marker", "4")
        assert store.get("a") == ["42"]

    def test_a_step_said_again_adds_nothing(self, bench: Bench) -> None:
        store = bench.store
        assert store.increment({"a": 1}, "mine", "x")
        assert not store.increment({"a": 1}, "mine", "x")
        assert store.increment({"a": 1}, "another's", "x")
        assert store.increment({"a": 1}, "mine", "y")
        assert store.get("a") == ["3"]
        bench.forward(3601)
        assert list(store.keys("")) == ["a"], "what is counted stays, the last steps do not"

    def test_of_two_who_increment_at_once_none_is_lost(self, bench: Bench) -> None:
        clients = [bench.client(), bench.client()]
        moment = time.time() + 0.3
        for number, client in enumerate(clients):
            client.tell("increment", moment, ["a", "b", "c"][:: 1 - 2 * number], 100)
        assert [client.answer() for client in clients] == [100, 100]
        for client in clients:
            client.close()
        assert bench.store.get("a", "b", "c") == ["200", "200", "200"]

    def test_swap_changes_what_is_as_expected(self, bench: Bench) -> None:
        store = bench.store
        assert store.swap({"a": (None, "1"), "b": (None, "=ä👍 %s \n"), "c": (None, "")})
        assert store.get("a", "b", "c") == ["1", "=ä👍 %s \n", ""]
        assert not store.swap({"a": (None, "2")})
        assert not store.swap({"a": ("2", "3")})
        assert not store.swap({"none": ("", "3")})
        assert store.swap({"a": ("1", "2"), "c": ("", None), "none": (None, None)})
        assert store.get("a", "c", "none") == ["2", None, None]
        assert store.swap({"b": ("=ä👍 %s \n", None), "c": (None, None)})
        assert list(store.keys("")) == ["a"]
        assert store.swap({})

    def test_swap_changes_all_or_none(self, bench: Bench) -> None:
        store = bench.store
        store.set("b", "1")
        store.set("d", "4")
        wrong: list[dict[str, tuple[str | None, str | None]]] = [
            {"a": (None, "2"), "b": (None, "2"), "d": ("4", None)},
            {"d": ("4", "5"), "b": ("9", "2"), "a": (None, "2")},
            {"a": ("1", "2"), "b": ("1", None), "d": ("4", "4")},
        ]
        for changes in wrong:
            assert not store.swap(changes, 30)
            assert store.get("a", "b", "d") == [None, "1", "4"]
        bench.forward(31)
        assert store.get("b", "d") == ["1", "4"], "no ttl was set either"
        assert store.swap({"a": (None, "2"), "b": ("1", None), "d": ("4", "5")})
        assert store.get("a", "b", "d") == ["2", None, "5"]

    def test_what_swap_writes_is_gone_after_its_ttl(self, bench: Bench) -> None:
        store = bench.store
        store.set("old", "1", ttl=30)
        store.set("stays", "1", ttl=30)
        assert store.swap({"new": (None, "1"), "old": ("1", "2")}, 60)
        assert store.swap({"stays": ("1", "1")})
        bench.forward(40)
        assert store.get("new", "old", "stays") == ["1", "2", "1"]
        bench.forward(21)
        assert store.get("new", "old", "stays") == [None, None, "1"]
        assert not store.swap({"new": ("1", "2")})
        assert store.swap({"new": (None, "3")})
        assert store.get("new") == ["3"]

    def test_swap_of_a_value_for_itself_prolongs_it(self, bench: Bench) -> None:
        store = bench.store
        assert store.swap({"lock": (None, "me"), "b": (None, "1")}, 30)
        for _ in range(3):
            bench.forward(20)
            assert store.swap({"lock": ("me", "me"), "b": ("1", "1")}, 30)
            assert not store.swap({"lock": ("you", "you")}, 600)
        assert store.swap({"lock": ("me", "me")}, 1000)
        bench.forward(31)
        assert store.get("lock", "b") == ["me", None]

    def test_of_two_who_swap_at_once_each_sees_the_other(self, bench: Bench) -> None:
        clients = [bench.client(), bench.client()]
        moment = time.time() + 0.3
        for number, client in enumerate(clients):
            client.tell("count up", moment, ["a", "b", "c"][:: 1 - 2 * number], 100)
        tried = [client.answer() for client in clients]
        for client in clients:
            client.close()
        assert min(tried) >= 100
        assert bench.store.get("a", "b", "c") == ["200", "200", "200"]

    def test_of_many_threads_that_swap_in_step_one_wins(self, bench: Bench) -> None:
        threads, rounds = 4, 50
        won: list[int] = []
        errors: list[BaseException] = []
        step = threading.Barrier(threads)

        def swap(name: str) -> None:
            queue = bench.another()
            store = queue.own_store()
            assert store is not None
            try:
                for number in range(rounds):
                    step.wait(30)
                    held = None if number == 0 else str(number - 1)
                    if store.swap({"lock": (held, str(number)), f"won-{number}": (None, name)}):
                        won.append(number)
            except BaseException as error:  # noqa: BLE001 (shown by the test)
                errors.append(error)
                step.abort()
            finally:
                queue.close()

        running = [threading.Thread(target=swap, args=(str(number),)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
        assert errors == []
        assert sorted(won) == list(range(rounds))


def record(uuid: str, **fields: object) -> FailedJob:
    made = FailedJob(
        uuid=uuid,
        connection="here",
        queue="default",
        payload=b'{"displayName":"x.Test","uuid":"' + uuid.encode() + b'"}',
        exception="Traceback ...\nValueError: no ä👍",
        name="x.Test",
        attempts=3,
        history=History().started(3, "host", 12, 1000.5).ended("error", "ValueError: no"),
        failed_at=1_763_000_000.25,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type] # any field


class TestFailedStore:
    def test_a_record_comes_back_as_it_was(self, bench: Bench) -> None:
        bench.failed.add(record("a"))
        assert bench.failed.find("a") == record("a")
        assert bench.failed.find("b") is None

    @pytest.mark.parametrize(
        "payload", [b"", b"\x00", b"\xff\xfe", "ä👍".encode(), b'{"l":[],"n":0.1}']
    )
    def test_whatever_the_payload_is(self, bench: Bench, payload: bytes) -> None:
        bench.failed.add(record("a", payload=payload))
        found = bench.failed.find("a")
        assert found is not None
        assert found.payload == payload

    def test_one_with_the_same_uuid_is_replaced(self, bench: Bench) -> None:
        bench.failed.add(record("a"))
        bench.failed.add(record("b"))
        bench.failed.add(record("a", exception="later"))
        assert bench.failed.count() == 2
        assert [each.uuid for each in bench.failed.page()] == ["a", "b"]
        assert bench.failed.page()[0].exception == "later"

    def test_the_latest_come_first_page_by_page(self, bench: Bench) -> None:
        for number in range(7):
            queue = "odd" if number % 2 else "even"
            bench.failed.add(record(str(number), queue=queue, failed_at=1e9 + number))
        pages = []
        after = None
        while page := bench.failed.page(3, after):
            pages.append([each.uuid for each in page])
            after = page[-1].uuid
        assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
        assert [each.uuid for each in bench.failed.page(2, "5", "odd")] == ["3", "1"]
        assert [each.uuid for each in bench.failed.page(queue="none")] == []

    def test_forget_says_whether_it_was_there(self, bench: Bench) -> None:
        bench.failed.add(record("a"))
        assert bench.failed.forget("a")
        assert not bench.failed.forget("a")
        assert bench.failed.count() == 0

    def test_of_two_who_forget_at_once_one_is_told_so(self, bench: Bench) -> None:
        names = [f"job-{number}" for number in range(60)]
        for name in names:
            bench.failed.add(record(name))
        clients = [bench.client(), bench.client()]
        moment = time.time() + 0.3
        for client in clients:
            client.tell("forget", moment, names)
        told = [name for client in clients for name in client.answer()]
        for client in clients:
            client.close()
        assert sorted(told) == sorted(names)

    def test_flush_removes_all_or_the_older_ones(self, bench: Bench) -> None:
        for number in range(5):
            bench.failed.add(record(str(number), failed_at=1_700_000_000.5 + number))
        assert bench.failed.flush(before=1_700_000_002.5) == 2
        assert [each.uuid for each in bench.failed.page()] == ["4", "3", "2"]
        assert bench.failed.flush() == 3
        assert bench.failed.flush() == 0
        assert bench.failed.count() == 0
