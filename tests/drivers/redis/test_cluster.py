"""A Redis Cluster: queues in different slots, slots that move, masters that die.

What a backend promises, and what chains and batches do, is tested on a Cluster by the suites of all
backends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Renew, Set, Start, Step
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable, BackendUnusable
from qframe.testing.conformance.steps import apply, drained, push, reserve, started
from tests.drivers.redis.acts import LOOKS, PUSHES, WORK, do_all, payload, prepared, ready
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.drivers.redis.producing import Producer, Waiting, blocked, check_all_done, cut_off
from tests.support.process import wait_for
from tests.support.projects import SECRET, body, lines_with, rights
from tests.support.redis_server import RedisCluster, RedisServer, wait_until

pytestmark = pytest.mark.slow
QUEUE = "emails"
LONG = 60.0


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    """The Cluster of three nodes that all tests share, emptied."""
    redis_cluster.empty()
    return redis_cluster


Open = Callable[..., Backend]


@pytest.fixture
def open_cluster(open_backend: Opener) -> Open:
    """What opens a backend on a Cluster as connections have it."""

    def opener(cluster: RedisCluster, url: str = "", **settings: object) -> Backend:
        made = open_backend(url or cluster.url, cluster=True, **settings)
        return OrderedBackend(made, made, made)

    return opener


@pytest.fixture
def backend(cluster: RedisCluster, open_cluster: Open) -> Backend:
    return open_cluster(cluster)


def key(name: str) -> str:
    return f"queues:{{{name}}}"


def apart(cluster: RedisCluster, prefix: str = "queue") -> list[str]:
    """Give the names of three queues, each on a node of its own."""
    found: dict[int, str] = {}
    for number in range(1000):
        name = f"{prefix}-{number}"
        found.setdefault(cluster.node_of(key(name)).port, name)
        if len(found) == len(cluster.masters):
            return list(found.values())
    raise AssertionError(found)


# -- what can be done -----------------------------------------------------------------------------


def test_everything_can_be_done_in_a_cluster(backend: Backend) -> None:
    assert Capability.JOINT not in backend.capabilities
    do_all(prepared(backend, PUSHES, WORK, LOOKS))


def test_queues_on_several_nodes_are_worked_strictly_in_order(
    cluster: RedisCluster, backend: Backend
) -> None:
    names = apart(cluster)
    for name in reversed(names):
        push(backend, *(payload(n) for n in range(3)), queue=name)
    assert backend.queues() == sorted(names)
    jobs, _ = backend.reserve(names, 7)
    assert [job.queue for job in jobs] == [*names[:1] * 3, *names[1:2] * 3, names[2]]
    heard: list[bool] = []
    for before, job in zip([None, *jobs], jobs, strict=False):
        steps = [before.delete()] if before else []
        backend.apply_async(
            [*steps, Step(job, Start(60))], lambda r: heard.extend(x.applied for x in r)
        )
    (last,), (deleted,) = backend.reserve(names, 1, first=[jobs[-1].delete()])
    assert (last.queue, last.attempts, deleted.applied) == (names[2], 0, True)
    assert [backend.sizes(name) for name in names] == [Sizes(), Sizes(), Sizes(1, 0, 1, 0)]
    assert heard == [True] * 13


def test_a_wait_on_several_nodes_ends_with_a_push_to_any(
    cluster: RedisCluster, backend: Backend, open_cluster: Open
) -> None:
    names = apart(cluster)
    other = open_cluster(cluster, block_for=LONG)
    for name in names:
        with Waiting(other, names, LONG) as waiting:
            wait_until(lambda: blocked(*cluster.nodes) == len(names), "one waiting on each node")
            push(backend, payload(), queue=name)
            wait_for(waiting.over, "the end of the wait")
        assert waiting.error is None
        assert drained(backend, *names) == [payload()]
        # None is left behind that would take a token from another worker.
        wait_until(lambda: blocked(*cluster.nodes) == 0, "nobody waiting")


def test_a_queue_only_laravel_has_pushed_to_is_found_on_whatever_node(
    cluster: RedisCluster, backend: Backend
) -> None:
    names = apart(cluster)
    for name in names:
        cluster.node_of(key(name)).command("RPUSH", key(name), body())
    assert backend.queues() == sorted(names)


def test_the_node_of_the_url_need_not_be_there(cluster: RedisCluster, open_cluster: Open) -> None:
    nodes = [cluster.nodes[1].host_and_port]
    push(open_cluster(cluster, "redis://127.0.0.1:1", nodes=nodes), payload())


def test_the_documented_rights_are_enough_in_a_cluster(
    cluster: RedisCluster, open_cluster: Open
) -> None:
    url = cluster.nodes[0].url_as("qframe", SECRET)
    try:
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", "qframe", "on", *rights("Cluster"))
        backend = open_cluster(cluster, url)
        do_all(prepared(backend, PUSHES, WORK, LOOKS))
        push(backend, payload(), queue=QUEUE)
        job = started(backend, QUEUE)
        with Move(cluster, QUEUE) as move:
            move.move_keys(f"{key(QUEUE)}:reserved".encode())
            apply(backend, job, Renew(60))
        without = [right for right in rights("Cluster") if right != "+cluster|slots"]
        cluster.nodes[0].command("ACL", "SETUSER", "qframe", "reset", "on", *without)
        with pytest.raises(BackendUnusable, match=r"its ACL forbids this user .*cluster.slots"):
            open_cluster(cluster, url).check()
    finally:
        for node in cluster.nodes:
            node.command("ACL", "DELUSER", "qframe")


def test_real_workers_and_commands_on_a_cluster(
    cluster: RedisCluster, make_project: MakeProject
) -> None:
    names = apart(cluster)
    app = make_project(url=cluster.url, cluster=True)
    for name in names:
        app.push("Note", {"word": name}, queue=name)
        app.push("Flaky", queue=name)
    sizes = json.loads(app.qframe("size", "--json").out)
    assert {row["queue"]: row["ready"] for row in sizes} == {
        "default": 0, **dict.fromkeys(names, 2)
    }  # fmt: skip
    worker = app.work("redis", "--queue", "queue-*")
    wait_for(lambda: len(app.failed()) == len(names), "the failed jobs")
    assert sorted(app.done()) == sorted(names)
    assert app.qframe("retry", "all").code == 0
    app.wait_for_note("start", "flaky", count=2 * len(names))
    wait_for(lambda: len(app.failed()) == len(names), "the jobs that failed again", 60)
    assert app.qframe("pause").code == 0
    assert app.qframe("resume").code == 0
    assert worker.stop() == 0
    assert (worker.err, lines_with(worker, "gone")) == ("", [])
    assert all(app.empty(name) for name in names)


# -- slots that move ------------------------------------------------------------------------------


class Move:
    """The move of a queue's slot to another node, step by step, and back at the end."""

    def __init__(self, cluster: RedisCluster, name: str) -> None:
        self.cluster = cluster
        self.slot = int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", key(name)))
        self.source = cluster.node_of(key(name))
        self.target = next(node for node in cluster.masters if node is not self.source)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.source, self.target = self.target, self.source
        self.begin()
        self.finish()

    def begin(self) -> None:
        """From now on, what the source has not, it asks others to ask the target for."""
        source, target = (node.command("CLUSTER", "MYID") for node in (self.source, self.target))
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    def left(self) -> list[bytes]:
        """Give the keys the source has left."""
        return list(self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100))

    def move_keys(self, *names: bytes) -> None:
        """Move some keys, or all."""
        for each in names or self.left():
            self.source.command("MIGRATE", *self.target.address, each, 0, 5000)

    def finish(self) -> None:
        """The slot is the target's."""
        while self.left():
            self.move_keys()
        new = self.target.command("CLUSTER", "MYID")
        for node in (self.target, self.source, *self.cluster.masters):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", new)
        self.cluster.wait_until_epochs_are_known()


