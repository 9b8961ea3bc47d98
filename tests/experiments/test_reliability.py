"""A slice of each reliability campaign, and that the campaigns themselves can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def campaign(code, tmp_path):
    """Runs code in a process of its own, because runs are forked from it; what it prints last, from JSON."""
    beginning = "import argparse, json\nfrom pathlib import Path\n"
    beginning += "from experiments.reliability import damage, disk, kills, runs, stall\n"
    beginning += f"folder, given = Path({str(tmp_path)!r}), argparse.Namespace(kills=3, damages=8, seed=5)\n"
    done = subprocess.run(
        [sys.executable, "-c", beginning + code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked")


def test_kills(tmp_path):
    rows = campaign(
        "settings = [runs.Setting('taac', 'BipedalWalker-v3', 1)]\n"
        "print(json.dumps(kills.campaign(folder / 'k', given, settings)))",
        tmp_path,
    )
    assert [row["differing"] for row in rows] == [[]] and rows[0]["kills"] == 3, rows


def test_damage(tmp_path):
    rows = campaign("print(json.dumps(damage.campaign(folder / 'd', given, damage.SETTINGS[:1])))", tmp_path)
    assert len(rows) >= 7 and {row["kind"] for row in rows} >= {"manifest", "tensors", "frames", "evaluations.csv"}
    assert not [row for row in rows if row["verdict"].isupper()], rows


def test_full_disks(tmp_path):
    rows = campaign("disk.SIZES = (64,)\nprint(json.dumps(disk.campaign(folder / 'f', given, every=90)))", tmp_path)
    verdicts = [row["verdict"] for row in rows]
    assert set(verdicts) <= {"stopped, bytes named", "went on", "not possible here"}, rows
    assert verdicts.count("stopped, bytes named") >= 2


def test_a_buffer_is_written_part_by_part(tmp_path):
    (row,) = campaign(
        "from taac.specs import TensorSpec\n"
        "small = stall.Buffer('small', TensorSpec((1000,)), 2, 2, 2000, 1000, 3500)\n"
        "print(json.dumps(stall.campaign(folder / 's', given, (small,))))",
        tmp_path,
    )
    assert len(row["checkpoints"]) == 3 and row["bytes"] == 2000 * 2 * (1000 * 4 + 2 * 4 + 4 + 4 + 1 + 2)
    assert len(row["parts"]) >= 5


def test_a_difference_is_found_and_damage_that_nobody_notices_too(tmp_path):
    found = campaign(
        "setting = damage.SETTINGS[0]\n"
        "base, expected = damage._prepare(folder / 'd', setting, runs.seeded(0))\n"
        "import shutil\n"
        "from taac import files\n"
        "row = {'kind': 'tensors'}\n"
        "def verdict():\n"
        "    shutil.rmtree(folder / 'd' / 'victim', ignore_errors=True)\n"
        "    shutil.copytree(base, folder / 'd' / 'victim')\n"
        "    file = sorted((folder / 'd' / 'victim' / 'checkpoints').glob('[0-9]*.safetensors'))[-1]\n"
        "    tensors = files.unpack(file.read_bytes(), file)\n"
        "    next(t for name, t in tensors.items() if 'agent' in name and 'actor' in name)[0] += 1e-3\n"
        "    file.write_bytes(files.pack(tensors))\n"
        "    return damage._verdict(setting, folder / 'd', expected, row)['verdict']\n"
        "first = verdict()\n"
        "files.read = lambda path, size, digest: path.read_bytes()\n"  # a reader that checks nothing
        "print(json.dumps([first, verdict()]))",
        tmp_path,
    )
    assert found == ["same bits", "UNDETECTED"]


def test_tables():
    from experiments.reliability import damage, disk

    row = {"kind": "manifest", "verdict": "UNDETECTED"}
    assert "| manifest | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |" in damage.table([row])
    assert damage.failures([row]) == 1 and damage.failures([{**row, "verdict": "refused"}]) == 0
    rows = [{"how": "injected", "verdict": "went on"}, {"how": "tmpfs", "verdict": "CRASHED"}]
    assert disk.failures(rows) == 1 and "| injected | 1 | 0 | 1 |" in disk.table(rows)
