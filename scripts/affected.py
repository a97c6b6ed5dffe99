"""Runs the tests whose modules a change touches: python -m scripts.affected [BASE] [-- PYTEST...].

What changed is what differs from where this branch left BASE (origin/main), and what is not
committed yet. A test file is run if it changed, or uses what changed, directly or through other
files. Without `--` the files are printed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from scripts.import_graph import ROOT, imported, modules, tree

FOLDERS = ("qframe", "tests", "examples", "benchmarks", "faults", "scripts")
EVERYTHING = {"pyproject.toml", "constraints.txt", "qframe/__init__.py", "tests/conftest.py"}
_APP = "qframe.console.app"
_NAMES = re.compile(r"\b(?:qframe|tests|examples|benchmarks|faults|scripts)(?:\.\w+)+")


class Graph:
    """Which files of a repository use which."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._modules = modules(*FOLDERS, root=root)
        self._names = {path: name for name, path in self._modules.items()}
        self._once = {k for k, n in Counter(path.name for path in self._names).items() if n == 1}
        self._strings = {name: _strings(path) for name, path in self._modules.items()}
        self._commands = {
            name: _words(self._modules[name]) for name in _commands(self._modules.get(_APP))
        }
        self._users: dict[str, set[str]] = defaultdict(set)
        for name, path in self._modules.items():
            for used in self._used(name, path):
                self._users[used].add(name)
        for name in self._reached([_APP]):
            for command, words in self._commands.items():
                if words & self._strings[name] and not name.startswith("qframe."):
                    self._users[command].add(name)

    def affected(self, changed: Iterable[str]) -> list[str]:
        """Give the files of the tests that use one of these files, which are paths in the root."""
        changed = set(changed)
        found = self._reached(name for each in changed for name in self._touched(each))
        if changed & (EVERYTHING | self._helpers()):
            found = set(self._modules)
        paths = [self._modules[name].relative_to(self._root) for name in found & {*self._tests()}]
        return sorted(map(str, paths))

    def _reached(self, names: Iterable[str]) -> set[str]:
        """Give these modules, and all that use them, directly or not."""
        found: set[str] = set()
        todo = [*names]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self._users[name]
        return found

    def _helpers(self) -> set[str]:
        """Give the files that the fixtures of all tests are made of."""
        names = imported(self._root / "tests" / "conftest.py", self._modules)
        return {name.replace(".", "/") + ".py" for name in names if name.startswith("tests.")}

    def _touched(self, changed: str) -> Iterable[str]:
        """Give the modules that a file is, or is of: those beside it, or that name it."""
        path = self._root / changed
        if path in self._names:
            return [self._names[path]]
        if changed.partition("/")[0] in FOLDERS:
            folder = path.parent
            while folder != self._root and not any(each.parent == folder for each in self._names):
                folder = folder.parent
            return [name for each, name in self._names.items() if each.parent == folder]
        words = {path.name, f"*{path.suffix}"} if path.suffix else {changed}
        naming = {name for name, strings in self._strings.items() if strings & words}
        top = changed.partition("/")[0]
        return naming | {name for name in self._tests() if top in self._strings[name]}

    def _tests(self) -> list[str]:
        return [name for path, name in self._names.items() if path.name.startswith("test_")]

    def _used(self, name: str, path: Path) -> set[str]:
        strings = self._strings[name]
        used = imported(path, self._modules)
        used |= {each for text in strings for each in _NAMES.findall(text)} & self._modules.keys()
        if name == "tests.conftest":  # its fixtures show nothing of qframe by themselves
            return set()
        if name == _APP:  # who starts it says the command
            return used - self._commands.keys()
        if not name.startswith("qframe."):
            used |= {self._names[each] for each in self._beside(path, strings)}
        return used - {name, "qframe"}

    def _beside(self, path: Path, strings: set[str]) -> Iterable[Path]:
        """Give the files whose names a file says, and those pytest loads for it."""
        named = {path.parent / each for each in strings if each.endswith(".py")}
        named |= {each for each in self._names if each.name in strings and each.name in self._once}
        above = {parent / "conftest.py" for parent in path.parents} - {
            self._root / "tests/conftest.py"
        }
        return (named | above) & self._names.keys() - {path}


def _strings(path: Path) -> set[str]:
    nodes = ast.walk(tree(path))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _commands(app: Path | None) -> list[str]:
    """Give the modules of the console that have commands: the app's table names them."""
    package = _APP.rpartition(".")[0]
    if app is None:
        return []
    named = _strings(app)
    return [f"{package}.{each.stem}" for each in app.parent.glob("*.py") if each.stem in named]


def _words(path: Path) -> set[str]:
    """Give the words by which the commands of a module may be called."""
    functions = [node.name for node in tree(path).body if isinstance(node, ast.FunctionDef)]
    return {path.stem, *(name.replace("_", "-") for name in functions if name[0] != "_")}


def changes(base: str, root: Path = ROOT) -> set[str]:
    """Give the files that differ from where this branch left another, and from the last commit."""

    def git(*words: str) -> list[str]:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )

    left = git("merge-base", base, "HEAD")[0].strip()
    tracked = git("diff", "--name-only", "--no-renames", "-z", left)
    new = git("ls-files", "--others", "--exclude-standard", "-z")
    return {*tracked, *new} - {""}


def main(words: list[str]) -> int:
    """Run, or print, what a change affects."""
    before, dashes, options = _divided(words)
    base = before[0] if before else "origin/main"
    try:
        changed = changes(base)
    except subprocess.CalledProcessError as error:
        print(f"affected: {error.stderr.strip()}", file=sys.stderr)
        return 2
    tests = Graph().affected(changed)
    if not dashes:
        print(*tests, sep="\n")
        return 0
    print(f"{len(changed)} files changed since {base}: {len(tests)} files of tests use them")
    if not tests:
        return 0
    ended = pytest.main([*options, *tests])
    return 0 if ended is pytest.ExitCode.NO_TESTS_COLLECTED else int(ended)


def _divided(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
