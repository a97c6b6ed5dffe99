"""Chains whose workers die at every point of a link's end: nothing lost, and no link twice."""

from __future__ import annotations

import json
import shutil

import pytest

from qframe import batch, chain, manager
from tests.support.process import Project, wait_for
from tests.worker import killing
from tests.worker.scenes import Scene, in_order, played

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]


def once(scene: Scene, *words: str) -> None:
    """Check that these ran once each."""
    assert [scene.words.count(word) for word in words] == [1] * len(words), scene


@pytest.mark.on_rabbitmq_in_ci
def test_a_worker_that_dies_as_a_link_ends(project: Project) -> None:
    """Where store and queue are one, only the link itself may run twice."""
    scenes = played(project, "chain")
    for scene in scenes:
        in_order(scene, "a", "b", "c")
        assert scene.words.count("a") <= 2, scene
        if project.queue.context.joint:
            once(scene, "b", "c")
    once(scenes[-1], "a", "b", "c")
    assert scenes[0].words.count("a") == 2  # it was done, and nobody had heard
    assert project.failed() == []


@pytest.mark.slow
def test_a_worker_that_dies_as_the_last_link_ends(project: Project) -> None:
    """Its batch counts it once, and what follows that never comes before."""
    scenes = played(project, "end")
    for scene in scenes:
        in_order(scene, "a", "b", "then")
        in_order(scene, "b", "finally")
        once(scene, "a")
        if project.queue.context.joint:
            once(scene, "then", "finally")
    once(scenes[-1], "a", "b", "then", "finally")
    assert project.failed() == []


@pytest.mark.slow
@pytest.mark.on_rabbitmq_in_ci
def test_a_worker_that_dies_as_a_link_fails(project: Project) -> None:
    """What is to catch it comes, the links behind it do not."""
    scenes = played(project, "failure")
    for scene in scenes:
        in_order(scene, "a", "catch")
        assert "b" not in scene.words, scene
    once(scenes[-1], "a", "catch")
    found = {record.queue for record in project.failed()}
    assert found >= {scene.name for scene in scenes}


@pytest.mark.every_backend
def test_two_workers_run_a_chain_with_a_batch_in_it(project: Project) -> None:
    def step(word: str) -> killing.Step:
        return killing.Step(scene="s", word=word)

    shutil.copy(killing.__file__, project.root / "killing.py")
    manager.use(project.manager)
    try:
        inner = batch([step("m1"), [step("m2"), step("m3")]]).then(step("then"))
        chain([step("a"), inner, step("z")]).catch(step("catch")).dispatch()
    finally:
        manager.use(None)
    workers = [project.work() for _ in range(2)]
    wait_for(lambda: {"then", "z"} <= {line[2] for line in project.notes("D")}, "the end")
    wait_for(project.empty, "nothing to be left")
    assert project.stop(workers) == [0, 0]
    words = [line[2] for line in project.notes("S")]
    assert sorted(words) == ["a", "m1", "m2", "m3", "then", "z"]
    assert words[0] == "a"
    assert words.index("m2") < words.index("m3") < words.index("z")
    assert project.failed() == []
    assert not [*project.manager.connection().store.keys("chain:")]


@pytest.mark.embedded_only
def test_a_batch_in_a_chain_goes_to_the_queue_of_the_chain(project: Project) -> None:
    inner = batch([killing.Step(scene="s", word="m")]).then(killing.Step(scene="s", word="then"))
    plan = chain([inner]).on_queue("x").plan(project.queue, None, {})
    kept = json.loads(plan.links[0].raw)["data"]
    assert kept["default_queue"] == "x"
    assert kept["members"][0]["links"][0]["queue"] == "x"
    assert kept["follow"]["then"][0]["queue"] == "x"
