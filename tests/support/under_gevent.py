"""A program under gevent: greenlets dispatch, others run meanwhile, a worker follows."""

# ruff: noqa: E402 (gevent wants to be first)

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import faulthandler
import signal
import threading

import gevent

from qframe import Queueable, Worker, WorkerOptions, bulk, dispatch, manager

ran = list[str]()


class Mark(Queueable):
    word: str

    def handle(self) -> None:
        gevent.sleep(0)
        ran.append(self.word)


def _waits_beside_others() -> bool:
    """Whether other greenlets run while one waits for the backend to have a job."""
    ticks = list[float]()

    def tick() -> None:
        while True:
            gevent.sleep(0.01)
            ticks.append(0)

    beside = gevent.spawn(tick)
    manager.default().connection().backend.wait(["default"], 0.3, None)
    beside.kill()
    return len(ticks) > 5


def _hears_signals() -> bool:
    """Whether the process would end at SIGTERM, whatever greenlets of ours have begun."""
    gevent.sleep(0.1)
    return not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def main() -> None:
    faulthandler.dump_traceback_later(45, exit=True)
    sending = [
        gevent.spawn(lambda word: dispatch(Mark(word=word)).send(), f"greenlet {number}")
        for number in range(20)
    ]
    gevent.joinall(sending, raise_error=True)
    thread = threading.Thread(target=lambda: dispatch(Mark(word="thread")).send())
    thread.start()
    thread.join()
    dispatch(Mark(word="dropped"))
    bulk([Mark(word="bulk")])
    assert _hears_signals()
    Worker(manager.default(), WorkerOptions(stop_when_empty=True)).run()
    assert _hears_signals()
    wanted = {f"greenlet {number}" for number in range(20)} | {"thread", "dropped", "bulk"}
    assert sorted(ran) == sorted(wanted), ran
    assert _waits_beside_others()
    manager.default().close()
    print("all right")


if __name__ == "__main__":
    main()
