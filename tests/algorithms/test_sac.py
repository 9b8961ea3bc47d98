"""SAC: one whole update against a slow reference, acting, targets, refusals."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import pytest
import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, SacAlgorithm, SacValueAlgorithm, SdarAlgorithm, TaacAlgorithm
from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, ObservationEncoder
from taac.ops.schedules import LinearSchedule
from taac.specs import bounded
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, COST, IMAGE_SPEC, NUM_ACTIONS, SAC, STEPS, VECTOR_SPEC, F, L

# --- One update of SAC ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"entropy_in_target": False}, id="no-entropy-in-target"),
        pytest.param({"num_critics": 1}, id="one-critic"),
        pytest.param({"num_critics": 3}, id="three-critics"),
        pytest.param({"dqda_clipping": 0.05}, id="dqda-clipping"),
        pytest.param({"tuning": "fixed"}, id="fixed-temperature"),
        pytest.param({"tuning": "direct"}, id="direct-temperature"),
        pytest.param({"ignore_done": True}, id="ignore-done"),
        pytest.param({"min_prob": 0.25}, id="min-prob"),
        pytest.param({"target_entropy": -1.5}, id="target-entropy"),
        pytest.param(COST, id="vector-reward-vector-gamma"),
        pytest.param({**COST, "gamma": 0.75, "num_critics": 3}, id="vector-reward-one-gamma"),
        pytest.param({**COST, "share_hidden_layers": True}, id="vector-reward-shared-hidden-layers"),
        pytest.param({"spec": IMAGE_SPEC}, id="image"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = SAC | changes
    algorithm = reference.sac(config)
    reward_weights = config["reward_weights"]
    time_step = reference.replayed(config["spec"], len(reward_weights) if reward_weights else None)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    weights = reference.weights_of(algorithm)
    expected = reference.sac_reference(weights, config, time_step, noise)

    drawn = reference.record_draws(monkeypatch, noise)
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    loss = algorithm.calc_loss(experience, info).loss
    assert drawn["noise"] == 1
    in_float32 = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {}
    reference.check_update(algorithm, loss, weights, expected, **in_float32)


@pytest.mark.parametrize("reward_weights", [(1.0, -0.5, 2.0), (1.0, -1.0, 1e-3)], ids=str)
def test_the_entropy_bonus_of_a_vector_reward_adds_up_to_that_of_a_scalar_one(reward_weights):
    """Whatever part of the reward it is booked under, what the actor maximises gets -alpha log pi."""
    algorithm = reference.sac(SAC | COST | {"reward_weights": reward_weights})
    experience = Experience(reference.replayed(VECTOR_SPEC, 3), ())
    values = {}
    for algorithm.entropy_in_target in (False, True):
        torch.manual_seed(3)
        info = algorithm.train_step(experience)
        values[algorithm.entropy_in_target] = info.value @ torch.tensor(reward_weights, dtype=torch.float64)
    bonus = values[True] - values[False]
    torch.testing.assert_close(bonus[1:], -algorithm.temperature.value.exp().detach() * info.log_pi[1:])


def test_no_entropy_is_paid_after_a_termination():
    """Two frames, the second terminal: the target is the reward alone. Truncated, it bootstraps with the bonus."""
    algorithm = reference.sac(SAC)
    step_type = torch.tensor([[F, F], [L, L]], dtype=torch.uint8)
    discount = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    reward = torch.tensor([[0.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    action = torch.zeros(2, 2, NUM_ACTIONS, dtype=torch.float64)
    time_step = TimeStep(step_type, reward, discount, torch.randn(1, 1, 3).expand(2, 2, 3), action, torch.ones(2, 2))
    info = algorithm.train_step(Experience(time_step, ()))
    target = algorithm.td_loss.returns(time_step, info.value, torch.ones(2, 2, dtype=torch.bool))
    assert target[0, 0] == 3.0
    assert target[0, 1] == pytest.approx(3.0 + 0.875 * info.value[1, 1].item())
    assert target[0, 1] != 3.0


def test_what_an_update_reports():
    algorithm = reference.sac(SAC)
    experience = Experience(reference.replayed(VECTOR_SPEC)._replace(reward=torch.zeros(STEPS, BATCH).double()), ())
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert all(x.dim() == 0 and not x.requires_grad for x in extra.values())
    assert extra["policy/alpha"].item() == pytest.approx(math.exp(algorithm.temperature.value.item()))
    # Means over the frames that are learnt from: no action was taken at LAST, and no return reaches the segment's last.
    acted = experience.time_step.step_type != L
    assert extra["policy/entropy"].item() == pytest.approx(-info.log_pi[acted].mean().item())
    assert extra["critic/q"].item() == pytest.approx(info.q[:, acted[:-1]].mean().item())
    target = algorithm.targets(experience, info)
    loss = algorithm.critic_loss(info.prediction, target)
    assert extra["critic/target"].item() == pytest.approx(target[acted[:-1]].mean().item())
    assert extra["loss/critic"].item() == pytest.approx(loss[:-1][acted[:-1]].mean().item())


# --- Acting -----------------------------------------------------------------------------------------------------------


def actor_alone():
    algorithm = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)))
    nn.init.normal_(algorithm.actor.head.bias, 0.0, 0.5)
    return algorithm


def pre_tanh_moments(algorithm, features):
    """Mean and standard deviation of the normal, from the raw weights."""
    w = reference.weights_of(algorithm)
    x = torch.relu(features.double() @ w["actor.hidden.0.weight"].T + w["actor.hidden.0.bias"])
    mean, log_std = (x @ w["actor.head.weight"].T + w["actor.head.bias"]).detach().split(NUM_ACTIONS, -1)
    return mean, log_std.exp()


def test_predict_step_is_the_mode_whatever_the_seed():
    algorithm, time_step = actor_alone(), reference.frame(50)
    expected = torch.tanh(pre_tanh_moments(algorithm, time_step.observation)[0])
    for seed in (1, 2):
        torch.manual_seed(seed)
        step = algorithm.predict_step(time_step, ())
        torch.testing.assert_close(step.output.double(), expected, rtol=1e-4, atol=1e-5)
        assert step.decided.all() and step.state == ()


@pytest.mark.parametrize("how", ["rollout", "epsilon 1"])
def test_rollouts_sample_the_squashed_normal(how):
    algorithm, count = actor_alone(), 20000
    time_step = reference.frame(count)._replace(observation=torch.randn(1, 3).expand(count, 3))
    mean, std = pre_tanh_moments(algorithm, time_step.observation[0])
    step = algorithm.rollout_step(time_step, ()) if how == "rollout" else algorithm.predict_step(time_step, (), 1.0)
    x = torch.atanh(step.output.double())
    error = 4 / math.sqrt(count)
    assert torch.all((x.mean(0) - mean).abs() < error * std)
    assert torch.all((x.std(0) / std - 1).abs() < error)
    assert abs(torch.corrcoef(x.T)[0, 1]) < error


def test_random_step_is_uniform():
    step = actor_alone().random_step(reference.frame(20000), ())
    reference.check_uniform(step.output, 20000)
    assert step.decided.all()


# --- Targets, groups, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau, period", [(0.25, 1), (0.25, 3), (1.0, 2)])
def test_targets_move_softly_and_on_time(tau, period):
    reference.check_targets_move(
        SacAlgorithm(IMAGE_SPEC, ACTION_SPEC, target_update_tau=tau, target_update_period=period, **reference.networks()),
        tau, period,
    )  # fmt: skip


@pytest.mark.parametrize(
    "env_steps, ratio, moves",
    [
        # Update n is earned at environment step 4 n: 12, 20, 32, 40 and 52 are the first at or after 10, 20, 30, 40 and 50.
        (10, Fraction(1, 4), [3, 5, 8, 10, 13]),
        # Three updates a step, six in two.
        (2, Fraction(3), [6, 12]),
        # Steps 1, 2, 3 ... earn 2/3 of an update each; the period is 4/3: 4/3, 8/3, 4, 16/3, ...
        (2, Fraction(2, 3), [2, 3, 4, 6, 7, 8, 10, 11, 12]),
        # A period shorter than what an update takes to earn: every update.
        (3, Fraction(1, 5), list(range(1, 14))),
    ],
)
def test_targets_move_by_environment_steps(env_steps, ratio, moves):
    algorithm = SacAlgorithm(
        VECTOR_SPEC,
        ACTION_SPEC,
        target_update_tau=1.0,
        target_update_period=1000,
        target_update_env_steps=env_steps,
        **reference.networks(),
    )
    with pytest.raises(TaacError, match="the ratio of updates to environment steps"):
        algorithm.after_update(1)
    algorithm.set_update_ratio(ratio)
    assert (
        algorithm.describe()[-1]
        == f"targets: move every {env_steps} environment steps = {float(env_steps * ratio):g} updates"
    )
    moved, weight = [], algorithm.critics.last.bias
    for number in range(1, 14):
        weight.data.fill_(number)
        algorithm.after_update(number)
        if (algorithm.target_critics.last.bias == number).all():
            moved.append(number)
    assert moved == moves
    with pytest.raises(TaacError, match=r"needs a constant ratio"):
        algorithm.set_update_ratio(None)


class Standardised(nn.Module):
    """Running statistics of its input, as a batch norm keeps them, before another network."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.output_size = getattr(inner, "output_size", None)

    def forward(self, x, *action):
        with torch.no_grad():
            self.count += 1
            self.mean.lerp_(torch.cat([x, *action], -1).mean(tuple(range(x.dim() - 1))), 0.1)
        return self.inner(x - self.mean[: x.shape[-1]], *action)


