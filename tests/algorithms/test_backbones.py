"""Every method with every backbone of gin/backbones, and what must hold of critics that predict distributions."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from taac import nest
from taac.algorithms import SacAlgorithm
from taac.algorithms.critic_step import CriticStep
from taac.configuration import shipped
from taac.errors import DivergedError, TaacError
from taac.networks import BatchNorm
from taac.networks.bodies import LayerNorm
from taac.networks.value_heads import atoms_of
from taac.ops import distributions, value_distributions
from taac.ops.schedules import CosineSchedule
from taac.ops.value_distributions import ValueDistribution, project
from taac.playing.saved_agent import load_saved
from tests.learning.test_compiled_update import COMPILE, PRIORITIZED, assert_close, told_by
from tests.methods import DISCRETE_METHODS, METHODS, REPRESENTATIVES, fitting, thinned
from tests.training.runs import SMALL, TASK, assert_resumes_exactly, build, built, learn_until, run

BACKBONES = [name for name in shipped.files("backbones") if name != "held_noise"]  # which is not a network
# Narrow, and what keeps a test's run short; each is bound only where it is used.
NARROW = {
    "categorical": ["CriticEnsemble.hidden_layers = (16, 16)"], "tqc": ["CriticEnsemble.hidden_layers = (16, 16)"],
    "simba": ["critic/SimbaBody.width = 16", "actor/SimbaBody.width = 16"],
    "simbav2": ["critic/SimbaV2Body.width = 16", "actor/SimbaV2Body.width = 16"],
    "flash": ["critic/FlashBody.width = 16", "actor/FlashBody.width = 16", "batch_size = 32"],
    "flash_small": ["critic/FlashBody.width = 16", "actor/FlashBody.width = 16", "batch_size = 32"],
    "crossq": ["critic/MlpBody.hidden_layers = (16, 16)", "actor/MlpBody.hidden_layers = (16,)"],
    "xqc": ["critic/MlpBody.hidden_layers = (16, 16)", "actor/MlpBody.hidden_layers = (16,)"],
    "droq": ["critic/MlpBody.hidden_layers = (16, 16)", "ActorCriticAlgorithm.policy_delay = 2"],
    "redq": ["CriticEnsemble.hidden_layers = (16, 16)", "ActorCriticAlgorithm.policy_delay = 2"], "layer_norm": [],
}  # fmt: skip
GATHER = {"flash", "flash_small", "crossq", "xqc"}
CATEGORICAL = "CriticEnsemble.returns = @CategoricalReturns()"


def with_backbone(method, backbone, *params):
    files = [TASK, f"gin/methods/{method}.gin", f"gin/backbones/{backbone}.gin"]
    return built(files, [*SMALL, "initial_collect_steps = 60", *NARROW[backbone], *fitting(method), *params])


def pairs():
    """Each backbone with each method; by default SAC with each, TAAC with some, and one of each family with CrossQ."""
    with_taac = ("flash", "simbav2", "redq", "tqc")
    with_crossq = {*REPRESENTATIVES, "sac_ntd", "sac_krep"}
    return [
        pytest.param(method, backbone, marks=() if quick else pytest.mark.slow)
        for method in METHODS for backbone in BACKBONES
        for quick in [method in {"crossq": with_crossq}.get(backbone, ("sac", "taac") if backbone in with_taac else ("sac",))]
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["sac_hybrid", "sdar"])
def test_a_switch_with_batch_normalisation_is_refused(method):
    """None of its forwards would gather statistics."""
    with pytest.raises(TaacError, match=r"SwitchNetwork\.body cannot use BatchNorm"):
        with_backbone(method, "crossq", "SwitchNetwork.body = @actor/MlpBody")


@pytest.mark.parametrize("method, backbone", pairs())
def test_every_method_learns_with_every_backbone(method, backbone):
    if (method in DISCRETE_METHODS or method == "sac_ntd") and backbone in GATHER:
        told = "cannot use BatchNorm" if method == "sac_ntd" else "no joint forward of executed and next actions"
        with pytest.raises(TaacError, match=told):
            with_backbone(method, backbone)
        return
    trainer = with_backbone(method, backbone)
    algorithm = trainer.agent.algorithm
    if backbone in GATHER and isinstance(algorithm, SacAlgorithm):  # whose actors learn on s alone, as published
        assert algorithm.actor_on_last_frame == ("statistics" if backbone in ("flash", "flash_small") else False)
    learnt = {name: p for name, p in algorithm.named_parameters() if p.requires_grad and name.startswith(("critics.", "actor."))}
    moved = {name: b for name, b in algorithm.named_buffers() if name.endswith((".mean", ".variance"))}
    before = {name: p.clone() for name, p in {**learnt, **moved}.items()}
    learn_until(trainer, 2 * algorithm.policy_delay)
    assert [name for name, p in learnt.items() if torch.equal(before[name], p)] == []
    assert [name for name, b in moved.items() if torch.equal(before[name], b)] == []
    assert bool(moved) == (backbone in GATHER)
    assert all(torch.isfinite(p).all() for p in trainer.agent.parameters())
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "td3", "taac", "temporl", "temporl_ddpg"])
def test_the_targets_are_projected_distributions(method):
    """Against the critics' targets taken apart: their mean is the return of the mean values."""
    trainer = build(CATEGORICAL, method=method)
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    info = algorithm.train_step(batch)
    assert isinstance(info.value, ValueDistribution)
    switch = info.switch if info.switch is not None else torch.ones_like(batch.time_step.is_last())
    found = algorithm.td_loss.targets(batch.time_step, info.value, switch, info.bonus)
    expected = algorithm.td_loss.returns(batch.time_step, info.value.mean(), switch, info.bonus)
    torch.testing.assert_close(found.mean(), expected)
    if method == "sac":  # its first draw is that of the actions, and the value contains their entropy
        torch.manual_seed(4)
        info, step = algorithm.train_step(batch), batch.time_step
        torch.manual_seed(4)
        action, log_pi = distributions.squashed_normal_sample(*algorithm.actor(algorithm.actor_features(step.observation)))
        value = algorithm.bootstrap_value(
            algorithm.target_critics, algorithm.target_critics(algorithm.target_encoder(step.observation), action)
        ).mean()
        entropy = algorithm.temperature.alpha() * log_pi
        torch.testing.assert_close(info.value.mean()[1:], (value - entropy)[1:], rtol=1e-4, atol=1e-4)
        assert entropy.abs().min() > 0.01
    head = algorithm.critics.returns
    torch.testing.assert_close(project(found, head.support).sum(-1), torch.ones_like(expected))
    trainer.close()