def test_a_queue_that_has_moved_is_found(cluster: RedisCluster, backend: Backend) -> None:
    push(backend, payload(), queue=QUEUE)
    job = started(backend, QUEUE)
    push(backend, payload(), queue=QUEUE, delay=60)
    with Move(cluster, QUEUE) as move:
        move.finish()
        apply(backend, job, Renew(60))
        assert backend.apply(job.delete())[0].applied
        push(backend, payload(1), queue=QUEUE)
        assert drained(backend, QUEUE) == [payload(1)]
        assert backend.sizes(QUEUE) == Sizes(delayed=1, reserved=1)
        assert backend.queues() == [QUEUE]


def test_an_unheard_start_and_deletion_outlive_a_move(
    cluster: RedisCluster, backend: Backend
) -> None:
    """They were said to the node that had the slot, which only says where it is now."""
    push(backend, payload(), payload(1), queue=QUEUE)
    (done, job), _ = backend.reserve([QUEUE], 2)
    apply(backend, done, Start(60))
    heard: list[bool] = []
    with Move(cluster, QUEUE) as move:
        move.finish()
        job.sure_until = float("inf")
        backend.apply_async(
            [done.delete(), Step(job, Start(60))], lambda r: heard.extend(x.applied for x in r)
        )
        apply(backend, job, Renew(60))
        assert backend.sizes(QUEUE) == Sizes(reserved=1)
        assert heard == [True, True]
        apply(backend, job, *job.release().operations)
        assert reserve(backend, QUEUE).attempts == 1


