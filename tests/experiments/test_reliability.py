"""A slice of each reliability campaign, of which `make test` takes one, and that the campaigns themselves can fail."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# Runs are forked from a process that has imported all they need, which takes seconds. One such process serves all tests: each
# order's code runs in a child of it, and so changes nothing for the next.
SERVER = """
import argparse, gc, json, os, sys, torch._dynamo, traceback
from pathlib import Path
from experiments.reliability import damage, disk, kills, misbehaving, runs, settings, stall
from taac.runs import tensor_files
runs.SMALL = ("num_env_steps = 220", *runs.SMALL[1:])  # instead of 300
names = dict(globals(), given=argparse.Namespace(kills=2, damages=8, every=90, seed=5))
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(os.open(order["said"], os.O_WRONLY | os.O_CREAT, 0o666), 1), os.dup2(1, 2)
            exec(order["code"], dict(names, folder=Path(order["folder"])))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    words, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process  # which ends when its standard input is closed


@pytest.fixture
def campaign(server, tmp_path):
    """Runs code of a campaign in a process of its own, because runs are forked from it; what it prints last, from JSON."""

    def run(code):
        said = tmp_path / "said"
        server.stdin.write(json.dumps({"code": code, "folder": str(tmp_path), "said": str(said)}) + "\n")
        server.stdin.flush()
        assert select.select([server.stdout], [], [], 600)[0], f"it has not ended: {said.read_text()}"
        assert server.stdout.readline() == "0\n", said.read_text()
        return json.loads(said.read_text().splitlines()[-1])

    return run


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked")


@pytest.mark.slow
def test_kills_and_one_that_costs_a_bit(campaign):
    """Second, interrupted runs save a counter that is one too high."""
    rows = campaign(
        "from taac.acting.collector import Collector\n"
        "chosen = settings.METHODS[1:2]\n"
        "(row,) = kills.campaign(folder / 'k', given, chosen)\n"
        "state, whole = Collector.state_dict, kills.Campaign._whole\n"
        "def then_wrong(self):\n"
        "    whole(self)\n"
        "    Collector.state_dict = lambda self: {**state(self), 'episodes': state(self)['episodes'] + 1}\n"
        "kills.Campaign._whole = then_wrong\n"
        "print(json.dumps([row, *kills.campaign(folder / 'k', given, chosen)]))"
    )
    assert rows[0]["failed"] == [] and sum(rows[0]["by kind"].values()) == 2 and rows[0]["compared"] == "bits", rows
    assert "differs in" in str(rows[1]["failed"]) and "plain values" in str(rows[1]["failed"]), rows


def test_settings_are_all_method_files_and_kinds_all_ways_to_stop():
    from experiments.reliability import interruptions, settings

    names = {path.stem for path in (ROOT / "gin" / "methods").glob("*.gin")}
    assert {setting.method for setting in settings.METHODS} == names
    sent = {(s.name, kind.to, len(kind.signals)) for kind in interruptions.EVERY for s in kind.signals[:1]}
    singles = {(name, to, 1) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") for to in ("process", "group")}
    assert sent >= singles | {(name, to, 2) for name, to, _ in singles if name != "SIGKILL"}
    assert {kind.when for kind in interruptions.EVERY} >= {
        "write",
        "rename",
        "fsync",
        "unlink",
        "mkdir",
        "open",
        "time",
    }


@pytest.mark.slow
def test_environments_that_misbehave_late_and_one_that_ends_a_run_without_a_word(campaign):
    rows = campaign(
        "cases = [('sys.exit(0)', 'synchronous'), ('dies by SIGKILL', 'asynchronous')]\n"
        "cases += [('leaves by os._exit(0)', 'synchronous')]\n"
        "print(json.dumps(misbehaving.campaign(folder / 'm', given, [misbehaving.Case(*case) for case in cases])))"
    )
    assert [row["verdict"] for row in rows] == ["stopped", "restarted", "STATUS"], rows
    from experiments.reliability import misbehaving

    assert misbehaving.failures(rows) == 1


@pytest.mark.slow
def test_damage(campaign):
    rows = campaign("print(json.dumps(damage.campaign(folder / 'd', given, damage.SETTINGS[:1])))")
    assert len(rows) >= 7 and {row["kind"] for row in rows} >= {"manifest", "tensors", "frames", "evaluations.csv"}
    assert not [row for row in rows if row["verdict"].isupper()], rows


@pytest.mark.slow
def test_full_disks(campaign):
    rows = campaign("disk.SIZES = (64,)\nprint(json.dumps(disk.campaign(folder / 'f', given)))")
    verdicts = [row["verdict"] for row in rows]
    assert set(verdicts) <= {"stopped, bytes named", "went on", "not possible here"}, rows
    assert verdicts.count("stopped, bytes named") >= 2


@pytest.mark.slow
def test_a_buffer_is_written_part_by_part(campaign):
    (row,) = campaign(
        "from taac.specs import TensorSpec\n"
        "small = stall.Buffer('small', TensorSpec((1000,)), 2, 2, 2000, 1000, 3500)\n"
        "print(json.dumps(stall.campaign(folder / 's', given, (small,))))"
    )
    assert len(row["checkpoints"]) == 3 and row["bytes"] == 2000 * 2 * (1000 * 4 + 2 * 4 + 4 + 4 + 1 + 2)
    assert len(row["parts"]) >= 5


def test_tables():
    from experiments.reliability import damage, disk, kills

    row = {"kind": "manifest", "verdict": "UNDETECTED"}
    assert "| manifest | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |" in damage.table([row])
    assert damage.failures([row]) == 1 and damage.failures([{**row, "verdict": "refused"}]) == 0
    rows = [{"how": "injected", "verdict": "went on"}, {"how": "tmpfs", "verdict": "CRASHED"}]
    assert disk.failures(rows) == 1 and "| injected | 1 | 0 | 1 |" in disk.table(rows)
    row = {"setting": "a", "compared": "bits", "runs": 1, "by kind": {"x": 2}, "failed": ["run 0: differs"]}
    assert "| a | bits | 1 | 2 | 1 |" in kills.table([row]) and "| x | 4 |" in kills.table([row, row])
    assert kills.failures([row]) == 1