def test_a_fixed_temperature_stays_that_of_its_method():
    trainer = with_backbone("sac_value", "categorical")
    assert trainer.agent.algorithm.temperature.alpha().item() == 1.0
    trainer.close()


class Update(NamedTuple):
    """What an update computes of 32 segments, and the networks in float64 as it finds them."""

    batch: Any
    algorithm: Any
    critics: Any
    targets: Any
    actor: Any  # whose loss has moved its statistics before a' is drawn
    info: Any
    gradients: Any  # of the critics
    of_actor: Any  # the actor's gradients


def update_with(backbone, apart=0.0, method="sac", frames=2):
    """An update whose two target critics were moved apart by noise."""
    trainer = built([TASK, f"gin/methods/{method}.gin", f"gin/backbones/{backbone}.gin"], [*SMALL, *NARROW[backbone]])
    learn_until(trainer, 3)
    agent, algorithm = trainer.agent, trainer.agent.algorithm
    batch = agent.prepare(trainer.replay_buffer.sample(32, frames))
    batch.time_step.step_type[:] = 1
    for p in algorithm.target_critics.parameters():
        p.data = p.data + apart * torch.randn_like(p)
    critics, targets = (copy.deepcopy(of).double() for of in (algorithm.critics, algorithm.target_critics))
    torch.manual_seed(2)
    with agent.learning():
        info = algorithm.train_step(batch)
    actor = copy.deepcopy(algorithm.actor).double()
    loss = algorithm.calc_loss(batch, info).loss
    gradients, of_actor = (
        torch.autograd.grad(loss.sum(), list(of.parameters()), retain_graph=True) for of in (algorithm.critics, algorithm.actor)
    )
    trainer.close()
    return Update(batch, algorithm, critics, targets, actor, info, gradients, of_actor)


def normal(x, norm, n, running=False, weights=None):
    """Batch normalisation, by the statistics of rows `[R, I]` that count by their weights `[R, 1]`, or by running ones."""
    weights = torch.ones_like(x[:, :1]) if weights is None else weights
    mean = (weights * x).sum(0) / weights.sum()
    variance = (weights * (x - mean).square()).sum(0) / weights.sum()
    mean, variance = (norm.mean[n, 0], norm.variance[n, 0]) if running else (mean, variance)
    return (x - mean) / (variance + norm.epsilon).sqrt() * norm.scale[n, 0] + norm.bias[n, 0]


def linear(x, layer, n):
    return x @ layer.weight[n] + (0.0 if layer.bias is None else layer.bias[n, 0])


def flash(x, body, last, n, running=False, weights=None):
    """FlashSAC's network n with its head."""
    x = linear(normal(x, body.norm_input, n, running, weights), body.embed, n)
    for block in body.blocks:
        wide, first, _, narrow, second, _ = block.layers
        hidden = normal(linear(x, wide, n), first, n, running, weights).clamp(min=0)
        x = x + normal(linear(hidden, narrow, n), second, n, running, weights).clamp(min=0)
    return linear(x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * body.norm.scale[n, 0], last, n)


def smooth_log_std(out):
    return -10 + 12 * (1 + torch.tanh(out)) / 2


def projected(points, probabilities):
    """C51's projection of one distribution onto 101 atoms in [-5, 5], point by point."""
    target = torch.zeros(101, dtype=torch.float64)
    for point, probability in zip(points, probabilities):
        place = (min(max(point, -5.0), 5.0) + 5.0) / 0.1
        below = min(int(place), 99)
        target[below] += probability * (1 - (place - below))
        target[below + 1] += probability * (place - below)
    return target


def action_and_log_pi(mean, log_std, noise):
    proposal = mean + log_std.exp() * noise
    log_slope = 2 * (math.log(2.0) - proposal - torch.nn.functional.softplus(-2 * proposal))  # log(1 - tanh^2), if tanh is 1 too
    return torch.tanh(proposal), (torch.distributions.Normal(0.0, 1.0).log_prob(noise) - log_std - log_slope).sum(-1)


def pairs_and_entropy(of, network, log_std_of, frames):
    """Executed pairs before those of the next action, `[64, K]`, and log pi of the latter. The actor's own sample comes first."""
    observation, step = of.batch.time_step.observation.double(), of.batch.time_step
    torch.manual_seed(2)
    torch.randn(frames, 32, 1)
    out = network(observation[1], of.actor.hidden, of.actor.head, 0, running=True)
    mean, log_std = out[:, :1], log_std_of(out[:, 1:])
    action, log_pi = action_and_log_pi(mean, log_std, torch.randn(1, 32, 1)[0].double())
    executed, following = (torch.cat(of, -1) for of in ((observation[0], step.prev_action[1].double()), (observation[1], action)))
    return torch.cat([executed, following]), log_pi