@pytest.mark.parametrize(
    "kind, network", [(SacAlgorithm, "encoder"), (SacAlgorithm, "critics"), (SacValueAlgorithm, "value")]
)
def test_buffers_are_copied_to_the_target_when_it_moves(kind, network):
    """Statistics that a network keeps are moved by no gradient: its target takes them over as they are."""
    width = 3 + NUM_ACTIONS * (network == "critics")
    name = {"encoder": "encoder_ctor", "critics": "critic_ctor", "value": "value_ctor"}[network]
    inner = ObservationEncoder if network == "encoder" else functools.partial(CriticEnsemble, hidden_layers=(6,))
    algorithm = kind(
        VECTOR_SPEC, ACTION_SPEC, target_update_period=2,
        **{name: lambda *args, **options: Standardised(inner(*args, **options), width)},
    )  # fmt: skip
    followed, slow = getattr(algorithm, network), getattr(algorithm, f"target_{network}")
    followed.mean.normal_()
    followed.count.fill_(7)
    algorithm.after_update(1)
    assert not slow.mean.any() and slow.count == 0
    algorithm.after_update(2)
    assert torch.equal(slow.mean, followed.mean) and slow.count == 7
    assert slow.mean is not followed.mean
    followed(torch.ones(4, 3), *([torch.ones(4, NUM_ACTIONS)] if network == "critics" else []))
    algorithm.after_update(4)  # not the buffers of the first time alone
    assert torch.equal(slow.mean, followed.mean) and slow.count == 8


