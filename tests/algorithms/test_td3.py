"""TD3: one whole update against a slow reference, exploration, the policy's delay, learning."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from taac.algorithms import OneStepTDLoss, SacAlgorithm, Td3Algorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.networks import DeterministicActorNetwork
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, COST, IMAGE_SPEC, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC
from tests.training.runs import build

TD3 = {"num_critics": 2, "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875, "dqda_clipping": None}


def td3(config=TD3, **changes):
    c = SimpleNamespace(**config)
    options = {
        "reward_dim": len(c.reward_weights) if c.reward_weights else None, "reward_weights": c.reward_weights,
        "td_loss": OneStepTDLoss(c.gamma), "target_noise": 0.4, "target_noise_clip": 0.3, "dqda_clipping": c.dqda_clipping,
        **reference.networks(c.num_critics),
        "actor_ctor": functools.partial(DeterministicActorNetwork, hidden_layers=(5, 4)),
    }  # fmt: skip
    return reference.scrambled(Td3Algorithm(c.spec, ACTION_SPEC, **{**options, **changes}))


def sac(**options):
    return reference.scrambled(SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, **reference.networks(), **options))


def act(w, name, x):
    for layer in reference.hidden(w, name):
        x = torch.relu(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"])
    return torch.tanh(w[f"{name}.head.weight"] @ x + w[f"{name}.head.bias"])


def td3_reference(w, config, time_step, noise):
    """docs/equations.md#the-sac-family, one frame at a time: the loss `[T][B]`. `noise` `[T-1, B, A]` is of frames 1..T-1."""
    c = SimpleNamespace(**config)
    loss, value = ([[torch.zeros(()).double()] * BATCH for _ in range(STEPS)] for _ in range(2))
    for t in range(STEPS):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", time_step.observation, t, b).detach()

            def q_1(action, obs=obs):
                return reference.total(reference.critics(w, "critics", obs, action)[0], c.reward_weights)

            if t < STEPS - 1:
                a = act(w, "actor", obs)
                dq_da = reference.numeric_gradient(q_1, a, c.dqda_clipping)
                loss[t][b] = 0.5 * ((a - (a + dq_da).detach()) ** 2).sum()
            if t > 0:
                target_obs = reference.encode(w, "target_encoder", time_step.observation, t, b)
                smoothed = [
                    min(max(x + min(max(0.4 * n, -0.3), 0.3), -1.0), 1.0)
                    for x, n in zip(act(w, "target_actor", target_obs).tolist(), noise[t - 1, b].tolist())
                ]
                of_critics = reference.critics(w, "target_critics", target_obs, torch.tensor(smoothed).double())
                value[t][b] = reference.worst(of_critics, c.reward_weights).detach()
    return reference.with_critics(
        loss, time_step, value, reference.gammas(c), reference.at_executed(w, time_step, time_step.prev_action)
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"), pytest.param({"num_critics": 3, "dqda_clipping": 0.05}, id="three-critics"),
        pytest.param(COST, id="vector-reward-vector-gamma"), pytest.param({"spec": IMAGE_SPEC}, id="image"),
    ],
)  # fmt: skip
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = TD3 | changes
    algorithm, reward_weights = td3(config), config["reward_weights"]
    time_step = reference.replayed(config["spec"], len(reward_weights) if reward_weights else None)
    noise = torch.randn(STEPS - 1, BATCH, NUM_ACTIONS, dtype=torch.float64)
    assert (0.4 * noise).abs().max() > 0.3 > (0.4 * noise).abs().min()
    weights = reference.weights_of(algorithm)
    expected = td3_reference(weights, config, time_step, noise)
    drawn = reference.record_draws(monkeypatch, noise)
    experience = Experience(time_step, ())
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience)).loss
    assert drawn == {"noise": 1, "uniform": 0}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {"rtol": 1e-6, "atol": 1e-8}
    reference.check_update(algorithm, loss, weights, expected, **tolerance)


def test_what_an_update_reports_has_no_entropy():
    algorithm, experience = td3(), Experience(reference.replayed(VECTOR_SPEC), ())
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert set(extra) == {"loss/critic", "loss/actor", "critic/q", "critic/target"}
    assert extra["critic/q"].item() == pytest.approx(info.q.mean(0)[~IS_LAST[:-1]].mean().item())


def test_an_actor_with_an_encoder_of_its_own_has_its_slow_copy_too():
    algorithm = td3(actor_encoder_ctor=reference.Encoder)
    pairs = {id(slow): network for slow, network in algorithm.target_networks()}
    assert pairs[id(algorithm.target_actor_encoder)] is algorithm.actor_encoder
    assert pairs[id(algorithm.target_actor)] is algorithm.actor and len(pairs) == 4


def test_rollouts_add_noise_and_stay_in_bounds():
    algorithm, frame = Td3Algorithm(VECTOR_SPEC, ACTION_SPEC, exploration_noise=0.5), reference.frame(4000)
    frame = frame._replace(observation=frame.observation[:1].expand(4000, -1))
    greedy = algorithm.predict_step(frame, ()).output
    assert torch.equal(greedy, greedy[:1].expand_as(greedy))
    explored = algorithm.rollout_step(frame, ()).output
    assert explored.abs().max() <= 1
    inside = explored.abs() < 1
    expected = (greedy + 0.5 * torch.randn_like(greedy)).clamp(-1, 1)
    assert inside.float().mean().item() == pytest.approx((expected.abs() < 1).float().mean().item(), abs=0.03)
    assert (explored - greedy).std().item() == pytest.approx((expected - greedy).std().item(), rel=0.1)
    some = algorithm.predict_step(frame, (), epsilon=0.25).output
    assert (some == greedy).all(-1).float().mean().item() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("make", [td3, sac])
def test_a_delayed_policy_moves_once_in_so_many_updates_and_critics_in_each(make):
    algorithm = make(policy_delay=3)
    learner, moved = Learner(Agent(algorithm), 1e-3, matmul="plain"), []
    groups = algorithm.parameter_groups()
    experience = Experience(reference.replayed(VECTOR_SPEC), ())
    for _ in range(6):
        before = {name: [p.clone() for p in group] for name, group in groups.items()}
        learner.update(experience)
        moved.append([name for name, group in groups.items() if any(not torch.equal(p, q) for p, q in zip(group, before[name]))])
    everything = [name for name, group in groups.items() if group]
    assert moved == [["critic"], ["critic"], everything] * 2 and "actor" in everything


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"policy_delay": 0}, "policy_delay must be 1 or more, got 0"),
        ({"exploration_noise": -0.1}, r"Td3Algorithm\.exploration_noise must be 0 or more, got -0\.1"),
        ({"target_noise": float("nan")}, "target_noise must be 0 or more"),
        ({"target_noise_clip": float("inf")}, "target_noise_clip must be 0 or more"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(TaacError, match=message):
        td3(**settings)


def test_segments_that_begin_at_the_end_of_an_episode_are_drawn_anew():
    trainer = build("create_environment.max_episode_steps = 3", "Trainer.segment_length = 2", method="td3")
    while trainer.env_steps < 100:
        trainer.collect()
    trainer.close()
    assert not trainer.replay_buffer.sample(200, 2).time_step.is_last()[0].any()