def test_an_update_of_crossq_against_a_recomputation():
    """One forward of executed and next actions by the critics themselves: values, loss and gradients, in float64."""
    batch, algorithm, critics, _, actor, info, found, _ = of = update_with("crossq")

    def network(x, body, last, n, running=False):
        layers = list(body.layers)
        x = normal(x, layers[0], n, running)
        for layer, norm in zip(layers[1::3], layers[3::3]):
            x = normal(linear(x, layer, n).clamp(min=0), norm, n, running)
        return linear(x, last, n)

    step, limits = batch.time_step, (actor.log_std_min, actor.log_std_max)
    both, log_pi = pairs_and_entropy(of, network, lambda out: out.clamp(*limits), frames=1)  # the actor learns on s alone
    q = torch.stack([network(both, critics.body, critics.last, n).squeeze(-1) for n in range(2)])
    bootstrap = q[:, 32:].amin(0) - algorithm.temperature.alpha().item() * log_pi
    target = (step.reward[1].double() + algorithm.gamma * step.discount[1].double() * bootstrap).detach()
    error = (q[:, :32] - target).square().sum(0)
    expected = torch.autograd.grad(error.sum(), list(critics.parameters()))
    torch.testing.assert_close(info.q[:, 0].double(), q[:, :32], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(info.value[1].double(), bootstrap, rtol=1e-4, atol=1e-4)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=1e-3, atol=1e-3)


def test_an_update_of_flash_against_a_recomputation():
    """Two joint forwards, the distribution of the target critic with the lower mean, projected, and cross-entropy, in float64."""
    batch, algorithm, critics, targets, actor, info, found, of_actor = of = update_with("flash", apart=0.1)
    step = batch.time_step
    both, log_pi = pairs_and_entropy(of, flash, smooth_log_std, frames=1)
    online, slow = (
        torch.stack([flash(both, of.body, of.last, n) for n in range(2)]).log_softmax(-1) for of in (critics, targets)
    )
    atoms = critics.returns.support
    means = (slow[:, 32:].exp() * atoms).sum(-1)
    assert 0 < means.argmin(0).sum() < 32, "each critic is the lower one somewhere"
    gain = step.reward[1].double().unsqueeze(-1) + algorithm.gamma * step.discount[1].double().unsqueeze(-1) * (
        atoms - algorithm.temperature.alpha().item() * log_pi.unsqueeze(-1)
    )
    lower = [slow[int(means[:, i].argmin()), 32 + i].exp() for i in range(32)]
    target = torch.stack([projected(gain[i].tolist(), lower[i].tolist()) for i in range(32)])
    error = -(target * online[:, :32]).sum(-1)
    expected = torch.autograd.grad(error.sum(), list(critics.parameters()))
    torch.testing.assert_close(info.q[:, 0].double(), (online[:, :32].exp() * atoms).sum(-1), rtol=1e-4, atol=1e-4)
    # The actor learns on s alone, by the statistics of s and s' together; its critics are those that act.
    observation = step.observation.double()
    torch.manual_seed(2)
    out = flash(observation.flatten(0, 1), actor.hidden, actor.head, 0)[:32]
    action, log_pi = action_and_log_pi(out[:, :1], smooth_log_std(out[:, 1:]), torch.randn(1, 32, 1)[0].double())
    pairs = torch.cat([observation[0], action], -1)
    q = torch.stack([(flash(pairs, critics.body, critics.last, n, running=True).softmax(-1) * atoms).sum(-1) for n in range(2)])
    loss = (algorithm.temperature.alpha().item() * log_pi - q.amin(0)).sum()
    torch.testing.assert_close(info.log_pi[0].double(), log_pi, rtol=1e-4, atol=1e-4)
    assert info.log_pi.shape == (1, 32)  # nor does the temperature learn on s'
    for own, other in zip([*found, *of_actor], [*expected, *torch.autograd.grad(loss, list(actor.parameters()))], strict=True):
        torch.testing.assert_close(own.double(), other, rtol=2e-3, atol=2e-3)