def test_a_key_that_has_gone_ahead_is_asked_for(cluster: RedisCluster, backend: Backend) -> None:
    """While a slot moves, its jobs can be renewed and deleted on either side (ASK)."""
    push(backend, payload(), payload(1), queue=QUEUE)
    (done, job), _ = backend.reserve([QUEUE], 2)
    apply(backend, done, Start(60))
    apply(backend, job, Start(60))
    with Move(cluster, QUEUE) as move:
        apply(backend, job, Renew(60))
        move.move_keys(f"{key(QUEUE)}:reserved".encode())
        assert backend.apply(done.delete())[0].applied
        apply(backend, job, Renew(60))
        assert backend.apply(job.delete())[0].applied
    assert backend.sizes(QUEUE) == Sizes()


def test_a_queue_in_the_middle_of_a_move_is_said_to_be(
    cluster: RedisCluster, backend: Backend
) -> None:
    """Of several keys, some here and some there, nobody can do anything (TRYAGAIN)."""
    push(backend, payload(), payload(1), payload(2), queue=QUEUE)
    push(backend, payload(), queue=QUEUE, delay=60)
    job = started(backend, QUEUE)
    acts: list[Callable[[], object]] = [
        lambda: backend.reserve([QUEUE]),
        lambda: push(backend, payload(3), queue=QUEUE),
        lambda: push(backend, payload(3), queue=QUEUE, delay=5),
        lambda: backend.apply(job.release()),
        lambda: backend.apply(job.release(5)),
        lambda: backend.apply(job.bury()),
        lambda: backend.sizes(QUEUE),
        lambda: backend.purge(QUEUE),
    ]
    names = [f"{key(QUEUE)}{end}".encode() for end in ("", ":delayed", ":notify", ":reserved")]
    for name in names:
        with Move(cluster, QUEUE) as move:
            move.move_keys(name)
            for act in acts:
                with pytest.raises(BackendUnavailable, match="the cluster is moving this queue"):
                    act()
        assert backend.sizes(QUEUE) == Sizes(ready=2, delayed=1, reserved=1), name
    assert backend.apply(job.release())[0].applied
    push(backend, payload(3), queue=QUEUE)
    assert drained(backend, QUEUE) == [payload(n) for n in (1, 2, 0, 3)]


def test_facts_in_the_middle_of_a_move_are_not_split(
    cluster: RedisCluster, backend: Backend
) -> None:
    apply(backend, None, Set("here", "1"))
    with Move(cluster, "facts") as move:
        move.slot = int(cluster.nodes[0].command("CLUSTER", "KEYSLOT", "qframe:{facts}"))
        move.source = cluster.node_of("qframe:{facts}")
        move.target = next(node for node in cluster.masters if node is not move.source)
        move.begin()
        with pytest.raises(BackendUnavailable, match="the cluster is moving"):
            apply(backend, None, Set("here", "2"), Set("there", "2"))
    assert backend.read("here", "there") == ["1", None]


def test_a_wait_ends_when_its_queue_moves(
    cluster: RedisCluster, backend: Backend, open_cluster: Open
) -> None:
    other = open_cluster(cluster, block_for=LONG)
    with Waiting(other, [QUEUE], LONG) as waiting:
        wait_until(lambda: blocked(*cluster.nodes) == 1, "the wait")
        with Move(cluster, QUEUE) as move:
            move.finish()
            wait_for(waiting.over, "the end of the wait")
    assert waiting.error is None
    push(backend, payload(), queue=QUEUE)
    assert drained(other, QUEUE) == [payload()]


