"""What `killing` did: each scene by itself, as the ledger has it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.support.process import Project
from tests.worker import killing


@dataclass(frozen=True)
class Scene:
    """The lines of one scene: `S` or `D`, the word of the job, its uuid."""

    name: str
    lines: list[tuple[str, str, str]]

    @property
    def words(self) -> list[str]:
        """Give the words of the jobs in the order in which they began."""
        return [word for event, word, _ in self.lines if event == "S"]

    def first(self, event: str, word: str) -> int:
        """Give the place of the first such line; fails where there is none."""
        found = [place for place, line in enumerate(self.lines) if line[:2] == (event, word)]
        assert found, f"no {event} {word} in {self}"
        return found[0]

    def __str__(self) -> str:
        return f"{self.name}: {' '.join(self.words)}"


def played(project: Project, what: str) -> list[Scene]:
    """Let workers die in a scene until one lives, and others do what is left: the last one lived.

    Fails where a job is left, or where a job was there under two ids.
    """
    shutil.copy(Path(killing.__file__), project.root / "killing.py")
    project.configure(retry_after=1)
    finished = project.python(project.root.joinpath("killing.py").read_text(), what)
    assert finished.code == 0, finished.err
    died, code, left = map(int, finished.out.split())
    assert (code, left) == (0, 0), finished
    assert died > 1
    scenes = list(_scenes(project, [f"{what}-{place + 1}" for place in range(died + 1)]))
    for scene in scenes:
        identities = {(word, uuid) for _, word, uuid in scene.lines}
        assert len(identities) == len({word for word, _ in identities}), scene.lines
    return scenes


def _scenes(project: Project, names: list[str]) -> Iterator[Scene]:
    lines = [(line[1], (line[0], line[2], line[3])) for line in project.notes()]
    for name in names:
        yield Scene(name, [line for scene, line in lines if scene == name])


def in_order(scene: Scene, *words: str) -> None:
    """Check that each of these ran, and began when the one before it had ended."""
    for before, after in pairwise(words):
        assert scene.first("D", before) < scene.first("S", after), scene