def test_an_encoder_that_is_learnt_makes_both_halves_of_the_critics_joint_forward():
    """Its slow copy sees s' for target critics alone; else the critics would be normalised by features of two encoders."""

    class Critics(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.seen = BatchNorm(1, 2), None

        def forward(self, features, action):
            self.seen = features[:, 0].tolist()
            return torch.zeros(1, len(features))

    critics, targets = Critics(), Critics()
    algorithm = SimpleNamespace(
        critics=critics, target_critics=targets, bootstrap_value=lambda critics, found: found,
        target_update=SimpleNamespace(copies=False),
    )  # fmt: skip
    time_step = SimpleNamespace(is_last=lambda: torch.zeros(3, 1, dtype=torch.bool))
    online, slow = torch.tensor([[[0.0]], [[1.0]], [[2.0]]]), torch.tensor([[[11.0]], [[12.0]]])
    step = CriticStep(algorithm, time_step, online, [torch.zeros(2, 1, 1)])
    with torch.no_grad():
        step.bootstrap(slow.expand(2, 2, 1, 1), torch.zeros(2, 2, 1, 1), weights=torch.full((2, 2, 1), 0.5))
    step.prediction()
    assert critics.seen == [0, 1, 1, 2, 1, 2] and targets.seen == [0, 1, 11, 12, 11, 12]


def test_an_update_of_taac_on_flash_against_a_recomputation():
    """Beta, b~, both candidates in one joint forward with their weights, and the mixture, projected once after the segment."""
    count = 4
    batch, algorithm, critics, targets, actor, info, found, _ = update_with("flash", apart=0.1, method="taac", frames=count)
    step, (before, executed) = batch.time_step, batch.rollout_info
    observation, reward, discount = (x.double() for x in (step.observation, step.reward, step.discount))
    atoms = critics.returns.support
    # The candidates: the action before, and that of an actor that acts, whose sample is the second one
    torch.manual_seed(2)
    torch.randn(count, 32, 1)
    noise, uniform = torch.randn(count, 32, 1).double(), torch.rand(count, 32)
    embedded = copy.deepcopy(algorithm.tau_embedding).double()(observation, nest.map_structure(torch.Tensor.double, before))
    out = flash(embedded.flatten(0, 1), actor.hidden, actor.head, 0, running=True).unflatten(0, (count, 32))
    old, new = before.a.double(), torch.tanh(out[..., :1] + smooth_log_std(out[..., 1:]).exp() * noise)

    def q(action):
        rows = torch.cat([observation, action], -1).flatten(0, 1)
        logits = [flash(rows, critics.body, critics.last, n, running=True) for n in range(2)]
        return torch.stack([(one.softmax(-1) * atoms).sum(-1) for one in logits]).amin(0).unflatten(0, (count, 32))

    beta_1 = torch.sigmoid((q(new) - q(old)) / algorithm.beta_temperature.alpha().item())
    switch = executed | (uniform < beta_1)
    assert 0.05 < switch[1:-1].double().mean() < 0.95
    # What was executed at frames 0 to 2, then both candidates at 1 to 3, which count by beta
    pairs = [(observation[:-1], old[1:]), (observation[1:], old[1:]), (observation[1:], new[1:])]
    rows = torch.cat([torch.cat(pair, -1).flatten(0, 1) for pair in pairs])
    beta = torch.stack([1 - beta_1, beta_1])[:, 1:]
    weights = torch.cat([torch.ones_like(beta[0]).flatten(), beta[0].flatten(), beta[1].flatten()]).unsqueeze(-1).detach()
    shape = (3, count - 1, 32)
    online, slow = (
        torch.stack([flash(rows, of.body, of.last, n, weights=weights) for n in range(2)]).log_softmax(-1).unflatten(1, shape)
        for of in (critics, targets)
    )
    bootstrap = torch.zeros(count - 1, 32, len(atoms), dtype=torch.float64)  # at frames 1 to 3
    for t, b in itertools.product(range(count - 1), range(32)):
        for candidate in (0, 1):
            of = slow[:, 1 + candidate, t, b].exp()
            bootstrap[t, b] += beta[candidate, t, b] * of[int((of * atoms).sum(-1).argmin())]
    target = torch.zeros_like(bootstrap)
    for t, b in itertools.product(range(count - 1), range(32)):
        total, factor, k = 0.0, 1.0, t
        while True:
            k += 1
            total, factor = total + factor * reward[k, b], factor * algorithm.gamma * discount[k, b]
            if switch[k, b] or k == count - 1:
                break
        target[t, b] = projected((total + factor * atoms).tolist(), bootstrap[k - 1, b].tolist())
    error = -(target.detach() * online[:, 0]).sum(-1)
    expected = torch.autograd.grad(error.sum(), list(critics.parameters()))
    torch.testing.assert_close(info.beta[..., 1].double(), beta_1, rtol=1e-4, atol=1e-4)
    assert torch.equal(info.switch, switch)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=5e-3, atol=5e-3)


def test_taac_bootstraps_from_the_mixture_of_both_candidates():
    trainer = build(CATEGORICAL)
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    tau = batch.rollout_info.tau_prev
    tau_0, tau_1 = algorithm.trajectory.advance(tau), algorithm.trajectory.start(torch.rand_like(tau.a), tau)
    observation = batch.time_step.observation
    features, target = algorithm.target_encoder(observation), algorithm.target_critics
    for parameter in target.parameters():  # so that not the same critic is the lower one for both
        parameter.data += 0.3 * torch.randn_like(parameter)
    apart = [algorithm.bootstrap_value(target, target(features, tau.a)) for tau in (tau_0, tau_1)]
    critics = algorithm.critic_step(batch.time_step, features, tau.a[1:])
    beta_1 = torch.rand_like(batch.time_step.reward)
    mixed = algorithm.next_value(critics, observation, tau_0, tau_1, torch.stack([1 - beta_1, beta_1], -1))
    expected = (1 - beta_1).unsqueeze(-1) * apart[0].probs + beta_1.unsqueeze(-1) * apart[1].probs
    torch.testing.assert_close(mixed.probs, expected)
    one_hot = torch.stack([torch.ones_like(beta_1), torch.zeros_like(beta_1)], -1)
    torch.testing.assert_close(algorithm.next_value(critics, observation, tau_0, tau_1, one_hot).probs, apart[0].probs)
    trainer.close()


