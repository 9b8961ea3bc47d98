"""Writing a report: every file whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taac.analysis.report import figures, page, tables
from taac.runs import files


def write_report(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Writes report.md, report.csv, report.html, report.json and the pictures, from what `make_report` returns.

    The same comparison gives the same bytes.

    All is made before the first file is touched, each file is put in place by one renaming, and a picture of an earlier
    report that this one has not is removed.

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
    for name in contents:
        files.check_file(folder / name)
    for name, data in contents.items():
        files.write(folder / name, data)
    for name in set(figures.NAMES) - set(pictures):
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]
