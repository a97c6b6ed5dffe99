from __future__ import annotations

import threading

from qframe import QueueManager, Worker, WorkerOptions
from qframe.metrics.deploys import Deploys
from tests.console.conftest import Shop
from tests.support.process import wait_for


def marks(shop: Shop) -> list[tuple[str, str]]:
    return [(each.version, each.text) for each in Deploys(shop.queue.store).read()]


def test_a_deploy_is_marked(shop: Shop) -> None:
    said = shop.run("deploy-mark", "new price list", "--version", "2.4.1")
    assert (said.code, said.out) == (0, "marked the deploy 2.4.1 new price list\n")
    assert shop.run("deploy-mark").code == 0
    assert marks(shop) == [("2.4.1", "new price list"), ("", "")]


def test_a_worker_marks_another_version_once(shop: Shop) -> None:
    def begins(version: str) -> None:
        settings = {"root": shop.root, "version": version, "connections": {}}
        workers = [Worker(QueueManager(settings), WorkerOptions(memory=0)) for _ in range(2)]
        threads = [threading.Thread(target=each.run) for each in workers]
        for each in threads:
            each.start()
        wait_for(lambda: version in [name for name, _ in marks(shop)], "the mark")
        for worker, thread in zip(workers, threads, strict=True):
            worker.stop()
            thread.join(20)

    begins("1.0")
    begins("1.1")
    begins("1.0")
    assert marks(shop) == [("1.0", ""), ("1.1", "")]
