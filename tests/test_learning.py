"""Whole trainings on tasks whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.configuration.run_request import method_files
from tests.training.runs import built, trained

TASK = "gin/tasks/simple_control.gin"


def train(method, *params, updates):
    """Collects and learns until so many updates were taken, without writing anything."""
    bound = ["normalize_rewards = False", "reward_clip = None", *params]
    return trained(built([TASK, *method_files(method)], bound), updates)


def countdown(method, length, truncate, one_state, *more):
    gamma = 0.8
    trainer = train(
        method, "create_environment.env_name = 'tests.toy_tasks:taac-test/Countdown-v0'",
        f"create_environment.env_kwargs = {{'length': {length}, 'truncate': {truncate}, 'one_state': {one_state}}}",
        f"gamma = {gamma}", "learning_rate = 3e-3", "target_tau = 0.1", "hidden_layers = (32,)", "batch_size = 32",
        "initial_collect_steps = 200", "replay_length = 2000", *more, updates=400,
    )  # fmt: skip
    algorithm, time_steps = trainer.agent.algorithm, trainer.replay_buffer.sample(400, 2)
    acted = ~time_steps.time_step.is_last()[0]
    observation = time_steps.time_step.observation[0][acted]
    action = time_steps.time_step.prev_action[1][acted]
    with torch.no_grad():
        q = algorithm.critics(algorithm.encoder(observation), action).mean(0)
    return gamma, observation, q


METHODS = [("sac", "SacAlgorithm.entropy_in_target = False"), ("taac", "segment_length = 4")]


@pytest.mark.slow
@pytest.mark.parametrize("method, more", METHODS)
def test_under_truncation_the_value_is_that_of_going_on_for_ever(method, more):
    """One state, reward 1: Q = 1/(1 - gamma) = 5, however short the time limit."""
    gamma, _, q = countdown(method, 5, True, True, more)
    assert q.mean() == pytest.approx(1 / (1 - gamma), rel=0.04)
    assert q.std() < 0.3


@pytest.mark.parametrize("method, more", METHODS)
@pytest.mark.slow
def test_under_termination_the_value_is_the_finite_sum(method, more):
    """Reward 1 for k more steps: Q = 1 + gamma + ... + gamma^(k-1)."""
    gamma, left, q = countdown(method, 4, False, False, more)
    for steps in (1, 2, 3, 4):
        expected = sum(gamma**i for i in range(steps))
        assert (left == steps).any()
        assert q[left == steps].mean() == pytest.approx(expected, rel=0.04), f"{steps} steps left"


def point_mass(method, env_name, *more, updates=400):
    trainer = train(
        method, f"create_environment.env_name = 'tests.toy_tasks:taac-test/{env_name}'",
        "learning_rate = 5e-3", "target_tau = 0.05", "hidden_layers = (32, 32)", "batch_size = 64",
        "replay_length = 10000", "initial_collect_steps = 300", *more, updates=updates,
    )  # fmt: skip
    return trainer, evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=7)


SLOW = ("sac", "taac_q", "sac_krep", "sac_chunk", "taac_chunk", "sdar", "tla", "td3", "temporl", "temporl_ddpg")


@pytest.mark.slow
@pytest.mark.parametrize("method", SLOW)
def test_learns_to_drive_a_point_to_the_origin(method):
    """Standing still returns about -25, a random walk less; the best is about -4: straight to 0, and stay."""
    prices = ["TlaAlgorithm.decision_price = 0.02", "TlaAlgorithm.jerk_price = 0.02"] if method == "tla" else []
    _, episodes = point_mass(method, "PointMass-v0", "gamma = 0.95", *prices)
    result = summarize(episodes)
    assert result.return_mean > -6.5, result
    if method in ("sac", "td3"):
        assert result.fraction_repeated == 0
    elif method != "sac_krep":  # one step at a time is best near 0
        assert result.fraction_repeated > 0.05, result


PARTS = (
    "sac+action_delay", "sac+l2c2", "taac+caps", "td3+caps", "sac+gsde", "sac+held_noise", "taac+pink_noise",
    "taac+observation_delay",
)  # fmt: skip


@pytest.mark.parametrize("method", ["sac+caps", *(pytest.param(m, marks=pytest.mark.slow) for m in PARTS)])
def test_learns_with_smooth_actors_correlated_noise_and_delays(method):
    """The actor's losses at a tenth of their weights, as rewards are near 0; delays of one step."""
    weights = {"caps": ("CAPS.temporal = 0.1", "CAPS.spatial = 0.1"), "l2c2": ("L2C2.upper = 0.1",)}
    _, episodes = point_mass(method, "PointMass-v0", "gamma = 0.95", *weights.get(method.split("+")[1], ()))
    result = summarize(episodes)
    assert result.return_mean > -6.5 and (result.fraction_repeated == 0 or not method.startswith("sac")), result


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sac", "taac", "td3"])
def test_pink_noise_finds_what_is_far_away_and_it_is_learnt(method):
    """In the first 60 episodes white noise finds nothing; or hardly anything with TAAC, which repeats actions."""
    pink = ["create_collector.explorer = @ColoredNoise()", "ColoredNoise.length = 60"]
    bound = ["create_collector.uniform_initial_collect = False", "initial_collect_steps = 3600", "gamma = 0.95"]
    bound += ["Td3Algorithm.exploration_noise = 1.0"] if method == "td3" else []
    found = []
    for noise, updates in ([], 1), (pink, 600):
        trainer, episodes = point_mass(method, "Far-v0", *bound, *noise, updates=updates)
        found.append(trainer.replay_buffer._storage.time_step.reward[:3600].sum().item())
    assert found[1] > 5 * found[0] and found[1] > 10, found
    assert summarize(episodes).return_mean > 25


