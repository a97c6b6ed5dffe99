"""A Redis Cluster: queues in different slots, slots that move, masters that die."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from qframe.contracts import Capability, Sizes
from qframe.drivers.redis.queue import RedisQueue
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.drivers.redis.acts import ALL, Make
from tests.drivers.redis.conftest import Command, Connect, MakeProject
from tests.drivers.redis.support import (
    SECRET,
    Producer,
    Waiting,
    begin,
    body,
    check_all_done,
    cut_off,
    drain,
    lines_with,
    live,
    push,
    rights,
    take_all,
)
from tests.support.process import wait_for
from tests.support.redis_server import RedisCluster, RedisServer, wait_until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RedisCluster) -> RedisCluster:
    """Give the Cluster of three nodes that all tests share, emptied."""
    for node in running.nodes:
        node.command("FLUSHALL")
    return running


@pytest.fixture
def queue(cluster: RedisCluster, connect: Connect) -> RedisQueue:
    return connect(url=cluster.url, cluster=True)


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


# -- the life of a job ----------------------------------------------------------------------------


def test_a_job_lives_its_life_in_a_cluster(cluster: RedisCluster, queue: RedisQueue) -> None:
    for name in apart(cluster):
        live(queue, name)
    assert Capability.ATOMIC_FAIL not in queue.capabilities
    assert queue.ping().startswith(("Redis ", "Valkey "))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_everything_can_be_done_in_a_cluster(queue: RedisQueue, make: Make) -> None:
    act = make(queue)
    act.do()
    act.check()


def test_queues_on_several_nodes_are_worked_strictly_in_order(
    cluster: RedisCluster, queue: RedisQueue
) -> None:
    names = apart(cluster)
    pushed = {name: [push(queue, name) for _ in range(3)] for name in reversed(names)}
    assert queue.queues() == sorted(names)
    jobs = queue.reserve(names, 7)
    assert [job.uuid for job in jobs] == [uuid for name in names for uuid in pushed[name]][:7]
    done = None
    for job in jobs:
        assert queue.start(job, finished=done)
        done = job
    (last, *_) = queue.reserve(names, 1, finished=done)
    assert last.uuid == pushed[names[2]][1]
    assert done is not None
    assert done.is_deleted
    assert [queue.sizes(name) for name in names] == [Sizes(), Sizes(), Sizes(1, 0, 1, 0)]
    assert queue.refused() == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_wait_on_several_nodes_ends_with_a_push_to_any(
    cluster: RedisCluster, queue: RedisQueue, connect: Connect, which: int
) -> None:
    names = apart(cluster)
    waiting_queue = connect(url=cluster.url, cluster=True, block_for=60)
    for _ in range(2):
        assert waiting_queue.reserve(names) == []
        with Waiting(waiting_queue, names, 60) as waiting:
            wait_until(lambda: blocked(cluster) == len(names), "a client blocked on each node")
            uuid = push(queue, names[which])
            wait_for(waiting.over, "the end of the wait")
        assert waiting.error is None
        assert drain(queue, *names) == [uuid]
    # None is left behind that would take a token from another worker.
    wait_until(lambda: blocked(cluster) == 0, "no client blocked")


def blocked(cluster: RedisCluster) -> int:
    return sum(node.info("clients")["blocked_clients"] for node in cluster.nodes if node.alive())


def test_a_queue_only_laravel_has_pushed_to_is_found_on_whatever_node(
    cluster: RedisCluster, queue: RedisQueue
) -> None:
    names = apart(cluster)
    for name in names:
        cluster.node_of(key(name)).command("RPUSH", key(name), body())
    assert queue.queues() == sorted(names)


def test_the_node_of_the_url_need_not_be_there(cluster: RedisCluster, connect: Connect) -> None:
    nodes = [cluster.nodes[1].host_and_port]
    queue = connect(url="redis://127.0.0.1:1", cluster=True, nodes=nodes)
    live(queue)


def test_real_workers_and_commands_on_a_cluster(
    cluster: RedisCluster, make_project: MakeProject, run: Command
) -> None:
    names = apart(cluster)
    app = make_project(url=cluster.url, cluster=True)
    for name in names:
        app.push("Note", {"word": name}, queue=name)
        app.push("Flaky", queue=name)
    sizes = json.loads(run(app, "size", "--json").out)
    assert {row["queue"]: row["ready"] for row in sizes} == {
        "default": 0, **dict.fromkeys(names, 2)
    }  # fmt: skip
    worker = app.work("redis", "--queue", "queue-*")
    wait_for(lambda: len(app.failed()) == len(names), "the failed jobs")
    assert sorted(app.done()) == sorted(names)
    assert run(app, "retry", "all").code == 0
    app.wait_for_note("start", "flaky", count=2 * len(names))
    wait_for(lambda: len(app.failed()) == len(names), "the jobs that failed again", 60)
    assert run(app, "pause").code == 0
    assert run(app, "resume").code == 0
    assert worker.stop() == 0
    assert (worker.err, lines_with(worker, "gone")) == ("", [])
    assert all(app.empty(name) for name in names)


def test_the_documented_rights_are_enough_in_a_cluster(
    cluster: RedisCluster, connect: Connect
) -> None:
    try:
        for node in cluster.nodes:
            node.command("ACL", "SETUSER", "qframe", "on", *rights("Cluster"))
        queue = connect(url=cluster.nodes[0].url_as("qframe", SECRET), cluster=True)
        live(queue)
        push(queue)
        job = begin(queue)
        with Move(cluster, "emails") as move:
            move.move_keys(f"{key('emails')}:reserved".encode())
            job.delete()
        without = [right for right in rights("Cluster") if right != "+cluster|slots"]
        cluster.nodes[0].command("ACL", "SETUSER", "qframe", "reset", "on", *without)
        with pytest.raises(BackendUnusable, match=r"its ACL forbids this user .*cluster.slots"):
            connect(url=cluster.nodes[0].url_as("qframe", SECRET), cluster=True).ping()
    finally:
        for node in cluster.nodes:
            node.command("ACL", "DELUSER", "qframe")


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
        back = Move(self.cluster, "")
        back.slot, back.source, back.target = self.slot, self.target, self.source
        back.begin()
        back.move_keys()
        back.finish()

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
        self.move_keys()
        new = self.target.command("CLUSTER", "MYID")
        for node in (self.target, self.source, *self.cluster.masters):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", new)


def test_a_queue_that_has_moved_is_found(cluster: RedisCluster, queue: RedisQueue) -> None:
    push(queue)
    job = begin(queue)
    late = push(queue, delay=60)
    with Move(cluster, "emails") as move:
        move.finish()
        job.delete()
        uuid = push(queue)
        assert drain(queue) == [uuid]
        assert queue.sizes("emails") == Sizes(delayed=1)
        assert queue.queues() == ["emails"]
        assert late


def test_an_unheard_start_and_deletion_outlive_a_move(
    cluster: RedisCluster, queue: RedisQueue
) -> None:
    """They were said to the node that had the slot, which only says where it is now."""
    push(queue)
    push(queue)
    done, job = take_all(queue, 2)
    for each in (done, job):
        each.sure_until = float("inf")
    assert queue.start(done)
    queue.sizes("emails")
    with Move(cluster, "emails") as move:
        move.finish()
        assert queue.start(job, finished=done)
        job.renew()
        assert queue.sizes("emails") == Sizes(reserved=1)
        assert queue.refused() == []
        job.release()
        assert begin(queue).attempts() == 2


def test_a_key_that_has_gone_ahead_is_asked_for(cluster: RedisCluster, queue: RedisQueue) -> None:
    """While a slot moves, its jobs can be renewed and deleted on either side (ASK)."""
    push(queue)
    push(queue)
    done, job = take_all(queue, 2)
    for each in (done, job):
        each.sure_until = float("inf")
    assert queue.start(done)
    queue.sizes("emails")
    with Move(cluster, "emails") as move:
        move.move_keys(f"{key('emails')}:reserved".encode())
        assert queue.start(job, finished=done)
        job.renew()
        assert queue.refused() == []
        job.delete()
    assert queue.sizes("emails") == Sizes()


def test_a_queue_in_the_middle_of_a_move_is_said_to_be(
    cluster: RedisCluster, queue: RedisQueue
) -> None:
    """Of several keys, some here and some there, nobody can do anything (TRYAGAIN)."""
    uuid = push(queue)
    late = push(queue, delay=60)
    with Move(cluster, "emails") as move:
        move.move_keys(f"{key('emails')}:delayed".encode())
        for do in (lambda: queue.reserve(["emails"]), lambda: push(queue)):
            with pytest.raises(BackendUnavailable, match="the cluster is moving this queue"):
                do()
    assert drain(queue) == [uuid]
    assert queue.sizes("emails") == Sizes(delayed=1)
    assert late


def test_a_wait_ends_when_its_queue_moves(
    cluster: RedisCluster, queue: RedisQueue, connect: Connect
) -> None:
    waiting_queue = connect(url=cluster.url, cluster=True, block_for=60)
    assert waiting_queue.reserve(["emails"]) == []
    with Waiting(waiting_queue, ["emails"], 60) as waiting:
        wait_until(lambda: blocked(cluster) == 1, "the wait")
        with Move(cluster, "emails") as move:
            move.finish()
            wait_for(waiting.over, "the end of the wait")
    assert waiting.error is None
    uuid = push(queue)
    assert drain(waiting_queue) == [uuid]


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
    assert all("the cluster is moving this queue" in words for words in producer.refusals)
    check_all_done(app, producer, workers)
    assert all(app.empty(name) for name in names)


# -- masters that die -----------------------------------------------------------------------------


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[RedisCluster]:
    """Give a Cluster of its own whose masters have a replica each."""
    with RedisCluster(tmp_path / "cluster", replicas=1, node_timeout=1000) as made:
        yield made


def test_no_acknowledged_job_is_lost_when_a_master_dies(
    replicated: RedisCluster, make_project: MakeProject, connect: Connect
) -> None:
    """Its replica takes over, and later it comes back as the other's."""
    names = apart(replicated)
    app = make_project(
        url=replicated.url, cluster=True, retry_after=3, min_replicas=1, replica_timeout=0.1
    )
    workers = [app.work("redis", "--queue", ",".join(names)) for _ in range(2)]
    lister = connect(url=replicated.url, cluster=True)
    with Producer(app, *names) as producer:
        app.wait_for_note("D", count=20)
        dead = replicated.nodes[0]  # the one the URL names
        assert lister.links.scan("*")
        (name,) = [name for name in names if replicated.node_of(key(name)) is dead]
        replica = replicated.replicas[0]
        cut_off(dead, [replica])
        producer.wait_for_refusal()
        dead.kill()
        replica.resume()
        wait_until(lambda: serves(replicated, name, dead), "another master", 30)
        wait_until(lambda: lister.links.scan("*"), "the queues to be listed again")
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


