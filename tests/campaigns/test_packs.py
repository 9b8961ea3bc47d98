"""Seeds that a comparison trains in one process."""

from __future__ import annotations

import json

import pytest

from taac.campaigns.campaign import Campaign
from taac.campaigns.launchers import Outcome
from taac.campaigns.packs import PackedRuns, pack
from taac.campaigns.run import Run
from taac.errors import TaacError
from tests.campaigns.launched import compared, evaluations, record


def run(tmp_path, seed, method="m", **more):
    folder = tmp_path / "T" / method / f"seed_{seed}"
    return Run("T", method, seed, folder, ("taac", "train", "--root_dir", str(folder), "--seed", str(seed)), **more)


def told(packs):
    return [[f"{one.method}{one.seed}" for one in several] for several in packs]


@pytest.mark.parametrize(
    "seeds, most, expected",
    [
        ((0, 1, 2), 3, [["a0", "a1", "a2"], ["b0", "b1", "b2"]]),
        ((0, 1, 2), 2, [["a0", "a1"], ["b0", "b1"], ["a2"], ["b2"]]),
        ((0, 1, 7, 8, 9), 9, [["a0", "a1"], ["b0", "b1"], ["a7", "a8", "a9"], ["b7", "b8", "b9"]]),
        ((3,), 4, [["a3"], ["b3"]]),
    ],
)
def test_consecutive_seeds_of_one_task_and_method_are_packed(seeds, most, expected, tmp_path):
    packs = pack([run(tmp_path, seed, method) for seed in seeds for method in "ab"], most)
    assert told(packs) == expected
    for several in packs:
        assert len({one.command for one in several}) == len({one.log for one in several}) == 1
        words = " ".join(several[0].command)
        parent = several[0].folder.parent
        if len(several) > 1:
            assert words == f"taac train --root_dir {parent} --seed {several[0].seed} --num_seeds {len(several)}"
        else:
            assert words == f"taac train --root_dir {several[0].folder} --seed {several[0].seed}"
        assert several[0].log == parent / f"seed_{several[0].seed}.log"


def test_what_cannot_be_packed_is_refused(tmp_path):
    with pytest.raises(TaacError, match="--extend"):
        pack([run(tmp_path, 0, steps=100)], 2)
    with pytest.raises(TaacError, match="--pack_seeds"):
        pack([run(tmp_path, 0)], 0)


class Script:
    """A launcher whose processes do what a list of functions does, one an attempt, and end with its exit code."""

    interval, attempts = 0.0, 3

    def __init__(self, *attempts_made):
        self.acts, self.running, self.most, self.commands = list(attempts_made), [], 0, []

    def begin(self, one):
        self.running.append(one)
        self.commands.append(" ".join(one.command))
        self.most = max(self.most, len(self.running))

    def begun(self, one):
        return True

    def ended(self):
        over, self.running = self.running, []
        return [(one, Outcome(self.acts.pop(0)(one))) for one in over]

    def stop(self):
        pass


def write(one, seed, status):
    folder = one.folder.parent / f"seed_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"status": status}))


def test_each_run_of_a_pack_ends_as_its_own_folder_says(tmp_path):
    def stopped(one):
        write(one, 0, "finished")
        write(one, 1, "diverged")
        write(one, 2, "interrupted")
        return 75

    def goes_on(one):
        write(one, 2, "finished")
        return 1

    packs = pack([run(tmp_path, seed) for seed in range(3)], 3)
    launcher = Script(stopped, goes_on)
    runs = [one for several in packs for one in several]
    end = Campaign(runs, PackedRuns(launcher, packs, 1), None, tmp_path / "compare.json").run(lambda state: None)
    assert [one.seed for one in end.finished] == [0, 2] and [one.seed for one in end.failed] == [1]
    assert launcher.commands == [f"taac train --root_dir {tmp_path}/T/m --seed 0 --num_seeds 3"] * 2
    assert [found["attempts"] for found in record(tmp_path).values()] == [1, 1, 2]


def test_a_run_that_failed_earlier_has_not_failed_again_when_its_process_is_killed_before_its_turn(tmp_path):
    def killed(one):
        write(one, 0, "interrupted")
        return -9

    def goes_on(one):
        write(one, 0, "finished")
        write(one, 1, "finished")
        return 0

    packs = pack([run(tmp_path, seed) for seed in range(2)], 2)
    write(packs[0][0], 1, "failed")
    launcher = Script(killed, goes_on)
    end = Campaign(list(packs[0]), PackedRuns(launcher, packs, 1), None).run(lambda state: None)
    assert {one.seed for one in end.finished} == {0, 1} and not end.failed and len(launcher.commands) == 2


def test_jobs_bound_the_processes(tmp_path):
    def finishes(one):
        for seed in range(one.seed, one.seed + 2):
            write(one, seed, "finished")
        return 0

    packs = pack([run(tmp_path, seed) for seed in range(6)], 2)
    launcher = Script(*[finishes] * 3)
    runs = [one for several in packs for one in several]
    end = Campaign(runs, PackedRuns(launcher, packs, 2), None).run(lambda state: None)
    assert len(end.finished) == 6 and launcher.most == 2 and len(launcher.commands) == 3


def test_a_packed_comparison_has_the_folders_of_any_other(tmp_path):
    asked = {"methods": "sac", "seeds": 2}
    few = ("--num_env_steps", "150")
    code, out, err = compared(tmp_path / "packed", "--pack_seeds", "2", *few, **asked)
    assert code == 0 and "2 of 2 runs finished" in out, err
    compared(tmp_path / "plain", *few, **asked)
    packed, plain = evaluations(tmp_path / "packed"), evaluations(tmp_path / "plain")
    assert packed.keys() == plain.keys() and len(packed) == 2
    for name, rows in plain.items():
        for one, other in zip(packed[name], rows, strict=True):
            assert one["env_steps"] == other["env_steps"] and one["updates"] == other["updates"]
            assert float(one["return_mean"]) == pytest.approx(float(other["return_mean"]), rel=1e-2)
    assert "one program for 2 seeds" in next((tmp_path / "packed").rglob("seed_1/run.json")).read_text()
    code, _, err = compared(tmp_path / "packed", "--pack_seeds", "2", "--launcher", "slurm", **asked)
    assert code == 1 and "--pack_seeds is for --launcher local" in err