@pytest.mark.parametrize(
    "method, bound",
    [
        pytest.param("taac", "TaacAlgorithm.decision_price = 0.1", marks=pytest.mark.slow),
        ("taac", "TaacAlgorithm.target_decision_rate = 0.2"),
        pytest.param("temporl", "TempoRLAlgorithm.decision_price = 0.3", marks=pytest.mark.slow),
        pytest.param("sdar", "SdarAlgorithm.decision_price = 0.3", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_decisions_that_cost_something_are_rare(method, bound):
    """Without a price these methods decide at 18 to 24 of 30 steps here."""
    _, episodes = point_mass(method, "PointMass-v0", "gamma = 0.95", bound)
    result = summarize(episodes)
    assert result.return_mean > -6.5 and result.decisions < 14, result


@pytest.mark.slow
def test_durations_are_longer_at_a_price():
    """Of up to 3 steps, so that 10 decisions are the least of an episode of 30."""
    found = {}
    for price in (0.0, 0.3):
        bound = (f"DurationCoordinate.decision_price = {price}", "create_agent.normalize_rewards = True")
        _, episodes = point_mass("tacos", "PointMass-v0", "gamma = 0.95", *bound)
        found[price] = summarize(episodes)
    assert min(result.return_mean for result in found.values()) > -6.5, found
    assert found[0.3].decisions < 12 and found[0.3].decisions + 3 < found[0.0].decisions, found


@pytest.mark.slow
def test_learns_from_two_rewards_of_which_one_counts():
    """A vector reward, its weights and a vector of discounts, from the environment to the critics."""
    bound = ["TaacAlgorithm.reward_weights = (1.0, 0.1)", "TAACTDLoss.gamma = (0.95, 0.5)"]
    trainer, episodes = point_mass("taac", "TwoRewards-v0", *bound)
    assert np.mean([e.ret[0] for e in episodes]) > -6.5
    assert all(e.ret[1] == 30 for e in episodes)
    # The part that changes nothing, as it is the same everywhere, has a value of its own: 1 a step for ever at gamma 0.5.
    sampled = trainer.replay_buffer.sample(200, 2).time_step
    algorithm = trainer.agent.algorithm
    with torch.no_grad():
        q = algorithm.critics(algorithm.encoder(sampled.observation[0]), sampled.prev_action[1])
    assert q.shape == (2, 200, 2)
    assert q[..., 1].mean() == pytest.approx(1 / (1 - 0.5), rel=0.05)


@pytest.mark.slow
def test_what_was_shown_once_is_recalled_with_a_memory():
    """Cue, two steps that do not count, two that do: 2 is the best return, and 0 without a memory."""
    memory = ["GRUMemory.output_size = 16", "Trainer.segment_length = 6", "RecurrentSacAlgorithm.burn_in = 1"]
    trainer = train(
        "sac_recurrent", "create_environment.env_name = 'taac.environments.recall:taac/Recall-v0'",
        "create_environment.env_kwargs = {'length': 5, 'recalled': 2}", "gamma = 0.9", "target_tau = 0.02",
        "learning_rate = 3e-3", "hidden_layers = (32,)", "batch_size = 16", "initial_collect_steps = 300",
        "replay_length = 2000", "Temperature.initial_value = 0.1", *memory, updates=600,
    )  # fmt: skip
    episodes = evaluate(trainer.agent, trainer.evaluation_environment, 30, seed=5)
    assert 1.8 < summarize(episodes).return_mean <= 2.0