def test_a_price_moves_what_switching_is_worth_alone():
    free, priced = (build(CATEGORICAL, f"TaacAlgorithm.decision_price = {price}") for price in (0.0, 0.3))
    for trainer in (free, priced):
        learn_until(trainer, 1)
    priced.agent.algorithm.load_state_dict(free.agent.algorithm.state_dict(), strict=False)
    batch = free.agent.prepare(free.replay_buffer.sample(8, free.segment_length))
    found = []
    for trainer in (free, priced):
        torch.manual_seed(1)
        found.append(trainer.agent.algorithm.train_step(batch))
    beta_1 = found[1].beta[..., 1]
    observation = batch.time_step.observation
    tau = batch.rollout_info.tau_prev
    torch.manual_seed(1)
    without = free.agent.algorithm
    mean, log_std = without.actor(without.tau_embedding(without.encode(observation)[1], tau))
    a_hat, _ = distributions.squashed_normal_sample(mean, log_std)
    critics = without.critic_step(batch.time_step, without.encoder(observation), tau.a[1:])
    both = without.trajectory.advance(tau), without.trajectory.start(a_hat, tau)
    value = without.next_value(critics, observation, *both, found[1].beta).mean()
    torch.testing.assert_close(found[1].value.mean()[1:], (value - 0.3 * beta_1)[1:], rtol=1e-4, atol=1e-5)
    kept, switched = (without.next_value(critics, observation, *both, x.expand(*beta_1.shape, 2)) for x in torch.eye(2))
    points = switched.points - 0.3
    second = (beta_1.unsqueeze(-1) * switched.probs * points.square() + (1 - beta_1).unsqueeze(-1) * kept.probs * kept.points**2)
    mixed = found[1].value
    torch.testing.assert_close((mixed.probs * mixed.points.square()).sum(-1)[1:], second.sum(-1)[1:], rtol=1e-4, atol=1e-5)
    for trainer in (free, priced):
        trainer.close()


def compiled():
    quick = (("sac", "crossq"), ("sac", "tqc"))
    pairs = [(method, backbone) for method in ("sac", "taac_q") for backbone in BACKBONES]
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize("method, backbone", compiled())
def test_compiled_as_eager(method, backbone, traced_only):
    found = []
    for more in ((COMPILE,), ()):
        found.append(told_by(with_backbone(method, backbone, PRIORITIZED, *more), 3))
    # A bias before a normalisation has a gradient of rounding errors alone, of which Adam makes steps.
    assert_close(*found, rtol=1e-4, atol=5e-4 if backbone in GATHER else 1e-5)


HALF = {"entropy": -0.5, "alpha": 0.01, "tau": 0.005, "log_std": (-10.0, 2.0), "batch": 256}  # a standard deviation's entropy
ATOMS = {"atoms": (101, -5.0, 5.0), "rewards": 5.0}  # `rewards`: the bound of returns; None: their deviation alone
PUBLISHED = {  # those of each file that its source names, for one dimension of actions; widths are what each matrix maps to
    "flash": {**HALF, **ATOMS, "entropy": math.log(0.15 * math.sqrt(2 * math.pi * math.e)), "tau": 0.01, "delay": 2, "batch": 512,
              "rate": (3e-4, 1.5e-4, "cosine"), "unbiased": True, "smooth": True, "momentum": 0.01, "epsilon": 1e-5,
              "critic": [256, 1024, 256, 1024, 256, 101], "actor": [128, 512, 128, 512, 128, 2]},
    "xqc": {**HALF, **ATOMS, "rewards": None, "delay": 3, "rate": (3e-4, 3e-5, "linear"), "updates": 2, "epsilon": 1e-3,
            "momentum": 0.01, "smooth": False, "critic": [512, 512, 512, 512, 101], "actor": [256, 256, 256, 256, 2]},
    "crossq": {"tau": 1.0, "delay": 3, "rate": 1e-3, "betas": [(0.5, 0.999), (0.5, 0.999), (0.9, 0.999)], "epsilon": 1e-3,
               "renorm_after": 100_000, "momentum": 0.01, "r_max": 3.0, "d_max": 5.0, "batch": 256, "alpha": 1.0,
               "critic": [2048, 2048, 1], "actor": [256, 256, 2]},
    "simba": {**HALF, "rate": 1e-4, "decay": 0.01, "smooth": True, "layer_epsilon": 1e-6, "clip": None,
              "critic": [512, 2048, 512, 2048, 512, 1], "actor": [128, 512, 128, 2]},
    "simbav2": {**HALF, **ATOMS, "rate": (1e-4, 5e-5, "linear"), "smooth": True, "adam": 5e-9, "clip": None,
                "critic": [512, 2048, 512, 2048, 512, 512, 101], "actor": [128, 512, 128, 128, 2]},
    "tqc": {"combine": "mean", "critics": 5, "dropped": 2, "rate": 3e-4, "batch": 256, "begins": [0.04, 0.06],
            "critic": [512, 512, 512, 25]},
    "redq": {"combine": "mean", "critics": 10, "subset": 2, "delay": 20, "updates": 20, "rate": 3e-4, "begins": [0.15, 0.15],
             "critic": [256, 256, 1]},
    "droq": {"combine": "mean", "critics": 2, "subset": 2, "delay": 20, "updates": 20, "dropout": 0.01, "rate": 3e-4,
             "begins": [0.15, 0.15], "layer_epsilon": 1e-5, "critic": [256, 256, 1]},
}  # fmt: skip


NORM = ("unbiased", "epsilon", "renorm_after", "momentum", "r_max", "d_max")


def widths(network):
    """What each matrix of a network maps to."""
    return [p.shape[-1] for p in network.parameters() if p.dim() == 3 and p.shape[1] > 1]


def largest_weight(network):
    """That of the last layer, whatever its bodies are."""
    return round([p for p in network.parameters() if p.dim() > 1 and p.shape[-2] > 1][-1].abs().max().item(), 2)


