"""SAC with a state-value network: one whole update against a slow reference, targets, refusals."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from taac.algorithms import OneStepTDLoss, SacAlgorithm, SacValueAlgorithm, Temperature
from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.networks import CriticEnsemble
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IMAGE_SPEC, NUM_ACTIONS, STEPS, VECTOR_SPEC, F, L

DEFAULT = {
    "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875, "reward_scale": 3.0, "entropy_in_target": True,
    "tuning": "fixed", "num_critics": 2, "last_frame": True, "ignore_done": False,
}  # fmt: skip


def build(config):
    c = SimpleNamespace(**config)
    return reference.scrambled(
        SacValueAlgorithm(
            c.spec, ACTION_SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, reward_scale=c.reward_scale, entropy_in_target=c.entropy_in_target,
            td_loss=OneStepTDLoss(c.gamma, c.ignore_done), actor_on_last_frame=c.last_frame,
            value_ctor=functools.partial(CriticEnsemble, hidden_layers=(4, 3)),
            temperature_ctor=functools.partial(Temperature, initial_value=0.7, tuning=c.tuning),
            **reference.networks(c.num_critics),
        )
    )  # fmt: skip


def value_reference(w, config, time_step, noise):
    """arXiv:1801.01290, algorithm 1, one frame at a time: the loss `[T][B]`."""
    c = SimpleNamespace(**config)
    alpha, scale = reference.temperature(w, "temperature.value", c.tuning)
    gamma = (c.gamma,) * len(c.reward_weights or [1])
    weights = torch.tensor(c.reward_weights or [1.0], dtype=torch.float64)
    frames = STEPS if c.last_frame else STEPS - 1
    loss = [[torch.zeros(())] * BATCH for _ in range(STEPS)]
    v_next = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            target_obs = reference.encode(w, "target_encoder", time_step.observation, t, b)
            v_next[t][b] = reference.critics(w, "target_value", target_obs)[0].detach()
    for t in range(frames):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", time_step.observation, t, b).detach()
            a, log_pi = reference.act(w, obs, noise[t, b])

            def q(action, obs=obs):
                return reference.worst(reference.critics(w, "critics", obs, action), c.reward_weights)

            dq_da = reference.numeric_gradient(lambda action, q=q: reference.total(q(action), c.reward_weights), a)
            loss[t][b] = 0.5 * ((a - (a + dq_da).detach()) ** 2).sum() + alpha * log_pi
            if scale is not None:
                loss[t][b] = loss[t][b] + scale * (-log_pi.item() - NUM_ACTIONS * math.log(2 * 0.1))
            v_target = q(a).detach()
            if c.entropy_in_target:
                v_target = v_target - alpha * log_pi.item() * weights / (weights**2).sum()
            loss[t][b] = loss[t][b] + ((reference.critics(w, "value", obs)[0] - v_target) ** 2).mean()
    scaled = time_step._replace(reward=c.reward_scale * time_step.reward)
    predicted = reference.at_executed(w, time_step, time_step.prev_action)
    return reference.with_critics(loss, scaled, v_next, gamma, predicted, c.ignore_done)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"tuning": "log"}, id="tuned-temperature"),
        pytest.param({"entropy_in_target": False}, id="no-entropy-in-target"),
        pytest.param({"reward_scale": 0.5, "num_critics": 1}, id="one-critic"),
        pytest.param({"last_frame": False}, id="off-the-last-frame"),
        pytest.param({"ignore_done": True}, id="ignore-done"),
        pytest.param({"reward_weights": (1.0, -0.5, 2.0)}, id="vector-reward"),
        pytest.param({"spec": IMAGE_SPEC}, id="image"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = DEFAULT | changes
    algorithm = build(config)
    time_step = reference.replayed(config["spec"], len(config["reward_weights"]) if config["reward_weights"] else None)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    weights = reference.weights_of(algorithm)
    expected = value_reference(weights, config, time_step, noise)
    drawn = reference.record_draws(monkeypatch, noise if config["last_frame"] else noise[:-1])
    experience = Experience(time_step, ())
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience)).loss
    assert drawn["noise"] == 1
    in_float32 = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {}
    reference.check_update(algorithm, loss, weights, expected, **in_float32)


def test_a_table_by_hand():
    """Two frames, V' = 2 everywhere, gamma 1/2, rewards scaled by 3; Q and V are 0.

    MID: 3*1 + 1/2*2 = 4. Terminated: 3*1 = 3. Truncated: 4 as MID. V's target is 0 - log pi with alpha 1.
    """
    algorithm = SacValueAlgorithm(
        VECTOR_SPEC, ACTION_SPEC, reward_scale=3.0, td_loss=OneStepTDLoss(0.5), actor_on_last_frame=False, **reference.networks()
    )
    with torch.no_grad():
        for network in (algorithm.critics, algorithm.value, algorithm.target_value):
            network.last.weight.zero_()
            network.last.bias.zero_()
        algorithm.target_value.last.bias.fill_(2.0)
    step_type = torch.tensor([[F, F, F], [1, L, L]], dtype=torch.uint8)
    discount = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    reward = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    zero = torch.zeros(2, 3, NUM_ACTIONS)
    torch.nn.Module.float(algorithm.encoder)
    algorithm.encoder.forward = lambda observation: observation  # test_sac's gives float64
    algorithm.target_encoder.forward = algorithm.encoder.forward
    time_step = TimeStep(step_type, reward, discount, torch.zeros(2, 3, 3), zero, torch.ones(2, 3))
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    loss, extra, *_ = algorithm.calc_loss(experience, info)
    assert extra["critic/target"].item() == pytest.approx((4 + 3 + 4) / 3)
    v_loss = info.log_pi[0] ** 2
    critic_loss = 2 * torch.tensor([16.0, 9.0, 16.0])  # two critics
    torch.testing.assert_close(loss[0].detach(), info.actor_loss[0].detach() + v_loss + critic_loss)
    assert extra["loss/value"].item() == pytest.approx(
        v_loss.mean().item()
    )  # the other three are LAST or weigh nothing
    assert extra["policy/alpha"] == 1


def test_only_v_has_a_target_and_it_follows_v():
    algorithm = build(DEFAULT)
    algorithm.target_update.tau = 0.25
    before = {n: p.detach().clone() for n, p in algorithm.named_parameters()}
    assert not [n for n in before if n.startswith("target_critics")]
    algorithm.after_update(1)
    moved = set()
    for name, parameter in algorithm.named_parameters():
        if name.startswith("target_value"):
            online = before[name.removeprefix("target_")]
            torch.testing.assert_close(parameter.detach(), before[name] + 0.25 * (online - before[name]))
            moved.add(name)
        else:
            assert torch.equal(parameter, before[name]), name
    assert len(moved) == 6 == len(list(algorithm.value.parameters()))
    fresh = SacValueAlgorithm(VECTOR_SPEC, ACTION_SPEC, **reference.networks())
    for target, online in zip(fresh.target_value.parameters(), fresh.value.parameters()):
        assert torch.equal(target, online) and not target.requires_grad


def test_with_v_in_the_place_of_min_q_it_is_sac():
    """Where V'(s') gives what SAC computes from its target critics, the critics' loss is SAC's."""
    config = {"td_loss": OneStepTDLoss(0.875), **reference.networks()}
    algorithm = SacValueAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_scale=1.0, **config).double()
    sac = SacAlgorithm(
        VECTOR_SPEC, ACTION_SPEC, temperature_ctor=functools.partial(Temperature, tuning="fixed"), **config
    ).double()
    sac.load_state_dict(
        {
            **sac.state_dict(),
            **{k: v for k, v in algorithm.state_dict().items() if "value" not in k or k == "temperature.value"},
        }
    )
    experience = Experience(reference.replayed(VECTOR_SPEC), ())
    torch.manual_seed(1)
    expected = sac.train_step(experience)
    torch.manual_seed(1)
    algorithm.target_value.forward = lambda features: expected.value[1:].unsqueeze(0)
    info = algorithm.train_step(experience)
    torch.testing.assert_close(algorithm.targets(experience, info), sac.targets(experience, expected))
    torch.testing.assert_close(info.actor_loss, expected.actor_loss)


def test_the_paper_s_defaults():
    algorithm = SacValueAlgorithm(VECTOR_SPEC, ACTION_SPEC, **reference.networks())
    assert algorithm.reward_scale == 5 and algorithm.temperature.tuning == "fixed"
    assert algorithm.temperature.alpha() == 1 and not algorithm.temperature.value.requires_grad


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_refused(scale):
    with pytest.raises(TaacError, match=r"reward_scale must be above 0, got"):
        SacValueAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_scale=scale)
