"""Sphinx configuration: `make docs`. docs/api is made from the docstrings of the installed package."""

import re
from pathlib import Path

project = "CaSync"
author = "the CaSync authors"
release = (Path(__file__).resolve().parent.parent / "VERSION").read_text(encoding="utf-8").strip()

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"CaSync {release}"

myst_heading_anchors = 3
autosummary_generate = True
# What a module imports is documented where it is defined.
autosummary_imported_members = False
autodoc_typehints = "signature"
# A method that says nothing new has no entry, rather than a framework's text for the method it overrides.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def backticks_to_literals(_app, _what, _name, _object, _options, lines):
    """Docstrings are prose with `names` in single backticks, anywhere: reStructuredText wants two, and a gap."""
    marked = re.compile(r"(:[\w:]+:`[^`]*`|``.+?``)|`([^`]+)`", re.DOTALL)
    text = marked.sub(lambda match: match[1] or f"``{match[2].strip()}``\\ ", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", backticks_to_literals)
