"""Sphinx configuration: `make docs`. docs/api is made from the docstrings of the installed package."""

import importlib
import re
from pathlib import Path

from sphinx.util import logging

ADAPTORS = ("casync.keras", "casync.mxnet", "casync.numpy", "casync.tensorflow", "casync.torch")
for adaptor in ADAPTORS:  # which load what they need of the core: autodoc reads the stub alone
    importlib.import_module(adaptor)

project = "CaSync"
author = "the CaSync authors"
copyright = f"2026, {author}"
release = (Path(__file__).resolve().parent.parent / "VERSION").read_text(encoding="utf-8").strip()

extensions = [
    "myst_parser",
    "sphinx_inline_tabs",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinxcontrib.autoprogram",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"CaSync {release}"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]  # for tabs: their text stays readable where nobody renders them
autosummary_generate = True
# It is not in the environment of the other frameworks; its adaptor is read all the same.
autodoc_mock_imports = ["jax"]
# What a module imports is documented where it is defined.
autosummary_imported_members = False
autodoc_typehints = "signature"
# Each adaptor hands on the same classes, as CasyncError, so a short name has several targets, which are one object.
suppress_warnings = ["ref.python"]
# A method that says nothing new has no entry, rather than a framework's text for the method it overrides.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def backticks_to_literals(_app, _what, _name, _object, _options, lines):
    """Docstrings are prose with `names` in single backticks, anywhere: reStructuredText wants two, and a gap."""
    marked = re.compile(r"(:[\w:]+:`[^`]*`|``.+?``)|`([^`]+)`", re.DOTALL)
    text = marked.sub(lambda match: match[1] or f"``{match[2].strip()}``\\ ", "\n".join(lines))
    lines[:] = text.split("\n")


def check_public_names(_app, environment):
    """Every public name has an entry: where users import it from, or, of constants, where they are defined."""
    entries = {name.lower() for name in environment.domains["py"].objects}
    for module in ("casync", "casync.jax", *ADAPTORS):
        names = [name for name in importlib.import_module(module).__all__ if not name.startswith("__")]
        places = [module, *(f"{module}.{part}" for part in ("sync_batch_norm", "relaxed", "averagers"))]
        places += ["casync.tensors.signature", "casync.session.process_sets"]
        missing = [name for name in names if entries.isdisjoint(f"{place}.{name}".lower() for place in places)]
        if missing:
            text = "%s: no docstring, so no entry in the reference: %s"
            logging.getLogger(__name__).warning(text, module, ", ".join(missing))


def read_definitions_first(_app, _environment, documents):
    """Every adaptor has ProcessSet, and that of torch BackendOptions. Two entries are a mistake to Sphinx unless it
    read first where they are defined.
    """
    first = ("api/casync.session.process_sets", "api/casync.torch.c10d_group")
    documents.sort(key=lambda name: (name not in first, name))


def setup(app):
    app.connect("env-before-read-docs", read_definitions_first)
    app.connect("autodoc-process-docstring", backticks_to_literals)
    app.connect("env-check-consistency", check_public_names)