def serves(cluster: RedisCluster, name: str, dead: RedisServer) -> bool:
    node = cluster.node_of(key(name))
    return node is not dead and bool(node.command("ROLE")[0] == b"master")


@contextmanager
def dead_while(node: RedisServer) -> Iterator[None]:
    node.kill()
    yield
    node.start()


def test_a_dead_node_keeps_nobody_from_the_queues_of_the_others(
    tmp_path: Path, connect: Connect
) -> None:
    """The map is learnt anew from whoever was in the last one, not from the URL alone."""
    lines = ["cluster-require-full-coverage no"]
    with RedisCluster(tmp_path / "cluster", config=lines) as cluster:
        queue = connect(url=cluster.url, cluster=True, connect_timeout=1)
        names = apart(cluster)
        (lost,) = [name for name in names if cluster.node_of(key(name)) is cluster.nodes[0]]
        uuids = {name: push(queue, name) for name in names}
        waiting = connect(url=cluster.url, cluster=True, connect_timeout=1, block_for=60)
        waited = apart(cluster, "waited")
        waited.sort(key=lambda name: cluster.node_of(key(name)) is cluster.nodes[0])
        assert waiting.reserve(waited) == []
        with dead_while(cluster.nodes[0]):
            with pytest.raises(BackendUnavailable):
                push(queue, lost)
            with pytest.raises(BackendUnavailable):
                waiting.wait(waited, 60)
            wait_until(lambda: blocked(cluster) == 0, "nobody left waiting for a token")
            for name in set(names) - {lost}:
                assert drain(queue, name) == [uuids[name]]
                other = push(queue, name)
                assert drain(queue, name) == [other]
        cluster.wait_until_ok()
        wait_until(lambda: queue.sizes(lost) is not None, "the node to be back")
