"""Batches whose workers die at every point: what follows comes, at least once and never early."""

from __future__ import annotations

import pytest

from tests.support.process import Project
from tests.worker.scenes import Scene, in_order, played

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]


def counts(scene: Scene, *words: str) -> list[int]:
    """Count how often these ran."""
    return [scene.words.count(word) for word in words]


@pytest.mark.on_rabbitmq_in_ci
def test_a_worker_that_dies_as_the_last_member_ends(project: Project) -> None:
    scenes = played(project, "member")
    for scene in scenes:
        for member in "ab":
            in_order(scene, member, "then")
            in_order(scene, member, "finally")
        assert counts(scene, "then", "finally") == [1, 1], scene
        assert counts(scene, "a") == [1], scene
        assert scene.words.count("b") <= 2, scene
    assert counts(scenes[0], "b") == [2]  # it was done, and nobody had heard
    assert counts(scenes[-1], "a", "b") == [1, 1]


@pytest.mark.slow
def test_a_worker_that_dies_as_a_member_fails(project: Project) -> None:
    scenes = played(project, "failed-member")
    for scene in scenes:
        in_order(scene, "a", "catch")
        in_order(scene, "a", "finally")
        in_order(scene, "b", "finally")
        assert counts(scene, "catch", "then", "finally") == [1, 0, 1], scene
        assert counts(scene, "b") == [1], scene
    found = {record.queue for record in project.failed()}
    assert found >= {scene.name for scene in scenes}


@pytest.mark.slow
def test_a_worker_that_dies_as_it_tells_of_a_batch(project: Project) -> None:
    """Each callback comes; those that were being told as it died may come twice."""
    scenes = played(project, "telling")
    for scene in scenes:
        for word in ("progress", "then", "then2", "finally"):
            in_order(scene, "a", word)
        more = [count - 1 for count in counts(scene, "progress", "then", "finally")]
        assert sum(more) <= 1, scene
        assert counts(scene, "a") == [1], scene
    assert counts(scenes[-1], "progress", "then", "then2", "finally") == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_worker_that_dies_as_it_begins_a_batch_in_a_chain(project: Project) -> None:
    """Every member is pushed, whether or not it had been; the chain goes on when all are done."""
    scenes = played(project, "beginning")
    for scene in scenes:
        in_order(scene, "a", "before")
        in_order(scene, "a", "m2", "m3", "z")
        in_order(scene, "m1", "z")
        in_order(scene, "m1", "then")
        in_order(scene, "m3", "then")
        assert counts(scene, "a", "z", "then") == [1, 1, 1], scene
        assert max(counts(scene, "before", "m1", "m2", "m3")) <= 2, scene
    assert counts(scenes[-1], "before", "m1", "m2", "m3") == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_worker_that_dies_as_a_chain_goes_on_behind_a_batch(project: Project) -> None:
    scenes = played(project, "going-on")
    for scene in scenes:
        in_order(scene, "m", "y", "z", "then")
        assert counts(scene, "m", "then") == [1, 1], scene
        if project.queue.context.joint:
            assert counts(scene, "z") == [1], scene
    assert counts(scenes[-1], "y", "z") == [1, 1]
