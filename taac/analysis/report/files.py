"""Writes a report. Every file is written completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taac.analysis.report import figures, page, tables
from taac.runs import durable, files


def write_report(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Writes report.md, report.csv, report.html, report.json and the figures from the result of `make_report`.

    The same comparison produces the same bytes. All contents are created before the first file is touched, and each file is
    replaced by one rename. Figures of an earlier report that this one lacks are removed.

    Returns:
        The files, the tables first.
    """
    pictures = figures.draw(comparison)
    content = {**comparison, "figures": list(pictures)}
    contents = {
        "report.md": tables.markdown(content, list(pictures)).encode(),
        "report.csv": tables.table(content).encode(),
        "report.html": page.html_page(content).encode(),
        "report.json": (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(),
        **pictures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*contents, *figures.NAMES):
        files.check_file(folder / name)
    for name, data in contents.items():
        durable.write(folder / name, data)
    for name in set(figures.NAMES) - set(pictures):
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]