@pytest.mark.parametrize("backbone", PUBLISHED)
def test_settings_are_the_published_ones(backbone):
    trainer = built(["gin/tasks/default.gin", "gin/methods/sac.gin", f"gin/backbones/{backbone}.gin"])
    trainer.close()
    algorithm, groups = trainer.agent.algorithm, trainer.learner.optimizer.param_groups
    support = atoms_of(algorithm.critics)
    norms = [part for part in algorithm.critics.modules() if isinstance(part, BatchNorm)]
    schedules = [s.schedule for s in trainer.learner.scheduled if "learning_rate" in s.name]
    rates = [(s.start, s.end, "cosine" if isinstance(s, CosineSchedule) else "linear") for s in schedules]
    found = {
        "tau": algorithm.target_update.tau, "delay": algorithm.policy_delay, "alpha": algorithm.temperature.alpha().item(),
        "entropy": algorithm.temperature.target_entropy, "updates": float(trainer.update_ratio.ratio),
        "rate": rates[0] if rates else groups[0]["lr"], "betas": [tuple(group["betas"]) for group in groups],
        "adam": groups[0].get("epsilon_hat"), "decay": groups[0].get("weight_decay"),
        "combine": algorithm.combine_critics, "subset": algorithm.target_subset,
        "critics": algorithm.critics.num_critics, "begins": [largest_weight(algorithm.critics), largest_weight(algorithm.actor)],
        "dropped": getattr(getattr(algorithm.critics, "returns", None), "dropped", None),
        "dropout": max((m.p for m in algorithm.critics.modules() if isinstance(m, torch.nn.Dropout)), default=0.0),
        "critic": widths(algorithm.critics), "actor": widths(algorithm.actor), "batch": trainer.batch_sizes[1],
        "log_std": (algorithm.actor.log_std_min, algorithm.actor.log_std_max), "smooth": algorithm.actor.smooth_log_std,
        "atoms": None if support is None else (len(support), float(support[0]), float(support[-1])),
        "rewards": getattr(trainer.agent.reward_normalizer, "bound", None),
        "clip": getattr(trainer.agent.observation_normalizer, "clip", 0.0),
        "layer_epsilon": min((m.epsilon for m in algorithm.critics.modules() if isinstance(m, LayerNorm)), default=None),
        **{name: getattr(norms[0], name) for name in NORM if norms},
    }  # fmt: skip
    expected = PUBLISHED[backbone]
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name
    assert (trainer.agent.reward_normalizer is not None) == ("rewards" in expected)
    assert (trainer.agent.observation_normalizer is not None) == (backbone in ("simba", "simbav2"))
    assert len(rates) == isinstance(expected.get("rate"), tuple)
    assert "tau" not in expected or algorithm.target_update.period == 1


@pytest.mark.parametrize("backbone", ["flash", "simba", "simbav2", "xqc"])
def test_targets_of_td3_move_as_the_backbone_says(backbone):
    periods = [with_backbone("td3", backbone, *p).agent.algorithm.target_update.period for p in ((), ("target_period = 3",))]
    assert periods == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["crossq", "tqc", "droq", "redq", "simbav2", "flash_small"])
def test_a_killed_run_on_a_backbone_ends_as_if_it_had_not_been(backbone, tmp_path):
    """Renormalisation's count, an optimizer a group, draws of critics and dropout, the bound of returns."""
    params = (
        *NARROW[backbone], "num_env_steps = 330", "Intervals.checkpoint_interval = 310", "Evaluator.initial_evaluation = False",
        "evaluation_interval = 1000", "evaluation_episodes = 1",
    )  # fmt: skip
    files = [f"gin/backbones/{backbone}.gin"]
    whole, again = assert_resumes_exactly(tmp_path, *params, files=files, until=[320])
    for name, buffer in whole.agent.named_buffers():
        assert torch.equal(buffer, again.agent.get_buffer(name)), name


def test_a_part_of_a_run_is_taken_over_with_its_statistics(tmp_path):
    """And an agent that only acts has those of the actor."""
    norms = ["CriticEnsemble.body = @MlpBody", "ActorNetwork.body = @MlpBody", "MlpBody.norm = @BatchNorm",
             "MlpBody.hidden_layers = (8,)"]  # fmt: skip
    first = run(tmp_path / "first", *norms, "num_env_steps = 320", method="sac")
    parts = tuple(f"{tmp_path / 'first'}:{name}" for name in ("actor", "critics"))
    taken = build(*norms, f"create_experiment.load_from = {parts}", method="sac")
    taken.begin()
    for name in ("actor", "critics"):
        own, other = (trainer.agent.algorithm.get_submodule(name).state_dict() for trainer in (first, taken))
        assert any(key.endswith(".mean") for key in own) and all(torch.equal(own[key], other[key]) for key in own)
    assert float(taken.agent.algorithm.actor.hidden.layers[1].moves) > 0
    acting = load_saved(tmp_path / "first")
    acting.environment.close()
    time_step = first.environment.reset(0)
    steps = [agent.predict_step(time_step, agent.initial_state(1)).output for agent in (first.agent, acting.agent)]
    assert torch.equal(*steps)
    taken.close()


