"""Discrete SAC the whole way: no invalid choice is ever made, exploring, what composes and what is refused, learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.acting.explorers import EpsilonGreedyExplorer
from taac.acting.metrics import EpisodeRecorder, summarize
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.errors import TaacError
from taac.ops.schedules import LinearSchedule, Schedules
from taac.runs.run_folder import RunFolder
from taac.specs import ACTION_MASK
from taac.training import experiment
from tests.environments.toys import Masked, env_id
from tests.training.runs import built, trained

FILES = ["gin/tasks/discrete_control.gin", "gin/methods/sac_discrete.gin"]
SMALL = [
    "replay_length = 5000",
    "hidden_layers = (32,)",
    "batch_size = 32",
    "initial_collect_steps = 100",
    "num_envs = 2",
]


def build(*params, files=FILES):
    return built(files, [*SMALL, *params])


def toy(*params, **kwargs):
    return build(
        f"create_environment.env_name = '{env_id('Masked')}'", f"create_environment.env_kwargs = {kwargs!r}", *params
    )  # fmt: skip


SHARED = "create_agent.shared_policy = True"
INFO = "create_environment.wrappers = (@ActionMaskFromInfo,)"
TOYS = {
    "observation": ({}, []),
    "info": ({"where": "info"}, [INFO]),
    "start": ({"start": 3}, []),
    "agents": ({"agents": 3}, [SHARED]),
    "agents, own rewards": ({"agents": 3, "own_reward": True}, [SHARED]),
    "normalised": ({}, ["create_agent.normalize_observations = True", "normalize_rewards = True"]),
}


QUICK = ("info", "agents, own rewards")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TOYS])
def test_an_invalid_choice_is_never_made(name, tmp_path):
    """Collecting, exploring with epsilon 1/2, across checkpoints, and evaluating: every episode has its 20 steps."""
    kwargs, params = TOYS[name]
    trainer = toy(
        *params, "exploration/LinearSchedule.start = 0.5", "exploration/LinearSchedule.end = 0.5", "num_env_steps = 600",
        "evaluation_interval = 300", "checkpoint_interval = 270", "UpdateRatio.updates_per_env_step = 0.1", **kwargs,
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0, "environment": "Masked"})
    Masked.mistakes = 0
    lengths = []
    add = EpisodeRecorder.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            EpisodeRecorder, "add", lambda *args: [(lengths.append(e.length), (i, e))[1] for i, e in add(*args)]
        )
        trainer.train(folder)
    trainer.close()
    assert Masked.mistakes == 0 and set(lengths) == {20} and len(lengths) > 30
    assert trainer.learner.num_updates == 50 and trainer.evaluation.length == 20
    # What was replayed is what was done, and valid where it was done.
    frames = trainer.replay_buffer.sample(500, 2).time_step
    acted = (frames.step_type[0] != int(StepType.LAST)).nonzero().squeeze(-1)
    done = frames.observation[ACTION_MASK][0].gather(-1, frames.prev_action[1].unsqueeze(-1)).squeeze(-1)
    assert done[acted].all()
    assert len(frames.prev_action.unique()) == 5


def test_agents_share_all_statistics():
    """What one agent observes, and is rewarded with, reaches the networks as the same number whichever agent it is."""
    kwargs, params = TOYS["agents, own rewards"]
    trainer = trained(toy(*params, *TOYS["normalised"][1], **kwargs), 1)
    agent, batch = trainer.agent, 4
    assert agent.observation_normalizer.mean_0.shape == (5,) and agent.reward_normalizer.mean.shape == ()
    seen = torch.full((batch, 3, 5), 0.3)
    normalized = agent.observation_normalizer({"numbers": seen, ACTION_MASK: seen > 0})["numbers"]
    assert (normalized == normalized[:1, :1]).all() and not torch.equal(normalized, seen)
    sampled = trainer.replay_buffer.sample(batch, 2)
    reward = agent.prepare(sampled).time_step.reward
    raw = sampled.time_step.reward.flatten(1)
    assert raw.shape == reward.shape == (2, batch * 3) and not torch.equal(raw, reward)
    assert len(reward[raw == 1].unique()) == len(reward[raw == 0].unique()) == 1


class Explored:
    """An `EpsilonGreedyExplorer` at a policy that always says 9, where `uniform` says 0 or 1."""

    def __init__(self, epsilon):
        self.explorer = EpsilonGreedyExplorer(epsilon)

    def fraction(self, env_steps, shape=(20_000,)):
        time_step = TimeStep(torch.ones(shape[0], dtype=torch.uint8), *[()] * 5)
        policy = AlgStep(torch.full(shape, 9), (), (), torch.ones(shape[0], dtype=torch.bool))
        step, state = self.explorer.step(time_step, policy, (), env_steps, lambda: torch.randint(2, shape))
        assert state == () and step.decided is policy.decided
        assert set(step.output.unique().tolist()) <= {0, 1, 9}
        explored = step.output != 9
        if explored.any():
            assert (step.output[explored] == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
        return explored.double()


def test_epsilon_follows_its_schedule():
    explored = Explored(LinearSchedule(1.0, 0.0, 100))
    for env_steps, expected in ((0, 1.0), (50, 0.5), (75, 0.25), (200, 0.0)):
        Schedules(explored.explorer).move(env_steps, 0)
        assert explored.fraction(env_steps).mean().item() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("epsilon", [-0.1, 1.5, LinearSchedule(0.5, 2.0, 10)])
def test_epsilon_out_of_range(epsilon):
    with pytest.raises(TaacError, match=r"EpsilonGreedyExplorer\.epsilon must be in \[0, 1\]"):
        EpsilonGreedyExplorer(epsilon)


@pytest.mark.parametrize(
    "files, params, message",
    [
        (
            ["gin/tasks/simple_control.gin", "gin/methods/sac.gin"],
            ["create_collector.explorer = @EpsilonGreedyExplorer()"],
            r"EpsilonGreedyExplorer explores discrete actions, but the actions are float32\[1\].*ZetaExplorer",
        ),
        (FILES, ["create_collector.explorer = @ZetaExplorer()"], r"one continuous action vector, .* are int64\[\].*Epsilon"),
        (FILES, ["DiscreteSacAlgorithm.target_entropy = -1.0"], "is negative, which only continuous actions allow"),
        (FILES, ["DiscreteSacAlgorithm.target_entropy = 0.7"], r"0\.7 nats cannot be reached.*log\(2\)"),
        (FILES, ["action_min_prob = 0.6"], r"min_prob must be in \(0, 0\.5\] for 2 choices"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_any_work(files, params, message):
    configuration.load(files, [*SMALL, *params])
    with pytest.raises(TaacError, match=message):
        configuration.build(experiment.create_experiment)


# --- Learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_under_masks_the_value_counts_the_entropy_of_valid_choices():
    """Reward 1 for ever, alpha 1/2, two of three choices valid and alike: Q = 1 + gamma (Q + alpha log 2) = 6.386."""
    gamma, alpha = 0.8, 0.5
    trainer = build(
        f"create_environment.env_name = '{env_id('TwoOfThree')}'", f"gamma = {gamma}",
        "learning_rate = 3e-3", "target_tau = 0.05", "Temperature.tuning = 'fixed'",
        f"Temperature.initial_value = {alpha}",
    )  # fmt: skip
    algorithm = trained(trainer, 700).agent.algorithm
    with torch.no_grad():
        q = algorithm.critics(torch.ones(1, 1)).mean(0)[0]
        logits = algorithm.actor(torch.ones(1, 1))[0]
    expected = (1 + gamma * alpha * math.log(2)) / (1 - gamma)
    assert q[:2].tolist() == pytest.approx([expected] * 2, rel=0.04)
    assert (logits[0] - logits[1]).abs() < 0.3


AGENTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("agents", "agents, own rewards")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["observation", *AGENTS])
def test_the_best_valid_choice_is_learnt(name):
    """Of five numbers the greatest that is valid: 20 steps, and a reward of 1 at each. Random choices get about 10."""
    kwargs, params = TOYS[name]
    trainer = toy(
        "learning_rate = 3e-3", "hidden_layers = (64,)", "batch_size = 128", "gamma = 0.0", "target_tau = 1.0",
        "Temperature.initial_value = 0.1", *params, **kwargs,
    )  # fmt: skip
    evaluated = evaluate(trained(trainer, 800).agent, trainer.evaluation_environment, 20, seed=1)
    agents = 3 if "own" in name else 1  # the sum over parts
    assert summarize(evaluated).return_mean / agents > 17.5
    assert np.mean([e.length for e in evaluated]) == 20