@pytest.mark.parametrize("tuning, temperatures", [("log", 1), ("direct", 1), ("fixed", 0)])
def test_groups_hold_every_trainable_parameter_once(tuning, temperatures):
    found = reference.check_groups(reference.sac(SAC | {"spec": IMAGE_SPEC, "tuning": tuning}), ("actor.",))
    assert len(found["temperature"]) == temperatures


def test_target_entropy():
    assert SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, action_min_prob=0.1).temperature.target_entropy == pytest.approx(
        2 * math.log(0.2)
    )
    given = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, target_entropy=-3.0)
    assert given.temperature.target_entropy == -3.0
    assert "-3.0000 nats" in "\n".join(given.describe())
    for min_prob in (0.0, 1.1):
        with pytest.raises(TaacError, match="min_prob"):
            SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, action_min_prob=min_prob)


@pytest.mark.parametrize("kind", [SacAlgorithm, SdarAlgorithm, TaacAlgorithm])
def test_actions_it_cannot_take_are_refused(kind):
    """`test_specs.py` lists more."""
    for spec, message in ((bounded((2,), -2.0, 2.0), r"\[-1, 1\]"), (bounded((0,), -1.0, 1.0), "at least one dimension")):
        with pytest.raises(TaacError, match=message):
            kind(VECTOR_SPEC, spec)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_update_tau": 0.0},
        {"target_update_tau": 1.01},
        {"target_update_period": 0},
        {"target_update_env_steps": 0},
        {"dqda_clipping": 0.0},
        {"reward_weights": (1.0,)},  # the reward is a scalar
        {"reward_dim": 2, "reward_weights": (1.0,)},
        {"reward_dim": 2, "reward_weights": (0.0, 0.0)},
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(TaacError):
        SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, **settings)


def test_reward_weights_default_to_1():
    algorithm = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=2)
    assert algorithm.weighted(torch.tensor([[3.0, 4.0]])).tolist() == [7.0]


def test_a_weight_that_falls_below_0_makes_the_greatest_value_the_least_favourable():
    weights = (1.0, LinearSchedule(1.0, -1.0, env_steps=10))
    tested = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=2, reward_weights=weights)
    q = torch.tensor([[1.0, 5.0], [2.0, 7.0]])
    assert tested.over_critics(q).tolist() == [1.0, 5.0]
    tested.scheduled[0].set(-1.0)
    assert tested.over_critics(q).tolist() == [1.0, 7.0]


def test_the_discount_that_warnings_know_is_the_greatest():
    tested = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=2, td_loss=OneStepTDLoss(gamma=(0.5, 0.99)))
    assert tested.gamma == pytest.approx(0.99)
