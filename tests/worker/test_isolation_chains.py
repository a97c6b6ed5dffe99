"""`--isolate`: chains go on and batches are counted, though their jobs run in other processes."""

from __future__ import annotations

import pytest

from tests.support.process import Project

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too, pytest.mark.every_backend]

JOBS = """
from pathlib import Path

from qframe import Queueable, batch, chain

NOTES = Path(__file__).with_name("steps.txt")


class Step(Queueable):
    word: str

    def handle(self) -> None:
        with NOTES.open("a") as notes:
            notes.write(self.word + "\\n")
        if self.word == "extend":
            self.append_to_chain(Step(word="appended"))
        elif self.word == "fail":
            self.fail("no")
        elif self.word == "last":
            batch([Step(word="member"), Grow()]).then(Step(word="then")).dispatch()


class Grow(Queueable):
    def handle(self) -> None:
        self.batch().add([Step(word="added"), Step(word="and its link")])


class Tell(Queueable):
    def handle(self) -> None:
        with NOTES.open("a") as notes:
            notes.write("caught " + self.caught.error + "\\n")


class Begin(Queueable):
    def handle(self) -> None:
        words = ("extend", "last")
        chain([Step(word=word) for word in words]).dispatch()
        chain([Step(word="fail"), Step(word="never")]).catch(Tell()).dispatch()
"""


def test_chains_go_on_and_batches_are_counted(project: Project) -> None:
    project.configure('jobs = ["steps"]\n')
    (project.root / "steps.py").write_text(JOBS)
    project.push("steps.Begin")
    worker = project.work("--isolate", "--preload", "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    ran = (project.root / "steps.txt").read_text().splitlines()
    in_the_chain = {"extend", "last", "appended", "fail", "caught QframeError: no"}
    assert len(ran) == 9
    assert set(ran) == in_the_chain | {"member", "added", "and its link", "then"}
    assert ran.index("extend") < ran.index("last") < ran.index("appended")
    assert ran.index("added") < ran.index("and its link") < ran.index("then")
