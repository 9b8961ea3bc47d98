"""The Python of README.md and docs/python.md runs as it stands, with fewer steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import taac
from taac.campaigns.launchers import local
from tests.api.launcher import InThisProcess
from tests.api.small import SMALL
from tests.test_docs import OF_PRESENT, names

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    return re.findall(r"```py\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in names(OF_PRESENT) if blocks(page)])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {name: value for name, value in SMALL.items() if name != "num_env_steps"}
    of_taac = taac.train
    monkeypatch.setattr(
        taac, "train", lambda *args, **named: of_taac(*args, **{**small, **named, "hidden_layers": (16, 16)}), raising=False
    )
    compare = taac.compare
    monkeypatch.setattr(local, "LocalProcesses", InThisProcess)
    monkeypatch.setattr(taac, "compare", lambda *args, **named: compare(*args, **{**small, **named, "seeds": 1}), raising=False)
    namespace: dict = {}
    for block in blocks(page):
        small_block = re.sub(r"20_000|5_000", "330", re.sub(r"15_000", "315", block))
        exec(compile(small_block, page, "exec"), namespace)