@pytest.mark.parametrize(
    "backbone, more, told",
    [
        ("crossq", ["create_agent.reward_signals = (@RND,)"], None),
        ("simba", ["create_agent.reward_signals = (@ICM,)"], None),
        ("tqc", ["create_agent.reward_signals = (@RND,)"], "predicts the distribution of one return"),
        pytest.param("flash_small", ["create_experiment.collectors = 1"], None, marks=pytest.mark.slow),
        ("crossq", ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"], None),
    ],
)  # fmt: skip
def test_backbones_with_what_else_there_is(backbone, more, told):
    if told is not None:
        with pytest.raises(TaacError, match=told):
            with_backbone("taac", backbone, *more)
        return
    trainer = with_backbone("taac", backbone, *more)
    try:
        learn_until(trainer, 3)
        assert all(torch.isfinite(p).all() for p in trainer.agent.parameters())
    finally:
        trainer.close()


def test_the_mean_of_critics():
    trainer = build("ActorCriticAlgorithm.combine_critics = 'mean'", method="sac")
    assert trainer.agent.algorithm.over_critics(torch.tensor([[1.0, 4.0], [3.0, 2.0]])).tolist() == [2.0, 3.0]
    trainer.close()


def test_a_subset_of_critics_is_drawn_in_each_update_for_targets_alone(monkeypatch):
    trainer = build("ActorCriticAlgorithm.target_subset = 2", "ActorCriticAlgorithm.combine_critics = 'mean'",
                    "CriticEnsemble.num_critics = 3", method="sac")  # fmt: skip
    algorithm, q = trainer.agent.algorithm, torch.tensor([[1.0, 4.0], [3.0, 2.0], [5.0, 0.0]])
    assert algorithm.over_critics(q).tolist() == [3.0, 2.0]
    found = [tuple(algorithm.bootstrap_value(algorithm.critics, q).tolist()) for _ in range(300)]
    assert {x: found.count(x) > 60 for x in set(found)} == {(1.0, 2.0): True, (1.0, 0.0): True, (3.0, 0.0): True}
    algorithm.target_subset = 3  # all: the least of them, without a draw, which inductor could not compile
    monkeypatch.setattr(torch, "randperm", None)
    assert algorithm.bootstrap_value(algorithm.critics, q).tolist() == [1.0, 0.0]
    trainer.close()
    monkeypatch.undo()
    trainer = build(CATEGORICAL, "ActorCriticAlgorithm.target_subset = 2", "CriticEnsemble.num_critics = 3", method="sac")
    algorithm = trainer.agent.algorithm
    prediction = 100.0 * torch.eye(101)[[20, 50, 80]].unsqueeze(1)  # values -3, 0 and 3
    lower = [round(algorithm.bootstrap_value(algorithm.critics, prediction).mean().item()) for _ in range(300)]
    assert set(lower) == {-3, 0} and 60 < lower.count(0) < 140
    trainer.close()
    for wrong in (0, 4):
        with pytest.raises(TaacError, match=r"target_subset must be in \[1, the number of critics, 3\], got"):
            build(f"ActorCriticAlgorithm.target_subset = {wrong}", "CriticEnsemble.num_critics = 3", method="sac")


def update_of(method, *params):
    """What an update computes on a batch, from parameters that do not depend on how critics are combined."""
    torch.manual_seed(0)
    trainer = build(*fitting(method), "CriticEnsemble.num_critics = 3", *params, method=method)
    learn_until(trainer, 1)
    agent = trainer.agent
    torch.manual_seed(1)
    for p in agent.parameters():
        p.data = torch.randn_like(p) * 0.3
    for name in ("target_critics", "target_value"):
        for p in getattr(agent.algorithm, name, torch.nn.Module()).parameters():
            p.data = torch.randn_like(p) * 0.3
    batch = agent.prepare(trainer.replay_buffer.sample(32, trainer.segment_length))
    torch.manual_seed(2)
    found = agent.algorithm.train_step(batch)
    trainer.close()
    return found


TARGETS = {"sac_value": lambda info: info.q_pi, "sac_ntd": lambda info: info.own}  # what else than V(s') is a target


@pytest.mark.parametrize("method", thinned(["sac", "td3", "sac_discrete", "sac_value", "sac_ntd", "sdar"], ("sac", "sac_ntd")))
def test_targets_take_the_least_of_the_subset_whatever_the_actor_maximises(method):
    """The subset is all critics, so that the targets are those without one."""
    of = TARGETS.get(method, lambda info: info.value)
    drawn = update_of(method, "ActorCriticAlgorithm.target_subset = 3", "ActorCriticAlgorithm.combine_critics = 'mean'")
    least, mean = update_of(method), update_of(method, "ActorCriticAlgorithm.combine_critics = 'mean'")
    torch.testing.assert_close(of(drawn), of(least))
    assert (of(mean) > of(least)).any() and (of(mean) >= of(least) - 1e-5).all()


@pytest.mark.parametrize("method", ["sac_discrete", "sac_value", "sac_ntd"])
def test_quantiles_are_left_out_of_targets_that_are_numbers(method):
    of = TARGETS.get(method, lambda info: info.value)
    quantiles = ("CriticEnsemble.returns = @QuantileReturns()", "ActorCriticAlgorithm.combine_critics = 'mean'")
    found = [of(update_of(method, *quantiles, f"QuantileReturns.dropped = {n}")) for n in (0, 20)]
    assert (found[1] < found[0]).any() and (found[1] <= found[0] + 1e-5).all()


@pytest.mark.parametrize("combination, expected", [("min", 1.0), ("mean", 2.0)])
def test_the_actor_of_td3_maximises_the_first_critic_or_the_mean(combination, expected):
    params = f"ActorCriticAlgorithm.combine_critics = '{combination}'", "ActorCriticAlgorithm.policy_delay = 1"
    trainer = build(*params, method="td3")
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    algorithm.critics.forward = lambda x, a: torch.stack([a.sum(-1) * 0 + 1.0, a.sum(-1) * 0 + 3.0])
    info = algorithm.train_step(batch)
    assert torch.equal(info.q_pi, torch.full_like(info.q_pi, expected))
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac", "sac_discrete"])
@pytest.mark.parametrize("combination, expected", [("min", 1.0), ("mean", 2.0)])
def test_other_actors_maximise_the_least_critic_or_the_mean(method, combination, expected):
    trainer = build(*fitting(method), f"ActorCriticAlgorithm.combine_critics = '{combination}'", method=method)
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    value_of = algorithm.value_of
    algorithm.value_of = lambda critics, prediction: torch.stack([value_of(critics, prediction)[0] * 0 + x for x in (1.0, 3.0)])
    algorithm.q_values = lambda critics, x, *action: torch.tensor([1.0, 3.0]).view(2, *[1] * (x.dim() - 1)).expand(
        2, *x.shape[:-1]
    ) + 0 * sum(part.sum(-1) for part in action)  # fmt: skip
    assert algorithm.least_value(torch.tensor([[1.0], [3.0]])).tolist() == [expected]
    if method != "sac_discrete":
        q_pi = algorithm.train_step(batch).q_pi
        assert torch.equal(q_pi, torch.full_like(q_pi, expected))
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "td3", "taac"])
def test_targets_that_are_numbers_are_spread_by_a_normal(method, monkeypatch):
    """HL-Gauss: of the mean of what a method bootstraps from."""
    called, hl_gauss = [], value_distributions.hl_gauss
    monkeypatch.setattr(value_distributions, "hl_gauss", lambda target, *more: called.append(target) or hl_gauss(target, *more))
    trainer = build(CATEGORICAL, "CategoricalReturns.sigma = 0.75", method=method)
    learn_until(trainer, 1)
    assert [target.dim() for target in called] == [2]
    trainer.close()


