"""Names the files of qframe that import each other, type-only and delayed imports included.

python scripts/import_circles.py; exit 1 where there are any. `make lint` runs it.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    """Give each module of qframe and its file."""
    found = {}
    for path in (ROOT / "qframe").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Give the modules of qframe that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{each.name}" for each in node.names}
            found |= whole & known.keys() or {node.module}
    return found & known.keys() - {"qframe"}


def main() -> int:
    """Look for a circle."""
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    del graph["qframe"]  # names everything, and nothing inside imports from it
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        print("these files import each other:", " -> ".join(circle.args[1]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
