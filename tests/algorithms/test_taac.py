"""TAAC: one whole update against a slow reference, identities with SAC, targets, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from taac import nest
from taac.algorithms import OneStepTDLoss, SacAlgorithm, TaacAlgorithm, TAACTDLoss
from taac.algorithms.taac import TaacInfo
from taac.algorithms.trajectories import Tau
from taac.data_structures import Experience, TimeStep
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IMAGE_SPEC, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC, F, L, M
from tests.algorithms.taac_reference import (
    ACTORS,
    ALWAYS,
    TAAC,
    TRAJECTORIES,
    experience_of,
    small,
    state_of,
    taac,
    taac_reference,
)

COST = {"reward_weights": (1.0, -0.5, 2.0), "gamma": (0.875, 0.5, 0.75)}


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param({"kind": kind}, id=kind) for kind in TRAJECTORIES),
        *(pytest.param({"kind": kind, **COST}, id=f"{kind}-vector-reward") for kind in TRAJECTORIES),
        pytest.param({**COST, "gamma": 0.75, "num_critics": 3, "dqda_clipping": 0.05}, id="vector-reward-one-gamma"),
        pytest.param({"td": "one-step"}, id="one-step"),
        pytest.param({"td": "n-step"}, id="n-step"),
        pytest.param({"clipping": (0.0, None)}, id="clipping-below"),
        pytest.param({"clipping": (None, -0.1)}, id="clipping-above"),
        pytest.param({"clipping": (-0.1, 0.2)}, id="clipping-both"),
        pytest.param({"dqda_clipping": 0.05}, id="dqda-clipping"),
        pytest.param({"tuning": "fixed"}, id="fixed-temperature"),
        pytest.param({"tuning": "direct"}, id="direct-temperature"),
        pytest.param({"price": 0.5}, id="price"),
        pytest.param({"price": 0.5, "clipping": (-0.1, None)}, id="price-clipping"),
        pytest.param({"price": 0.5, "exact": True}, id="exact"),
        pytest.param({"exact": True, "kind": "linear", **COST}, id="exact-vector-reward"),
        pytest.param({"price": 0.5, "td": "n-step"}, id="price-n-step"),
        pytest.param({"price": 0.5, **COST}, id="price-vector-reward"),
        pytest.param({"rate": 0.25, "price": 0.5, "td": "one-step"}, id="learnt-price"),
        pytest.param({"num_critics": 1}, id="one-critic"),
        pytest.param({"num_critics": 3}, id="three-critics"),
        pytest.param({"ignore_done": True}, id="ignore-done"),
        pytest.param({"action_min_prob": 0.2, "beta_min_prob": 0.3}, id="min-probs"),
        pytest.param({"spec": IMAGE_SPEC}, id="image"),
        pytest.param({"spec": IMAGE_SPEC, "kind": "quadratic"}, id="image-quadratic"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = TAAC | changes
    algorithm, experience = taac(config), experience_of(config)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    uniform = torch.rand(STEPS, BATCH, dtype=torch.float64)
    weights = reference.weights_of(algorithm)
    expected, beta_1, switch = taac_reference(weights, config, experience, noise, uniform)
    assert beta_1.max() - beta_1.min() > 0.1  # the critics do tell the candidates apart
    reached = ~switch[1:-1] & ~IS_LAST[1:-1]
    assert reached.any() and not reached.all()

    drawn = reference.record_draws(monkeypatch, noise, uniform)
    info = algorithm.train_step(experience)
    loss = algorithm.calc_loss(experience, info).loss
    assert drawn == {"noise": 1, "uniform": 1}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(info.beta, torch.stack([1 - beta_1, beta_1], -1), **tolerance)
    assert torch.equal(info.switch, switch)
    reference.check_update(algorithm, loss, weights, expected, **tolerance)


def test_clipping_from_0_never_prefers_the_old_trajectory():
    algorithm = taac(TAAC | {"clipping": (0.0, None)})
    info = algorithm.train_step(experience_of(TAAC))
    assert torch.all(info.beta[..., 1] >= 0.5)
    assert (info.beta[..., 1] == 0.5).any() and (info.beta[..., 1] > 0.6).any()
    # What is reported is not clipped.
    assert torch.equal(info.advantage <= 0, info.beta[..., 1] == 0.5) and (info.advantage < 0).any()


def test_training_leaves_what_was_replayed_alone():
    experience = experience_of(TAAC | {"kind": "quadratic"})
    copies = [x.clone() for x in nest.flatten(experience)]
    algorithm = taac(TAAC | {"kind": "quadratic"})
    algorithm.calc_loss(experience, algorithm.train_step(experience)).loss.mean().backward()
    for before, after in zip(copies, nest.flatten(experience)):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_what_an_update_reports():
    algorithm, experience = taac(TAAC), experience_of(TAAC)
    experience.time_step.reward[0] = 0.0
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert all(x.dim() == 0 and not x.requires_grad for x in extra.values())
    acted = ~IS_LAST
    assert extra["beta/switch_probability"].item() == pytest.approx(info.beta[acted][:, 1].mean().item())
    entropy = -(info.beta * info.beta.log()).sum(-1)
    assert extra["beta/entropy"].item() == pytest.approx(entropy[acted].mean().item())
    assert extra["policy/alpha"].item() == pytest.approx(math.exp(algorithm.action_temperature.value.item()))
    assert extra["beta/alpha"].item() == pytest.approx(math.exp(algorithm.beta_temperature.value.item()))


@pytest.mark.parametrize(
    "words, switches, expected",
    [
        # what a return may go through is the MIDs of frames 1..T-2; "b" marks a switch, executed or newly sampled
        (["FMMMM"], ["....."], 3 / 3),
        (["FMMMM"], ["b...b"], 3 / 3),  # at the ends nothing goes on
        (["FMMMM"], [".b..."], 2 / 3),
        (["MMLFM"], ["....."], 1 / 1),  # neither through LAST nor into FIRST
        (["MMLFM"], [".b..."], 0 / 1),
        (["MMLFM", "FMMMM"], [".....", ".bb.."], 2 / 4),
        (["LFMML"], ["..b.."], 1 / 2),
        (["FM"], [".."], 0.0),  # two frames: every return is of one step
    ],
)
def test_reach_through_counts_the_frames_that_a_return_may_go_through(words, switches, expected):
    algorithm, letters = small(td_loss=TAACTDLoss(0.5)), {"F": F, "M": M, "L": L}
    step_type = torch.tensor([[letters[x] for x in word] for word in words], dtype=torch.uint8).T
    steps, batch = step_type.shape
    time_step = TimeStep(
        step_type, torch.zeros(steps, batch), torch.ones(steps, batch), torch.randn(steps, batch, 3),
        torch.zeros(steps, batch, NUM_ACTIONS), torch.ones(steps, batch),
    )  # fmt: skip
    tau = nest.map_structure(lambda x: x.expand(steps, *x.shape), algorithm.initial_state(batch).tau)
    experience = Experience(time_step, TaacInfo(tau, torch.zeros(steps, batch).bool()))
    switch = torch.tensor([[x == "b" for x in word] for word in switches]).T
    info = algorithm.train_step(experience)._replace(switch=switch)
    assert algorithm.calc_loss(experience, info).extra["beta/reach_through"].item() == pytest.approx(expected)


# --- Identities with SAC ----------------------------------------------------------------------------------------------


def twins():
    """TAAC forced to switch everywhere, and the SAC whose weights it has; its actor does not look at tau_prev."""
    shared = {"action_min_prob": 0.1, **reference.networks()}
    ours = reference.scrambled(
        TaacAlgorithm(VECTOR_SPEC, ACTION_SPEC, b1_advantage_clipping=ALWAYS, td_loss=TAACTDLoss(0.875), **shared)
    )
    theirs = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, entropy_in_target=False, td_loss=OneStepTDLoss(0.875), **shared)
    theirs.double()
    with torch.no_grad():
        ours.actor.hidden[0].weight[:, ours.feature_size :] = 0.0
        theirs.load_state_dict(
            {
                name: ours.actor.hidden[0].weight[:, : ours.feature_size]
                if name == "actor.hidden.0.weight"
                else ours.state_dict()[name.replace("temperature.", "action_temperature.")]
                for name in theirs.state_dict()
            }
        )
    return ours, theirs


def test_forced_to_switch_it_learns_as_sac_without_entropy_in_the_target(monkeypatch):
    ours, theirs = twins()
    experience = experience_of(TAAC)
    time_step = experience.time_step._replace(prev_action=experience.rollout_info.tau_prev.a)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    uniform = torch.rand(STEPS, BATCH, dtype=torch.float64)
    reference.record_draws(monkeypatch, noise, uniform)
    info = ours.train_step(experience)
    sac_experience = Experience(time_step, ())
    sac_info = theirs.train_step(sac_experience)
    assert info.switch.all() and torch.all(info.beta[..., 1] == 1)
    torch.testing.assert_close(info.value, sac_info.value)
    torch.testing.assert_close(info.q, sac_info.q)
    torch.testing.assert_close(info.actor_loss, sac_info.actor_loss)
    target = ours.td_loss.returns(experience.time_step, info.value, info.switch)
    sac_target = theirs.td_loss.returns(time_step, sac_info.value, info.switch)
    torch.testing.assert_close(target, sac_target)

    ours.calc_loss(experience, info).loss.mean().backward()
    theirs.calc_loss(sac_experience, sac_info).loss.mean().backward()
    for name, parameter in theirs.named_parameters():
        if name.startswith(("critics.", "actor.head", "actor.hidden.2", "temperature.")):
            gradient = ours.get_parameter(name.replace("temperature.", "action_temperature.")).grad
            torch.testing.assert_close(gradient, parameter.grad)


def test_forced_to_switch_it_acts_as_sac(monkeypatch):
    ours, theirs = twins()
    time_step, state = reference.frame(9), state_of("constant", 9)
    state = state._replace(tau=Tau(state.tau.a.double(), (), ()))
    torch.testing.assert_close(ours.predict_step(time_step, state).output, theirs.predict_step(time_step, ()).output)
    reference.record_draws(monkeypatch, torch.randn(9, NUM_ACTIONS), torch.rand(9))
    torch.testing.assert_close(ours.rollout_step(time_step, state).output, theirs.rollout_step(time_step, ()).output)


def test_its_value_pays_no_entropy_and_never_uses_the_targets_to_switch():
    """With equal target critics everywhere V is their constant, whatever beta, alpha and log pi."""
    algorithm = taac(TAAC)
    for critic_parameter in algorithm.target_critics.parameters():
        critic_parameter.data.zero_()
    algorithm.target_critics.last.bias.data[:] = torch.tensor([4.0, 5.0]).reshape(2, 1, 1)
    info = algorithm.train_step(experience_of(TAAC))
    torch.testing.assert_close(info.value[1:], torch.full((STEPS - 1, BATCH), 4.0, dtype=torch.float64))
    assert info.beta[..., 1].std() > 0.05


def test_a_loss_of_the_switch_moves_neither_critics_nor_actor(monkeypatch):
    """The values that a switch of one's own sees are detached: its loss has the gradient of its own terms only."""
    plain, own = (taac(TAAC).double() for _ in range(2))
    own.load_state_dict(plain.state_dict())

    def learn_switch(embedded, q_0, q_1):
        assert not q_0.requires_grad and not q_1.requires_grad
        return own.switch_distribution(q_0, q_1), q_0 - 3.0 * q_1

    monkeypatch.setattr(own, "learn_switch", learn_switch)
    for algorithm in (plain, own):
        torch.manual_seed(0)
        experience = experience_of(TAAC)
        algorithm.calc_loss(experience, algorithm.train_step(experience)).loss.mean().backward()
    for ours, theirs in zip(own.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


# --- Targets, groups, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning, temperatures", [("log", 2), ("direct", 2), ("fixed", 0)])
@pytest.mark.parametrize("kind", ["constant", "quadratic"])
def test_groups_hold_every_trainable_parameter_once(kind, tuning, temperatures):
    found = reference.check_groups(taac(TAAC | {"spec": IMAGE_SPEC, "kind": kind, "tuning": tuning}), ACTORS)
    assert len(found["temperature"]) == temperatures


def test_direct_temperatures_stay_at_or_above_0():
    algorithm = taac(TAAC | {"tuning": "direct"})
    for temperature_module in (algorithm.action_temperature, algorithm.beta_temperature):
        temperature_module.value.data.fill_(-0.5)
    algorithm.after_update(1)
    assert algorithm.action_temperature.value.item() == algorithm.beta_temperature.value.item() == 0.0
    beta = algorithm.train_step(experience_of(TAAC)).beta  # at temperature 0 the better candidate, not NaN
    assert torch.isfinite(beta).all() and torch.all((beta == 0) | (beta == 1))
