"""A backend of a third party: added in code, or announced by an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qframe import QueueManager, project
from qframe.exceptions import ConfigurationError
from tests.plugins.memory_driver.qframe_memory import MemoryQueue, MemorySettings

HERE = Path(__file__).with_name("memory_driver")
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"default": "mine", "connections": {"mine": {"driver": "memory", "space": "test"}}}


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.chdir(tmp_path)


class TestExtend:
    def test_a_driver_is_added_in_code(self) -> None:
        manager = QueueManager(SETTINGS)
        manager.extend("memory", MemoryQueue)
        queue = manager.connection()
        assert isinstance(queue, MemoryQueue)
        assert queue is manager.connection("mine")
        assert queue.push_raw('{"uuid": "a"}') == "a"
        assert queue.size() == 1
        assert manager.store().add("key", "value")
        assert manager.failed_store().count() == 0

    def test_its_settings_are_checked_by_its_own_model(self) -> None:
        wrong = {"default": "mine", "connections": {"mine": {"driver": "memory", "spce": "x"}}}
        manager = QueueManager(wrong)
        manager.extend("memory", MemoryQueue)
        with pytest.raises(ConfigurationError, match=r"connections\.mine.*'spce'.*'space'"):
            manager.connection()

    def test_a_factory_without_a_model_gets_the_common_settings(self) -> None:
        def make(name: str, settings: object) -> MemoryQueue:
            return MemoryQueue(name, MemorySettings(space=f"{name} of a factory"))

        manager = QueueManager({"default": "x", "connections": {"x": {"driver": "made"}}})
        manager.extend("made", make)
        assert manager.connection().ping() == "the memory of this process"

    def test_an_unknown_driver_is_one_line_that_names_the_nearest(self) -> None:
        manager = QueueManager({"default": "x", "connections": {"x": {"driver": "memry"}}})
        manager.extend("memory", MemoryQueue)
        with pytest.raises(ConfigurationError, match=r"'memry'.*'memory'") as caught:
            manager.connection()
        assert "\n" not in str(caught.value)


class Installed:
    """A folder on the import path as pip leaves one, and a project that uses it."""

    def __init__(self, folder: Path, point: str = "qframe_memory:MemoryQueue") -> None:
        self.site = folder / "site"
        info = self.site / "qframe_memory-1.0.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: qframe-memory\nVersion: 1.0.0\n"
        )
        (info / "entry_points.txt").write_text(f"[qframe.drivers]\nmemory = {point}\n")
        (info / "RECORD").write_text("")
        (self.site / "qframe_memory.py").write_bytes((HERE / "qframe_memory.py").read_bytes())
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "qframe.toml").write_text(
            'default = "x"\n[connections.x]\ndriver = "memory"\nspace = "of the file"\n'
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
print(type(queue).__module__, queue.memory is __import__("qframe_memory").spaces["of the file"])
print(queue.push_raw('{"uuid": "a"}'), queue.reserve(["default"])[0].uuid)
print([name for name in ("sqlalchemy", "redis", "greenstalk") if name in sys.modules])
"""
        done = Installed(tmp_path).run("-c", script)
        assert done.stderr == ""
        assert done.stdout.splitlines() == ["qframe_memory True", "a a", "[]"]

    def test_one_that_cannot_be_loaded_is_one_line(self, tmp_path: Path) -> None:
        done = Installed(tmp_path, point="qframe_memory:Misspelt").qframe("size")
        assert done.returncode == 2
        assert "'memory' cannot be loaded" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    def test_the_package_s_own_description_names_the_entry_point(self) -> None:
        text = (HERE / "pyproject.toml").read_text()
        assert '[project.entry-points."qframe.drivers"]' in text
        assert 'memory = "qframe_memory:MemoryQueue"' in text
