"""Settings of Sphinx: `make docs` builds the pages of this folder, with the API reference made from the docstrings.

The pages are plain Markdown, so that they read well without Sphinx too. What Sphinx needs beyond that is added here while it
reads them: the tree of contents follows from the tables of README.md, and links to source files lead to the API reference.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

project = "taac"
copyright = "the authors of taac"
root_doc = "README"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.apidoc",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "taac"
html_copy_source = False
html_static_path: list[str] = []

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# The API reference: one page for each room that other code builds on.
OF_COMMANDS = ("analysis", "campaigns", "commands", "deployment", "machine", "pictures", "runs")
apidoc_modules = [
    {
        "path": "../taac",
        "destination": "api",
        "exclude_patterns": [f"../taac/{room}" for room in OF_COMMANDS],
        "separate_modules": False,
        "module_first": True,
        "automodule_options": {"members", "show-inheritance", "undoc-members"},
    }
]
default_role = "code"  # docstrings put code in single backticks
napoleon_use_ivar = True
autodoc_default_options = {"ignore-module-all": True}  # what a module takes from another is described there
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
toc_object_entries = False  # the contents of each page are its modules
python_display_short_literal_types = True
# Every link of a page must lead somewhere. Types in signatures may be those of other packages, or short names.
nitpicky = True
nitpick_ignore_regex = [("py:(attr|class|data|exc|func|meth)", ".*")]
suppress_warnings = ["ref.python"]  # such a short name that several parts have


def add_contents(app: Any, docname: str, source: list[str]) -> None:
    """Turns each table of README.md into a part of the tree of contents."""
    if docname == root_doc:
        for part, pages in contents(source[0]):
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{pages}```\n"


def contents(text: str) -> list[tuple[str, str]]:
    """The caption and the pages of each part."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^\| \[[^\]]+\]\(([\w/]+)\.md\)", section, re.MULTILINE)
        found.append((section.splitlines()[0], "".join(f"{page}\n" for page in pages)))
    return [*found, ("API", "api/modules\n")]


def link_sources(app: Any, docname: str, source: list[str]) -> None:
    """Leads links such as [`Class.method`](../taac/algorithms/file.py) to the entry in the API reference."""
    source[0] = re.sub(r"\[`([\w.]+)`\]\((?:\.\./)+(taac/[\w/]+)\.py\)", _entry, source[0])


def _entry(match: re.Match[str]) -> str:
    name, module = match[1], match[2].replace("/", ".")
    public = [part for part in name.split(".") if not part.startswith("_")]
    return f"{{py:obj}}`{name} <{'.'.join([module, *public])}>`"


def describe_fields(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Describes the fields of a record by the comments beside them, which give their shapes."""
    if lines and lines[0].startswith("Alias for field number"):
        lines[:] = [comment_of(name)]


def comment_of(name: str) -> str:
    """The comment beside a field such as `taac.data_structures.LossInfo.loss`, or nothing."""
    record, _, field = name.rpartition(".")
    module, _, record = record.rpartition(".")
    source = inspect.getsource(getattr(importlib.import_module(module), record))
    found = re.search(rf"^    {field}: .*?  # (.+)$", source, re.MULTILINE)
    parts = (found[1] if found else "").split("`")  # every second one is code
    parts[::2] = [re.sub(r"([*|_\\])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", describe_fields)
    app.connect("source-read", add_contents)
    app.connect("source-read", link_sources)
