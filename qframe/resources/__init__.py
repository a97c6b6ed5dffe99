"""Resources: what a process makes once for its jobs, and gives them as parameters.

`declared` is what users write, `plans` reads a factory and what it needs in turn, `scope` keeps
what was made and closes it, `giving` calls a handler with it.
"""

from __future__ import annotations

from qframe.resources.declared import INJECTED, Resource

__all__ = ["INJECTED", "Resource"]
