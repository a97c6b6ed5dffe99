"""The canvas: signatures, chains, groups and chords; cases of Celery's own tests, adapted.

Which of Celery's cases are left out, and why: `EXCLUDED.md` in this folder.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from qframe import QueueManager, find_flow
from qframe.celery import (
    Signature,
    chain,
    chord,
    chunks,
    group,
    maybe_signature,
    signature,
    subtask,
    xmap,
    xstarmap,
)
from qframe.celery.exceptions import ChordError, NotSupported, TimeoutError  # noqa: A004 (Celery's name)
from qframe.celery.result import AsyncResult, GroupResult
from qframe.testing import Drained, drain, travel
from tests.celery import tasks
from tests.celery.tasks import add, app, identity, mul, seen, xsum


@pytest.fixture(autouse=True)
def _queues(queues: QueueManager) -> None:
    """Run each test on a connection in memory."""


def given(canvas: Any, *args: Any) -> Any:
    """Dispatch a canvas, run it, and give its result."""
    result = canvas.apply_async(args)
    drain(raises=True)
    return result.get(timeout=1)


# -- signatures -----------------------------------------------------------------------------------


def test_a_signature_has_its_call() -> None:
    made = add.signature((1,), {"y": 2}, countdown=3)
    assert (made.task, made.args, made.kwargs) == (add.name, (1,), {"y": 2})
    assert (made.options, made.immutable) == ({"countdown": 3}, False)
    assert repr(made) == "tests.celery.tasks.add(1, y=2)"
    assert made.type is add
    assert add.s(1, y=2) == add.signature((1,), {"y": 2})
    assert subtask is signature


def test_a_signature_is_json() -> None:
    for whole in (
        add.s(1, 2),
        chain(add.s(1, 2), add.s(3)),
        group(add.s(1, 1), add.s(2, 2)),
        chord([add.s(1, 1)], xsum.s()),
        chain(group(add.s(1, 1), mul.s(2, 2)), xsum.s()),
    ):
        back = signature(json.loads(json.dumps(whole)))
        assert type(back) is type(whole)
        assert given(back) == given(whole)


def test_a_signature_is_an_argument() -> None:
    @app.task
    def apply_it(given: Any) -> int:
        return int(signature(given).apply().get())

    assert given(apply_it.s(add.s(2, 3))) == 5


def test_arguments_are_put_before_its_own() -> None:
    assert given(add.s(2), 1) == 3
    assert add.s(2).clone((1,)).args == (1, 2)
    assert add.s(2).clone(kwargs={"z": 5}).kwargs == {"z": 5}
    assert add.s(2)(1) == 3
    assert given(add.si(2, 2), 1) == 4
    assert add.s(1, 1).set(queue="x", immutable=True).options == {"queue": "x"}
    own = add.s(1, 1)
    own.clone(countdown=5)
    assert own.options == {}


def test_a_signature_may_be_of_a_name() -> None:
    assert given(signature("elsewhere.named")) == "by its name"
    assert given(app.signature("elsewhere.named", immutable=True)) == "by its name"
    assert maybe_signature(None) is None
    assert maybe_signature(add) == add.s()
    with pytest.raises(NotSupported, match="takes signatures"):
        maybe_signature(3)


def test_options_that_are_not_there_are_refused() -> None:
    with pytest.raises(NotSupported, match="use queue"):
        add.s(1).set(exchange="x")
    with pytest.raises(NotSupported, match="use queue"):
        add.signature((1,), routing_key="x")
    for name in ("freeze", "stamp", "replace"):
        with pytest.raises(AttributeError, match=rf"has no Signature\.{name}: use "):
            getattr(add.s(1), name)


# -- chains ---------------------------------------------------------------------------------------


def test_a_chain_hands_each_result_on() -> None:
    assert given(add.s(2, 2) | add.s(4) | mul.s(3)) == 24
    assert given(chain(add.s(2, 2), add.s(4))) == 8
    assert given(chain([add.s(2, 2), add.s(4)])) == 8
    assert given(chain(add.s(2), add.s(4)), 1) == 7
    result = chain(add.s(2, 2), add.s(4))()
    drain(raises=True)
    assert (result.get(timeout=1), result.parent.get(timeout=1)) == (8, 4)
    assert result.parent.parent is None


def test_chains_in_chains_are_one() -> None:
    whole = add.s(1, 1) | (add.s(1) | add.s(1)) | add.s(1)
    assert len(whole.tasks) == 4
    assert repr(chain(add.s(1, 1), add.s(2))) == (
        "tests.celery.tasks.add(1, 1) | tests.celery.tasks.add(2)"
    )
    assert given(whole) == 5


def test_an_immutable_one_takes_no_result() -> None:
    assert given(add.s(1, 1) | add.si(5, 5)) == 10
    assert given(add.s(1, 1) | tasks.identity.si("mine") | identity.s()) == "mine"


def test_results_of_any_kind_are_handed_on() -> None:
    for value in (None, [], {}, [1, [2]], {"a": {"b": None}}, "text", 1.5, True):
        assert given(identity.s(value) | identity.s()) == value


def test_a_chain_of_one_and_its_ids() -> None:
    assert given(chain(add.s(1, 1))) == 2
    result = chain(add.s(1, 1), add.s(1)).apply_async(task_id="last")
    drain(raises=True)
    assert (result.id, AsyncResult("last").get(timeout=1)) == ("last", 3)


def test_a_chain_stops_where_it_fails() -> None:
    result = chain(add.s(1, 1), tasks.fail_in_its_own_way.s(), tasks.note.s())()
    drain()
    assert (seen, result.state) == ([], "PENDING")
    with pytest.raises(tasks.OwnError):
        result.get(timeout=5)
    assert isinstance(result.get(timeout=5, propagate=False), tasks.OwnError)
    assert result.parent.failed()


def test_a_chain_goes_on_after_a_retry_of_its_task() -> None:
    assert given_after_failures(tasks.retried.s(2) | add.s(10)) == 12


def given_after_failures(canvas: Any) -> Any:
    result = canvas.apply_async()
    drain()
    return result.get(timeout=1)


def test_behind_an_ignored_task_the_next_gets_none() -> None:
    whole = tasks.ignored.s() | tasks.note.s()
    whole.apply_async()
    drain()
    whole.apply()
    assert seen == [(None,), (None,)]


def test_options_of_a_chain() -> None:
    result = chain(add.s(1, 1), add.s(1)).apply_async(countdown=60, queue="slow")
    assert drain() == Drained()
    with pytest.raises(TimeoutError):
        result.get(timeout=0)
    with travel(61):
        drain(raises=True)
    assert (result.get(timeout=1), result.queue) == (3, "slow")


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(NotSupported, match="empty chain"):
        chain().apply_async()


# -- groups ---------------------------------------------------------------------------------------


def test_a_group_gives_all_results_in_order() -> None:
    result = group(add.s(i, i) for i in range(10))()
    assert isinstance(result, GroupResult)
    assert (result.completed_count(), result.ready(), result.waiting()) == (0, False, True)
    drain(raises=True)
    assert result.get(timeout=1) == result.join(timeout=1) == [2 * i for i in range(10)]
    assert (result.completed_count(), result.successful(), result.failed()) == (10, True, False)
    assert [each.get(timeout=1) for each in result] == result.get()
    assert (len(result), result[1].get(), len(result.children)) == (10, 2, 10)
    assert find_flow(result.id) is not None


def test_arguments_of_a_group_go_to_each_task() -> None:
    assert given(group(add.s(1), mul.s(10)), 5) == [6, 50]
    assert given(group([add.s(1, 1), chain(add.s(1, 1), add.s(1))])) == [2, 3]
    assert given(group(add.s(1, 1), group(add.s(2, 2), add.s(3, 3)))) == [2, [4, 6]]
    assert given(group([])) == []


def test_a_failure_in_a_group_is_raised() -> None:
    result = group(add.s(1, 1), tasks.fail.s())()
    drain()
    assert (result.failed(), result.successful(), result.ready()) == (True, False, True)
    with pytest.raises(ValueError, match="it broke"):
        result.get(timeout=1)
    found = result.get(timeout=1, propagate=False)
    assert (found[0], type(found[1])) == (2, ValueError)


def test_a_group_is_revoked() -> None:
    result = group(add.s(1, 1), add.s(2, 2))()
    result.revoke()
    assert [each.state for each in result] == ["REVOKED", "REVOKED"]


# -- chords ---------------------------------------------------------------------------------------


def test_a_chord_hands_all_results_to_its_body() -> None:
    header = [add.s(i, i) for i in range(5)]
    result = chord(header)(xsum.s())
    drain(raises=True)
    assert result.get(timeout=1) == 20
    assert result.parent.get(timeout=1) == [0, 2, 4, 6, 8]
    assert given(chord(header, xsum.s())) == 20
    assert given(group(header) | xsum.s()) == 20
    assert given(chord([], xsum.s())) == 0


def test_groups_in_chains() -> None:
    header = group(add.s(1), add.s(2))
    assert given(add.s(1, 1) | header | xsum.s()) == 7
    assert given(chain(add.s(1, 1), header, xsum.s(), add.s(1))) == 8
    assert given(add.s(1, 1) | header) == [3, 4]
    assert given(chain(header, identity.s(), xsum.s()), 1) == 5
    assert given(header | group(xsum.s(), identity.s()), 1) == [5, [2, 3]]
    assert given(add.s(1, 1) | group(header, add.s(10)) | identity.s()) == [[3, 4], 12]


def test_a_chord_of_chains_with_a_chain_behind_it() -> None:
    whole = chord([add.s(1, 1) | add.s(1), add.s(2, 2)], xsum.s() | mul.s(2))
    assert given(whole) == 14
    assert given(whole | add.s(1)) == 15
    assert given(chord([chord([add.s(1, 1)], xsum.s()), add.s(3, 3)], xsum.s())) == 8
    assert given(chord([group(add.s(1, 1), add.s(2, 2)), add.s(3, 3)], xsum.s())) == 12


def test_an_immutable_body_takes_no_results() -> None:
    assert given(chord([add.s(1, 1)], add.si(7, 7))) == 14
    with pytest.raises(TypeError, match="needs a body"):
        chord([add.s(1, 1)])()


def test_the_body_says_which_task_has_failed() -> None:
    result = chord([add.s(1, 1), tasks.fail.s("of two")])(xsum.s())
    drain()
    with pytest.raises(ChordError, match=r"raised ValueError\('of two'\)"):
        result.get(timeout=5)


# -- links ----------------------------------------------------------------------------------------


def test_links_get_the_result() -> None:
    result = add.apply_async((2, 2), link=[tasks.note.s("one"), tasks.note.si("two")])
    drain(raises=True)
    assert result.get(timeout=1) == 4
    assert sorted(seen, key=str) == [("two",), (4, "one")]
    seen.clear()
    linked = add.s(1, 1)
    linked.link(tasks.note.s())
    given(linked | add.s(5))
    assert seen == [(2,)]


def test_errbacks_get_request_and_exception() -> None:
    failed = tasks.fail.apply_async(link_error=tasks.errback.s())
    drain()
    assert seen == [(failed.id, "ValueError('it broke')")]
    seen.clear()
    (add.s(1, 1) | tasks.fail_in_its_own_way.s()).on_error(tasks.errback.s()).apply_async()
    drain()
    assert [each[1] for each in seen] == ["OwnError('one of ours')"]
    seen.clear()
    failed = tasks.fail.apply_async(link_error=[tasks.old_errback.s(), tasks.note.si("mine")])
    drain()
    assert sorted(seen, key=str) == [("mine",), failed.id]
    seen.clear()
    add.apply_async((1, 1), link_error=tasks.errback.s())
    drain(raises=True)
    assert seen == []


# -- here and now ---------------------------------------------------------------------------------


def test_a_canvas_is_applied_here() -> None:
    assert (add.s(1, 1) | add.s(2)).apply().get() == 4
    assert (add.s(1, 1) | add.s(2)).apply().parent.get() == 2
    assert group(add.s(1, 1), add.s(2, 2)).apply().get() == [2, 4]
    assert chord([add.s(1, 1), add.s(2, 2)], xsum.s()).apply().get() == 6
    assert (add.s(1, 1) | group(add.s(1), add.s(2)) | xsum.s()).apply().get() == 7
    linked = add.apply((1, 1), link=tasks.note.s())
    assert (linked.get(), seen) == (2, [(2,)])
    tasks.fail.apply(link_error=tasks.errback.s())
    assert seen[-1][1] == "ValueError('it broke')"
    assert drain() == Drained()


def test_inverted_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    app.conf.task_always_eager = True
    assert ~(add.s(1, 1) | add.s(2)) == 4
    assert isinstance(add.s(1), Signature)


# -- maps -----------------------------------------------------------------------------------------


def test_a_map_is_one_task_that_calls_another_with_each_item() -> None:
    assert given(identity.map(range(3))) == [0, 1, 2]
    assert given(add.starmap(zip(range(3), range(3), strict=True))) == [0, 2, 4]
    assert given(chain(add.s(1, 2), identity.map([5, 6]), xsum.s())) == 11
    assert given(group(identity.map([1]), add.starmap([(2, 3)]))) == [[1], [5]]
    assert identity.map([1]) == xmap(identity.s(), [1])
    assert add.starmap([(1, 2)]) == xstarmap(add.s(), [(1, 2)])
    back = signature(json.loads(json.dumps(identity.map([1, 2]))))
    assert given(back) == [1, 2]
    assert identity.map([1, 2]).apply().get() == [1, 2]


def test_chunks_are_a_group_of_parts_of_the_list() -> None:
    items = [(n, n) for n in range(5)]
    parts = add.chunks(items, 2)
    assert (isinstance(parts, group), len(parts)) == (True, 3)
    assert given(parts) == [[0, 2], [4, 6], [8]]
    assert given(parts.group()) == [[0, 2], [4, 6], [8]]
    assert given(chunks(add.s(), iter(items), 10)) == [[0, 2, 4, 6, 8]]
    assert given(chord(add.chunks([(1, 1), (2, 2)], 1), identity.s())) == [[2], [4]]
    assert parts.apply().get() == [[0, 2], [4, 6], [8]]
    with pytest.raises(ValueError, match="a chunk has 1 to 1,000,000 items, not 0"):
        add.chunks(items, 0)
