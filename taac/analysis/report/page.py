"""A report as a single page that needs no network and no other file.

The page contains report.json, and its script (in `html/`) draws tables and curves from exactly those numbers. Names enter
the page as text and are never parsed as markup.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from taac.analysis import styles

FOLDER = Path(__file__).with_name("html")
SCRIPTS = ("chart.js", "tables.js", "page.js")  # in order


def html_page(content: dict[str, Any]) -> str:
    """The text of report.html."""
    data = embedded_json(content)
    methods = len(content["methods"])
    return string.Template(_read("page.html")).substitute(
        style=f"{_read('page.css')}\n{styles.css(methods)}",
        styles=json.dumps(styles.svg_markers(methods)),
        script="\n".join(map(_read, SCRIPTS)),
        data=data,
    )


def embedded_json(content: dict[str, Any]) -> str:
    """JSON in which `<` is escaped, so that no text within it can end the script by `</script>` or `<!--`."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
