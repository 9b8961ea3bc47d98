"""`taac train --num_seeds` as a user calls it, and what other commands make of its folders."""

from __future__ import annotations

import json

import pytest

from tests.commands.test_commands import taac

SMALL = ("num_env_steps = 120", "initial_collect_steps = 100", "batch_size = 8", "hidden_layers = (8,)",
         "evaluation_interval = 60", "evaluation_episodes = 1", "Trainer.max_evaluation_steps = 300")  # fmt: skip
METHOD = ("--task", "Pendulum-v1", "--method", "sac", *(word for p in SMALL for word in ("--gin_param", p)))


def test_runs_that_report_and_play_read_as_any_other(tmp_path):
    train = ("train", *METHOD, "--seed", "3", "--num_seeds", "2", "--set", "learning_rate=1e-3")
    result = taac(*train, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    parent = tmp_path / "runs" / "Pendulum-v1" / "sac"
    assert sorted(path.name for path in parent.iterdir()) == ["seed_3", "seed_4"]
    assert "2 runs finished, evaluation return -" in result.stdout.splitlines()[-1]
    assert result.stdout.count("target entropy") == 1  # what is the same for all is said once
    for seed in (3, 4):
        about = json.loads((parent / f"seed_{seed}" / "run.json").read_text())
        assert about["status"] == "finished" and about["seed"] == seed and "one program" in about["updates_together"]
    again = taac(*train, cwd=tmp_path)
    assert again.returncode == 0 and "already holds these 2 runs" in again.stdout
    more = taac(*(word if word != "2" else "3" for word in train), cwd=tmp_path)
    assert more.returncode == 0 and "2 of 3 runs are finished already" in more.stdout, more.stderr
    assert "in turn: there is one seed" in more.stdout and (parent / "seed_5" / "run.json").exists()
    report = taac("report", "--root_dir", "runs", cwd=tmp_path)
    assert report.returncode == 0 and "sac on Pendulum-v1: 3 seed(s)" in report.stdout, report.stderr
    play = taac("play", "--root_dir", parent / "seed_4", "--num_episodes", 1, cwd=tmp_path)
    assert play.returncode == 0, play.stderr


@pytest.mark.parametrize(
    "words, code, message",
    [
        (("--extend", "--num_seeds", "2"), 1, "--extend is about one run"),
        (("--forget_replay", "--num_seeds", "2"), 1, "--forget_replay is about one run"),
        (("--trust", "--num_seeds", "2"), 1, "--trust is about one run"),
        (("--resume_with", "learning_rate=0.1", "--num_seeds", "2"), 1, "--resume_with is about one run"),
        (("--collectors", "2", "--num_seeds", "2"), 1, "--collectors starts several"),
        (("--set", "create_experiment.collectors=2", "--num_seeds", "2"), 1, "collectors starts processes for one run"),
        (("--overlap", "--num_seeds", "2"), 1, "without --overlap"),
        (("--num_seeds", "0"), 2, "num_seeds"),
        (("--num_seeds", "2", "--seed", str(2**32 - 1)), 1, "create_experiment.seed must be in"),
    ],
)
def test_what_has_no_meaning_is_refused_and_nothing_is_begun(words, code, message, tmp_path):
    result = taac("train", *METHOD, *words, cwd=tmp_path)
    assert result.returncode == code and message in result.stderr
    assert not (tmp_path / "runs").exists()


def test_several_processes_of_torchrun_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = taac("train", *METHOD, "--num_seeds", "2", cwd=tmp_path)
    assert result.returncode == 1 and "torchrun starts several" in result.stderr
