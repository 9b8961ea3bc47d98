"""Writing a report: every file whole, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from taac.analysis import report_figures, report_page, report_tables


def write(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Writes report.md, report.csv, report.html, report.json and the pictures, from what `report.make` gives.

    The same comparison gives the same bytes.

    All is made before the first file is touched, each file is put in place by one renaming, and a picture of an earlier
    report that this one has not is removed.

    Returns:
        The files, the tables first.
    """
    pictures = report_figures.draw(comparison)
    content = {**comparison, "figures": list(pictures)}
    files = {
        "report.md": report_tables.markdown(content, list(pictures)).encode(),
        "report.csv": report_tables.table(content).encode(),
        "report.html": report_page.page(content).encode(),
        "report.json": (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(),
        **pictures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        beside = folder / f"{name}.tmp"
        try:
            beside.write_bytes(data)
            os.replace(beside, folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
    for name in set(report_figures.NAMES) - set(pictures):
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in files]
