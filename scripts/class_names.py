"""Names the classes of qframe that share a name, private and nested ones included.

python scripts/class_names.py; exit 1 where there are any. `make lint` runs it.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

from scripts.import_graph import ROOT, modules, tree

GIVEN_BY_DJANGO = "qframe.django.models"
"""Its permissions are named after the classes, `qframe.change_failedjob`; and each has a `Meta`."""


def main() -> int:
    """Look for a name of two classes; a leading underscore makes no other name."""
    places = defaultdict(list)
    for module, path in sorted(modules("qframe").items()):
        if module == GIVEN_BY_DJANGO:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                places[node.name.lstrip("_")].append(place)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    for name, found in sorted(shared.items()):
        print(f"these classes share the name {name}:", ", ".join(found))
    return 1 if shared else 0


if __name__ == "__main__":
    sys.exit(main())
