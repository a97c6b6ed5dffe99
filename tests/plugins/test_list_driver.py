"""A backend of a third party: added in code, or announced by an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from qframe import Queueable, QueueManager, State, batch, chain, job_status, manager
from qframe.contracts.backend import Backend, Capability
from qframe.exceptions import ConfigurationError, Unsupported
from qframe.failed.retry import retry
from qframe.jobs import project
from qframe.testing import drain
from tests.plugins.list_driver.qframe_list import ListBackend, ListSettings

HERE = Path(__file__).with_name("list_driver")
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "default": "mine",
    "jobs": [__name__],
    "connections": {"mine": {"driver": "list", "space": "test"}},
}


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.chdir(tmp_path)


class Note(Queueable):
    word: str
    fails: bool = False
    unique = True
    track = True
    ran: ClassVar[list[str]] = []

    def handle(self) -> str:
        self.ran.append(self.word)
        if self.fails:
            raise ValueError("no")
        return self.word


class AllBut(ListBackend):
    capabilities = ~(Capability.DURABLE | Capability.SEARCH)


class Within(AllBut):
    capabilities = ~Capability.DURABLE

    def within(self, transaction: object) -> Backend:
        return self


class TestCapabilities:
    def test_all_but_some_never_promises_what_the_class_has_no_methods_for(self) -> None:
        assert Capability.RESERVE in AllBut.capabilities
        for each in (Capability.WITHIN, Capability.OUTBOX, Capability.ADOPT, Capability.FACTS):
            assert each not in AllBut.capabilities

    def test_a_class_with_the_method_has_the_capability(self) -> None:
        assert Capability.WITHIN in Within.capabilities
        assert Capability.OUTBOX not in Within.capabilities

    def test_such_a_connection_is_no_outbox_and_says_so_in_one_line(self) -> None:
        queues = QueueManager({**SETTINGS, "outbox": {"connection": "mine"}})
        queues.extend("list", AllBut)
        with pytest.raises(ConfigurationError, match="'mine' is no SQL database") as caught:
            queues.outbox()
        assert "\n" not in str(caught.value)


class TestExtend:
    def test_a_driver_is_added_in_code(self) -> None:
        queues = QueueManager(SETTINGS)
        queues.extend("list", ListBackend)
        queue = queues.connection()
        assert queue is queues.connection("mine")
        assert isinstance(queue.settings, ListSettings)
        assert queue.push_raw('{"uuid": "a"}', "other") == "a"
        assert queue.size("other") == 1
        assert queues.connection().store.add("key", "value")
        assert queues.failed_store().count() == 0
        with pytest.raises(Unsupported, match="cannot clear"):
            queue.clear()

    def test_what_a_job_can_have_works_on_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        queues = QueueManager(SETTINGS)
        queues.extend("list", ListBackend)
        monkeypatch.setattr(manager, "_default", queues)
        Note.ran.clear()
        first = Note.dispatch(word="a").send()
        assert Note.dispatch(word="a").is_duplicate
        chain([Note(word="b"), Note(word="c")]).dispatch()
        made = batch([Note(word="d"), Note(word="e", fails=True)]).allow_failures().dispatch()
        assert drain("mine", "default").failed == 1
        assert Note.ran == ["a", "b", "d", "e", "c"]
        status = job_status(first)
        assert status is not None
        assert (status.state, status.result) == (State.COMPLETE, "a")
        assert (made.fresh().done, made.fresh().failed) == (1, 1)
        (record,) = queues.failed_store().all()
        assert retry(queues, queues.failed_store(), record)
        assert (queues.failed_store().count(), queues.connection().size()) == (0, 1)

    def test_its_settings_are_checked_by_its_own_model(self) -> None:
        wrong = {"default": "mine", "connections": {"mine": {"driver": "list", "spce": "x"}}}
        queues = QueueManager(wrong)
        queues.extend("list", ListBackend)
        with pytest.raises(ConfigurationError, match=r"connections\.mine.*'spce'.*'space'"):
            queues.connection()

    def test_a_factory_without_a_model_gets_the_common_settings(self) -> None:
        def make(name: str, settings: object) -> ListBackend:
            return ListBackend(name, ListSettings(space=f"{name} of a factory"))

        queues = QueueManager({"default": "x", "connections": {"x": {"driver": "made"}}})
        queues.extend("made", make)
        assert queues.connection().backend.check().version == "lists of this process"

    def test_an_unknown_driver_is_one_line_that_names_the_nearest(self) -> None:
        queues = QueueManager({"default": "x", "connections": {"x": {"driver": "lst"}}})
        queues.extend("list", ListBackend)
        with pytest.raises(ConfigurationError, match=r"'lst'.*'list'") as caught:
            queues.connection()
        assert "\n" not in str(caught.value)


class Installed:
    """A folder on the import path as pip leaves one, and a project that uses it."""

    def __init__(self, folder: Path, point: str = "qframe_list:ListBackend") -> None:
        self.site = folder / "site"
        info = self.site / "qframe_list-1.0.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: qframe-list\nVersion: 1.0.0\n")
        (info / "entry_points.txt").write_text(f"[qframe.drivers]\nlist = {point}\n")
        (info / "RECORD").write_text("")
        (self.site / "qframe_list.py").write_bytes((HERE / "qframe_list.py").read_bytes())
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "qframe.toml").write_text(
            'default = "x"\n[connections.x]\ndriver = "list"\nspace = "of the file"\n'
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(self.site), str(ROOT)))
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("QFRAME_")
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.project,
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def qframe(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from qframe.console.app import main; main()", *arguments)


class TestEntryPoint:
    def test_the_command_line_finds_it(self, tmp_path: Path) -> None:
        done = Installed(tmp_path).qframe("size", "--connection", "x", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        (row,) = json.loads(done.stdout)
        assert (row["connection"], row["queue"], row["ready"]) == ("x", "default", 0)

    def test_code_finds_it_and_imports_no_other_driver(self, tmp_path: Path) -> None:
        script = """
import sys
from qframe import QueueManager
queue = QueueManager().connection()
own = queue.backend.messages
print(type(own).__module__, own._space is __import__("qframe_list").spaces["of the file"])
print(queue.push_raw('{"uuid": "a"}'), queue.reserve(["default"])[0].uuid)
print([name for name in ("sqlalchemy", "redis", "greenstalk") if name in sys.modules])
"""
        done = Installed(tmp_path).run("-c", script)
        assert done.stderr == ""
        assert done.stdout.splitlines() == ["qframe_list True", "a a", "[]"]

    def test_one_that_cannot_be_loaded_is_one_line(self, tmp_path: Path) -> None:
        done = Installed(tmp_path, point="qframe_list:Misspelt").qframe("size")
        assert done.returncode == 2
        assert "'list' cannot be loaded" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    def test_the_package_s_own_description_names_the_entry_point(self) -> None:
        text = (HERE / "pyproject.toml").read_text()
        assert '[project.entry-points."qframe.drivers"]' in text
        assert 'list = "qframe_list:ListBackend"' in text
