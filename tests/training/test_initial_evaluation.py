"""The evaluation at step 0: of the untrained agent, once, and without a trace in what is trained."""

from __future__ import annotations

import pytest
import torch

from taac.acting import evaluation
from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.acting.random_numbers import EVALUATION, derived_seed
from taac.errors import EnvironmentFailed
from taac.runs.run_folder import RunFolder
from tests.training.runs import assert_same_parameters, build, rows, run
from tests.training.test_restarts import fragile

WITHOUT = "Evaluator.initial_evaluation = False"
SHORT = ("num_env_steps = 320", "evaluation_interval = 160", "evaluation_episodes = 1", "hidden_layers = (8,)",
         "batch_size = 4", "Intervals.checkpoint_interval = 160", "create_experiment.evaluation_envs = 1")  # fmt: skip


def steps(path):
    return [int(row["env_steps"]) for row in rows(path)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with it: its folder and its trainer."""
    path = tmp_path_factory.mktemp("whole")
    return path, run(path, *SHORT)


def test_it_changes_no_bit_of_training(whole, tmp_path):
    """With environments, explorer and networks that draw random numbers."""
    path, trainer = whole
    without = run(tmp_path / "without", *SHORT, WITHOUT)
    assert_same_parameters(trainer, without)
    assert steps(path) == [0, 160, 320] and rows(path)[1:] == rows(tmp_path / "without")
    ours, theirs = (RunFolder(p).checkpoints.newest().state for p in (path, tmp_path / "without"))
    assert torch.equal(ours["random"]["cpu"], theirs["random"]["cpu"]) and ours["evaluator"] == theirs["evaluator"]


def test_it_is_of_the_untrained_agent(whole):
    path, _ = whole
    fresh = build(*SHORT)
    seed = derived_seed(fresh.seed, EVALUATION, 0)
    expected = summarize(evaluate(fresh.agent, fresh.evaluation_environment, 1, seed))
    fresh.close()
    first = rows(path)[0]
    assert float(first["return_mean"]) == expected.return_mean
    assert first["updates"] == first["training_decisions"] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 160, 320])
def test_an_evaluation_that_a_signal_ends_is_done_when_the_run_goes_on(whole, tmp_path, at):
    """It may take minutes, or not end at all."""
    path, trainer = whole
    stopped = run(tmp_path, *SHORT, stop=at)
    assert stopped.interrupted and steps(tmp_path) == list(range(0, at, 160)) and stopped.env_steps == at
    assert_same_parameters(run(tmp_path, *SHORT), trainer)
    assert rows(tmp_path) == rows(path)


def test_a_run_without_it_is_the_same_but_for_that_row(whole, tmp_path):
    path, trainer = whole
    run(tmp_path, *SHORT, WITHOUT, stop=170)
    assert_same_parameters(run(tmp_path, *SHORT), trainer)
    assert rows(tmp_path) == rows(path)[1:]


def test_the_best_agent_is_a_trained_one(whole):
    """The untrained one may well be better."""
    path, trainer = whole
    returns = {int(row["env_steps"]): float(row["return_mean"]) for row in rows(path)}
    best = max((160, 320), key=returns.__getitem__)
    assert trainer.evaluator.best_return == returns[best]
    assert RunFolder(path).best.newest().env_steps == best


def test_it_that_fails_is_repeated(tmp_path):
    settings = [s for s in fragile(tmp_path, "raise", at=3, times=1, asynchronous=False) if s != WITHOUT]
    with pytest.raises(EnvironmentFailed, match=r"\(evaluation\)' .* Nothing had been learnt yet"):
        run(tmp_path / "run", *settings, method="sac")
    assert steps(tmp_path / "run") == [] and not RunFolder(tmp_path / "run").has_checkpoints()
    run(tmp_path / "run", *settings, method="sac")  # mended: it failed once
    assert steps(tmp_path / "run")[0] == 0 and steps(tmp_path / "run").count(0) == 1


@pytest.mark.parametrize("method", ["sac", "sac_krep"])
def test_evaluations_play_the_episodes_of_the_step_at_which_they_were_due(tmp_path, method, monkeypatch):
    """Actions of up to three steps pass multiples of 50; the run of 120 steps ends one or two steps late."""
    seeds, evaluated = [], evaluation.evaluate

    def watched(agent, environment, episodes, seed, *rest):
        seeds.append(seed)
        return evaluated(agent, environment, episodes, seed, *rest)

    monkeypatch.setattr(evaluation, "evaluate", watched)
    params = ("num_env_steps = 120", "create_experiment.seed = 3", "initial_collect_steps = 110", "evaluation_interval = 50",
              "evaluation_episodes = 1", "create_environment.max_episode_steps = 7")  # fmt: skip
    trainer = run(tmp_path, *params, method=method)
    at = steps(tmp_path)
    assert seeds == [derived_seed(trainer.seed, EVALUATION, due) for due in (0, 50, 100, 120)]
    assert (at == [0, 50, 100, 120]) == (method == "sac") and trainer.evaluator.evaluated_at == at[-1]
