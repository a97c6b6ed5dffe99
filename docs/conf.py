"""What Sphinx is told of the site; `make docs` runs it on a copy of docs/ (scripts/site)."""

import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "qframe"
author = copyright = "The qframe authors"
version = release = metadata.version("qframe")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["decisions/_*"]
html_theme = "furo"
html_title = f"qframe {release}"
html_extra_path = ["extra"]
html_static_path = []
html_copy_source = False
templates_path = []
myst_heading_anchors = 6
myst_enable_extensions = ["deflist"]
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
nitpicky = False


def as_rst(app, what, name, obj, options, lines):
    """Docstrings are written in Markdown: code in single backticks, and in fences."""
    text = "\n".join(lines)
    text = re.sub(
        r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$",
        lambda m: (
            f"{m[1]}.. code-block:: {m[2] or 'text'}\n\n"
            + re.sub(r"^(?=.)", "    ", m[3], flags=re.MULTILINE)
        ),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?![`_])", r"``\1``", text)
    text = re.sub(r"\[([^\]\n]+)\]\([^)\s]+\)", r"\1", text)
    lines[:] = text.split("\n")


def setup(app):
    """Called by Sphinx; before napoleon, which makes fields of the sections."""
    app.connect("autodoc-process-docstring", as_rst, priority=400)