def test_no_job_is_lost_while_slots_move(cluster: RedisCluster, make_project: MakeProject) -> None:
    names = apart(cluster)
    app = make_project(url=cluster.url, cluster=True, retry_after=3)
    workers = [app.work("redis", "--queue", ",".join(names)) for _ in range(2)]
    with Producer(app, *names) as producer:
        app.wait_for_note("D", count=20)
        for name in names[:2]:
            with Move(cluster, name) as move:
                for each in move.left():
                    move.move_keys(each)
                    time.sleep(0.05)
                move.finish()
                producer.wait_for_more()
            producer.wait_for_more()
    assert {words.partition(": ")[2][:30] for words in producer.refusals} <= {
        "the cluster is moving this queue"[:30]
    }
    check_all_done(app, producer, workers)
    assert all(app.empty(name) for name in names)


# -- masters that die -----------------------------------------------------------------------------


def test_no_acknowledged_job_is_lost_when_a_master_dies(
    tmp_path: Path, make_project: MakeProject, open_backend: Opener
) -> None:
    """Its replica takes over, and later it comes back as the other's."""
    with RedisCluster(tmp_path / "cluster", replicas=1, node_timeout=1000) as replicated:
        names = apart(replicated)
        app = make_project(
            url=replicated.url, cluster=True, retry_after=3, min_replicas=1, replica_timeout=0.1
        )
        workers = [app.work("redis", "--queue", ",".join(names)) for _ in range(2)]
        lister = open_backend(replicated.url, cluster=True)
        with Producer(app, *names) as producer:
            app.wait_for_note("D", count=20)
            dead = replicated.nodes[0]  # the one the URL names
            assert lister.pool.scan("*")
            (name,) = [name for name in names if replicated.node_of(key(name)) is dead]
            replica = replicated.replicas[0]
            cut_off(dead, [replica])
            producer.wait_for_refusal()
            dead.kill()
            replica.resume()
            wait_until(lambda: _serves(replicated, name, dead), "another master", 30)
            wait_until(lambda: lister.pool.scan("*"), "the queues to be listed again")
            producer.wait_for_more()
            dead.start()
            replicated.wait_until_ok()
            producer.wait_for_more()
            on_new_master = len(app.notes("D"))
        check_all_done(app, producer, workers)
        assert len(app.notes("D")) > on_new_master
        assert producer.refusals
        for worker in workers:
            assert len(lines_with(worker, " gone: ")) >= 1


def _serves(cluster: RedisCluster, name: str, dead: RedisServer) -> bool:
    node = cluster.node_of(key(name))
    return node is not dead and bool(node.command("ROLE")[0] == b"master")


@contextmanager
def dead_while(node: RedisServer) -> Iterator[None]:
    node.kill()
    yield
    node.start()


def test_a_dead_node_keeps_nobody_from_the_queues_of_the_others(
    tmp_path: Path, open_backend: Opener
) -> None:
    """The map is learnt anew from whoever was in the last one, not from the URL alone."""
    lines = ["cluster-require-full-coverage no"]
    with RedisCluster(tmp_path / "cluster", config=lines) as cluster:
        backend, other = (
            open_backend(cluster.url, cluster=True, connect_timeout=1, block_for=LONG)
            for _ in range(2)
        )
        names = apart(cluster)
        (lost,) = [name for name in names if cluster.node_of(key(name)) is cluster.nodes[0]]
        others = [name for name in names if name != lost]
        for name in others:
            push(backend, payload(), queue=name)
        waited = apart(cluster, "waited")
        waited.sort(key=lambda name: cluster.node_of(key(name)) is cluster.nodes[0])
        assert other.reserve(waited)[0] == []
        with dead_while(cluster.nodes[0]):
            with pytest.raises(BackendUnavailable):
                push(backend, payload(), queue=lost)
            with pytest.raises(BackendUnavailable):
                other.wait(waited, LONG)
            wait_until(lambda: blocked(*cluster.nodes) == 0, "nobody left waiting for a token")
            for name in others:
                assert drained(backend, name) == [payload()]
                push(backend, payload(1), queue=name)
                assert drained(backend, name) == [payload(1)]
        cluster.wait_until_ok()
        wait_until(lambda: ready(backend, lost) == 0, "the node to be back")
