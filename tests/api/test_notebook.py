"""The notebook of the manual: its cells run, in order, with fewer steps; and it is kept without outputs."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

import taac
from taac.campaigns.launchers import local
from tests.api.launcher import InThisProcess
from tests.api.small import SMALL
from tests.optional_packages import NOTEBOOK

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK_FILE = ROOT / "docs" / "notebooks" / "quickstart.ipynb"
# What a cell would wait for too long: small networks, few steps, and runs of a comparison in one process.
SHORT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import functools, taac
from taac.campaigns.launchers import local
from tests.api.launcher import InThisProcess
local.LocalProcesses = InThisProcess
small = {dict(SMALL)!r}
def short(function):
    return lambda *args, **named: function(*args, **{{**named, **small}})
taac.train, taac.compare = short(taac.train), short(taac.compare)
"""


def cells(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_is_kept_without_outputs():
    notebook = json.loads(NOTEBOOK_FILE.read_text(encoding="utf-8"))
    assert cells(notebook)
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.slow
def test_its_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "compare"):
        monkeypatch.setattr(taac, name, getattr(taac, name), raising=False)  # restored afterwards
    monkeypatch.setattr(local, "LocalProcesses", InThisProcess)
    monkeypatch.setattr(sys, "path", [*sys.path])
    namespace: dict = {}
    for source in (SHORT, *cells(json.loads(NOTEBOOK_FILE.read_text(encoding="utf-8")))):
        exec(compile(source, str(NOTEBOOK_FILE), "exec"), namespace)
    assert namespace["decisions"] > 0 and namespace["early"].status == "finished"


@pytest.mark.slow
@pytest.mark.skipif(not NOTEBOOK, reason="needs nbclient and ipykernel (taac's extra 'dev')")
def test_a_kernel_runs_it_and_shows_figure_and_tables(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK_FILE, as_version=4)
    shown = copy.deepcopy(notebook)
    shown.cells.insert(0, nbformat.v4.new_code_cell(SHORT))
    nbclient.NotebookClient(shown, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in shown.cells if cell.cell_type == "code" for out in cell.outputs]
    kinds = {kind for out in outputs if "data" in out for kind in out["data"]}
    assert {"image/png", "text/markdown"} <= kinds, outputs
    text = "".join(out.get("text", "") for out in outputs if out.get("name") == "stdout")
    assert "1 episodes" not in text and "10 episodes: return" in text and "decisions" in text
