"""Chains whose workers die at every point of a link's end: nothing lost, and no tail twice."""

from __future__ import annotations

import json

import pytest

from qframe import batch, chain, tail
from qframe.drivers import following
from qframe.drivers.base import BaseQueue
from tests.support.process import Project
from tests.worker import killing
from tests.worker.scenes import Scene, in_order, played

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


def once(scene: Scene, *words: str) -> None:
    """Check that these ran once each."""
    assert [scene.words.count(word) for word in words] == [1] * len(words), scene


@pytest.mark.every_backend
def test_a_worker_that_dies_as_a_link_ends(project: Project) -> None:
    """Where store and queue are one, only the link itself may run twice."""
    scenes = played(project, "chain")
    for scene in scenes:
        in_order(scene, "a", "b", "c")
        assert scene.words.count("a") <= 2, scene
        if project.queue.noting:
            once(scene, "b", "c")
    once(scenes[-1], "a", "b", "c")
    assert scenes[0].words.count("a") == 2  # it was done, and nobody had heard
    assert project.failed() == []


def test_a_worker_that_dies_as_the_last_link_ends(project: Project) -> None:
    """Its batch counts it once, and what follows that never comes before."""
    scenes = played(project, "end")
    for scene in scenes:
        in_order(scene, "a", "b", "then")
        in_order(scene, "b", "finally")
        once(scene, "a")
        if project.queue.noting:
            once(scene, "then", "finally")
    once(scenes[-1], "a", "b", "then", "finally")
    assert project.failed() == []


def test_a_worker_that_dies_as_a_link_fails(project: Project) -> None:
    """What is to catch it comes, the links behind it do not."""
    scenes = played(project, "failure")
    for scene in scenes:
        in_order(scene, "a", "catch")
        assert "b" not in scene.words, scene
    once(scenes[-1], "a", "catch")
    found = {record.queue for record in project.failed()}
    assert found >= {scene.name for scene in scenes}


@pytest.mark.embedded_only
def test_whoever_goes_on_again_knows_a_chain_that_runs_from_one_that_ended(
    project: Project,
) -> None:
    """Else a batch would count a chain as done whose last links wait."""
    queue: BaseQueue = project.queue
    store = queue.lock_store()
    assert store is not None
    links = [tail.Link(uuid, b'{"uuid":"%s"}' % uuid.encode(), "default", 0) for uuid in "abc"]
    tail.begin(store, "x", links, [])
    assert following.advance(queue, "x", "a")
    assert following.advance(queue, "x", "a")  # perhaps nobody pushed b: it is pushed again
    assert project.sizes().ready == 2
    assert following.advance(queue, "x", "b")
    assert following.advance(queue, "x", "a")  # c runs, or waits: the chain is not at its end
    assert project.sizes().ready == 3
    assert not following.advance(queue, "x", "c")
    assert not following.advance(queue, "x", "c")


@pytest.mark.embedded_only
def test_a_batch_in_a_chain_goes_to_the_queue_of_the_chain(project: Project) -> None:
    inner = batch([killing.Step(scene="s", word="m")]).then(killing.Step(scene="s", word="then"))
    plan = chain([inner]).on_queue("x").plan(project.queue, None, None)
    kept = json.loads(plan.links[0].raw)["data"]
    assert kept["default_queue"] == "x"
    assert kept["members"][0]["links"][0]["queue"] == "x"
    assert kept["follow"]["then"][0]["queue"] == "x"
