"""Names the files of qframe that import each other, type-only and delayed imports included.

python scripts/import_circles.py; exit 1 where there are any. `make lint` runs it.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

from scripts.import_graph import imported, modules


def main() -> int:
    """Look for a circle."""
    known = modules("qframe")
    graph = {name: imported(path, known) - {name, "qframe"} for name, path in known.items()}
    del graph["qframe"]  # names everything, and nothing inside imports from it
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        print("these files import each other:", " -> ".join(circle.args[1]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