@pytest.mark.parametrize("params", [(CATEGORICAL,), (CATEGORICAL, "CategoricalReturns.sigma = 0.75")])
@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_told_as_with_plain_critics(params, reward):
    trainer = build(*params, method="sac")
    learn_until(trainer, 1)
    batch = trainer.replay_buffer.sample(8, trainer.segment_length)
    batch.time_step.reward[1, 3] = reward
    batch.time_step.step_type[:] = 1
    with pytest.raises(DivergedError):
        trainer.learner.update(batch)
    trainer.close()


@pytest.mark.parametrize("low, high, bound", [(-5, 5, 5.0), (-1, 10, 1.0), (0, 3, 3.0)])
def test_rewards_are_scaled_to_the_critics_range(low, high, bound):
    range_ = f"CategoricalReturns.low = {low}.0", f"CategoricalReturns.high = {high}.0"
    trainer = build(CATEGORICAL, "normalize_rewards = 'bounded'", *range_, method="sac")
    assert trainer.agent.reward_normalizer.bound == bound
    trainer.close()


def test_critics_of_another_range_are_refused(tmp_path):
    run(tmp_path / "run", CATEGORICAL, "num_env_steps = 310", method="sac")
    with pytest.raises(TaacError, match=r"predict \d+ returns from -5 to 5, and this agent's \d+ returns from -50 to 5: bind"):
        run(tmp_path / "run", CATEGORICAL, "CategoricalReturns.low = -50.0", "num_env_steps = 320", method="sac")
    agent = build(CATEGORICAL, method="sac").agent
    state = {name: value for name, value in agent.state_dict().items() if not name.endswith(".support")}
    agent.load_state_dict(state)  # of earlier code


def test_priorities_know_no_error_that_no_prediction_mends():
    """Rewards of 20 have targets of 5 as long as critics predict returns up to 5."""
    trainer = build(CATEGORICAL, "normalize_rewards = False", "reward_clip = None", method="sac")
    learn_until(trainer, 1)
    algorithm, batch = trainer.agent.algorithm, trainer.replay_buffer.sample(8, trainer.segment_length)
    batch.time_step.step_type[:] = 1
    batch.time_step.reward[:] = 20.0
    q = algorithm.train_step(trainer.agent.prepare(batch)).q
    error = trainer.learner.update(batch).segment_error
    assert 5 - q.amax() - 0.1 <= error.min() and error.max() <= 5 - q.amin() + 0.1
    trainer.close()


def test_how_much_of_the_targets_is_beyond_the_atoms():
    """Rewards of 20, of which the atoms know nothing."""
    trainer = build(CATEGORICAL, "normalize_rewards = False", "reward_clip = None", method="sac")
    learn_until(trainer, 1)
    batch = trainer.replay_buffer.sample(8, trainer.segment_length)
    batch.time_step.step_type[:] = 1
    for reward, beyond in ((20.0, 1.0), (0.0, 0.0)):
        batch.time_step.reward[:] = reward
        assert trainer.learner.update(batch).extra["critic/beyond"].item() == pytest.approx(beyond, abs=0.1)
    trainer.close()


@pytest.mark.parametrize(
    "backbone, told",
    [("simba", r"CriticEnsemble\.body.*has no effect, because other critics are bound"),
     ("categorical", r"'bounded' fits .* PrefixCritics predicts no categories: bind 'scale'")],
)  # fmt: skip
def test_a_backbone_that_other_critics_leave_unused_is_refused(backbone, told):
    with pytest.raises(TaacError, match=told):
        files = [TASK, "gin/methods/sac_chunk.gin", f"gin/backbones/{backbone}.gin"]
        built(files, [*SMALL, "ActorCriticAlgorithm.critic_ctor = @PrefixCritics"])


@pytest.mark.parametrize("method", ["td3", "taac"])
def test_crossq_has_no_slow_targets_whatever_the_task_and_the_method_bind(method):
    files = ["gin/tasks/manipulation.gin", f"gin/methods/{method}.gin", "gin/backbones/crossq.gin"]
    trainer = built(files, [*SMALL, *NARROW["crossq"], "num_envs = 1", "unroll_length = 5"])
    assert trainer.agent.algorithm.target_update.copies
    trainer.close()


def test_there_are_backbones():
    assert set(BACKBONES) == set(NARROW) and not DISCRETE_METHODS - set(METHODS)
