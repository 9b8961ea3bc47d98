"""A report as one page that needs nothing beside it: no network, no other file.

The page holds report.json, and its script (in `html/`) makes tables and curves from that; so what is shown are
those numbers. Nothing of it is ever read as markup: names come into the page as text.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("html")
SCRIPTS = ("chart.js", "page.js")  # in order


def html_page(content: dict[str, Any]) -> str:
    """report.html."""
    template = string.Template(_read("page.html"))
    return template.substitute(
        style=_read("page.css"), script="\n".join(map(_read, SCRIPTS)), data=embedded_json(content)
    )


def embedded_json(content: dict[str, Any]) -> str:
    """JSON that no text within it can end early: `<` is written as an escape, so there is no `</script>` and no `<!--`."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
