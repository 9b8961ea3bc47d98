"""SAC: one whole update against a slow reference, acting, targets, refusals.

The first part of this file is that reference's machinery, which `test_taac.py` uses too: plain loops over frames in
float64, graphs built from the raw weights, dQ/da by finite differences. Nothing of it calls `taac.ops` or the networks.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, SacAlgorithm, SacValueAlgorithm, Temperature
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, ImageEncoder, ObservationEncoder
from taac.specs import TensorSpec, bounded

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
NAN = float("nan")
LOG_STD_MIN, LOG_STD_MAX = -1.0, 0.3  # narrow, so that both clamps act
NUM_ACTIONS = 2
ACTION_SPEC = bounded((NUM_ACTIONS,), -1.0, 1.0)
VECTOR_SPEC = bounded((3,), -5.0, 5.0)
IMAGE_SPEC = {"image": bounded((7, 6, 2), 0, 255, torch.uint8), "vector": VECTOR_SPEC}
KERNEL, STRIDE, IMAGE_CHANNELS, IMAGE_FEATURES = 3, 2, 3, 4

# --- Replayed segments ------------------------------------------------------------------------------------------------

# An environment a word, a frame a letter; L terminated (discount 0), l was truncated. There are episodes that begin and
# end at the segment's first and last frame and inside it.
ENVIRONMENTS = ["FMMMMM", "MMLFMM", "MlFMLF", "FMMMMl", "LFMMlF", "lFMMML"]
STEPS, BATCH = len(ENVIRONMENTS[0]), len(ENVIRONMENTS)
LETTERS = np.array([list(word) for word in ENVIRONMENTS]).T
STEP_TYPE = torch.tensor([[{"F": F, "M": M}.get(x, L) for x in row] for row in LETTERS], dtype=torch.uint8)
IS_LAST = torch.as_tensor((LETTERS == "L") | (LETTERS == "l"))
IS_FIRST = torch.as_tensor(LETTERS == "F")


def replayed(spec, reward_dim=None):
    """Random frames `[T, B]`. What came before the first action is NaN, so that reading it shows."""
    reward = torch.randn(STEPS, BATCH, *([reward_dim] if reward_dim else []), dtype=torch.float64)
    discount = 1.0 - torch.as_tensor(LETTERS == "L").double()
    action = torch.rand(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64) * 2 - 1
    reward[IS_FIRST], action[IS_FIRST] = 0.0, 0.0
    reward[0], discount[0], action[0] = NAN, NAN, NAN
    return TimeStep(STEP_TYPE, reward, discount, observation(spec, STEPS, BATCH), action, torch.ones(STEPS, BATCH))


def observation(spec, *batch):
    vector = torch.randn(*batch, 3)
    if not isinstance(spec, dict):
        return vector
    return {"image": torch.randint(0, 256, (*batch, *spec["image"].shape), dtype=torch.uint8), "vector": vector}


def frame(batch, step_type=M, spec=VECTOR_SPEC):
    """A frame `[B]` to act at."""
    return TimeStep(
        torch.full((batch,), int(step_type), dtype=torch.uint8), torch.zeros(batch), torch.ones(batch),
        observation(spec, batch), torch.zeros(batch, NUM_ACTIONS), torch.ones(batch),
    )  # fmt: skip


# --- Small algorithms in float64 --------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """The package's encoder, which works in float32, before networks in float64."""

    def __init__(self, spec):
        super().__init__()
        image_encoder = functools.partial(
            ImageEncoder, channels=(IMAGE_CHANNELS,), kernels=(KERNEL,), strides=(STRIDE,), output_size=IMAGE_FEATURES
        )
        self.inner = ObservationEncoder(spec, image_encoder)
        self.output_size = self.inner.output_size

    def forward(self, observation):
        return self.inner(observation).double()


def networks(num_critics=2, **critic_options):
    return {
        "encoder_ctor": Encoder,
        "actor_ctor": functools.partial(
            ActorNetwork, hidden_layers=(5, 4), log_std_min=LOG_STD_MIN, log_std_max=LOG_STD_MAX
        ),
        "critic_ctor": functools.partial(
            CriticEnsemble, hidden_layers=(6, 5), num_critics=num_critics, **critic_options
        ),
    }


def scrambled(algorithm):
    """In float64, with every parameter away from its initial value: critics that matter, targets of their own."""
    algorithm.double()
    algorithm.encoder.float()
    algorithm.target_encoder.float()
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if parameter.dim():
                parameter.normal_(0.0, 0.2 if "inner" in name else 0.6)
            else:
                parameter.add_(torch.rand(()) * 0.5 + 0.1)
    return algorithm


def record_draws(monkeypatch, noise, uniform=None):
    """Makes the given draws the only ones, and counts them: one sample a frame is to serve every purpose."""
    drawn = {"noise": 0, "uniform": 0}

    def randn_like(x):
        assert x.shape == noise.shape
        drawn["noise"] += 1
        return noise.to(x.dtype)

    def rand_like(x):
        assert uniform is not None and x.shape == uniform.shape
        drawn["uniform"] += 1
        return uniform.to(x.dtype)

    monkeypatch.setattr(torch, "randn_like", randn_like)
    monkeypatch.setattr(torch, "rand_like", rand_like)
    return drawn


# --- The reference: one frame at a time -------------------------------------------------------------------------------


class Weights(dict):
    """Every parameter's copy in float64, by name: leaves of the reference's own graphs."""

    num_critics: int


def weights_of(algorithm):
    weights = Weights((name, p.detach().double().clone().requires_grad_()) for name, p in algorithm.named_parameters())
    weights.num_critics = algorithm.critics.num_critics
    return weights


def encode(w, name, obs, t, b):
    """Features of one frame: the vector itself, after an image's convolution, ReLU, linear layer and ReLU."""
    if not isinstance(obs, dict):
        return obs[t, b].double()
    image = obs["image"][t, b].double() / 255
    kernels, bias = w[f"{name}.inner.images.0.convolutions.0.weight"], w[f"{name}.inner.images.0.convolutions.0.bias"]
    rows = range(0, image.shape[0] - KERNEL + 1, STRIDE)
    columns = range(0, image.shape[1] - KERNEL + 1, STRIDE)
    pixels = []
    for c in range(IMAGE_CHANNELS):
        for i in rows:
            for j in columns:
                patch = image[i : i + KERNEL, j : j + KERNEL].permute(2, 0, 1)
                pixels.append(torch.relu((kernels[c] * patch).sum() + bias[c]))
    projection = w[f"{name}.inner.images.0.projection.weight"], w[f"{name}.inner.images.0.projection.bias"]
    features = torch.relu(projection[0] @ torch.stack(pixels) + projection[1])
    return torch.cat([features, obs["vector"][t, b].double()])


def act(w, x, noise):
    """A squashed normal sample `[A]` and its log-density."""
    layers = sorted(n.removesuffix(".weight") for n in w if n.startswith("actor.hidden.") and n.endswith(".weight"))
    for layer in layers:
        x = torch.relu(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"])
    out = w["actor.head.weight"] @ x + w["actor.head.bias"]
    mean, std = out[:NUM_ACTIONS], out[NUM_ACTIONS:].clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
    x = mean + std * noise
    density = torch.exp(-0.5 * noise**2) / (std * math.sqrt(2 * math.pi)) * torch.cosh(x) ** 2  # 1 / (1 - tanh^2)
    return torch.tanh(x), density.prod().log()


def critics(w, name, *inputs):
    """Each critic's values at one frame: a list of `[D]`, D = 1 for a scalar reward, each part by a network of its own."""
    layers = sorted(n.removesuffix(".weight") for n in w if n.startswith(f"{name}.hidden.") and n.endswith(".weight"))
    values = []
    for i in range(w[f"{name}.last.weight"].shape[0]):
        x = torch.cat(inputs)
        for layer in layers:
            x = torch.relu(x @ w[f"{layer}.weight"][i] + w[f"{layer}.bias"][i, 0])
        values.append(x @ w[f"{name}.last.weight"][i] + w[f"{name}.last.bias"][i, 0])
    each = len(values) // (w.num_critics if name in ("critics", "target_critics") else 1)
    return [torch.stack(values[i : i + each], -1).flatten() for i in range(0, len(values), each)]


def worst(values, reward_weights):
    """Of each part of the reward the critic that expects least of it, the most where it is a cost: `[D]`."""
    parts = []
    for d in range(len(values[0])):
        of_part = sorted((v[d] for v in values), key=torch.Tensor.item)
        parts.append(of_part[-1] if reward_weights is not None and reward_weights[d] < 0 else of_part[0])
    return torch.stack(parts)


def total(value, reward_weights):
    """`[D]` to a scalar."""
    return sum(float(w) * v for w, v in zip(reward_weights or [1.0], value))


def numeric_gradient(function, at, step=1e-6):
    """The gradient of a scalar function of `[A]`, by central differences."""
    gradient = torch.zeros_like(at)
    with torch.no_grad():
        for i in range(len(at)):
            up, down = at.detach().clone(), at.detach().clone()
            up[i] += step
            down[i] -= step
            gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def forward_return(time_step, values, stop, t, b, gamma, ignore_done=False):
    """What frame t's critics regress on, summed forwards until a frame that stops: `[D]`."""
    target, factor = 0.0, torch.ones(len(gamma), dtype=torch.float64)
    while True:
        t += 1
        target = target + factor * time_step.reward[t, b].reshape(-1)
        factor = factor * torch.tensor(gamma, dtype=torch.float64)
        if not ignore_done:
            factor = factor * time_step.discount[t, b]
        if t == STEPS - 1 or IS_LAST[t, b] or stop[t][b]:
            return target + factor * values[t][b]


def temperature(w, name, tuning):
    """alpha, and the number whose gradient the temperature's loss takes (None if it is fixed)."""
    value = w[name]
    return {"log": (value.exp().item(), value), "direct": (value.item(), value), "fixed": (value.item(), None)}[tuning]


def check_update(algorithm, loss, weights, expected_loss, rtol=1e-7, atol=1e-9):
    """Losses of every frame, and the gradient of their mean over all T*B frames for every parameter."""
    assert loss.shape == (STEPS, BATCH)
    expected_loss = torch.stack([torch.stack([torch.as_tensor(x).double() for x in row]) for row in expected_loss])
    torch.testing.assert_close(loss.double(), expected_loss, rtol=rtol, atol=atol)
    assert torch.all(loss[IS_LAST] == 0)

    loss.mean().backward()
    gradients = torch.autograd.grad(expected_loss.sum() / (STEPS * BATCH), list(weights.values()), allow_unused=True)
    for (name, parameter), expected in zip(algorithm.named_parameters(), gradients):
        if name.startswith("target_"):
            assert parameter.grad is None and not parameter.requires_grad, name
        elif expected is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            assert expected.abs().max() > 1e-5, f"{name} is not exercised"
            assert parameter.grad is not None, f"{name} has no gradient"
            torch.testing.assert_close(
                parameter.grad.double(), expected, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


# --- One update of SAC ------------------------------------------------------------------------------------------------

SAC = {
    "num_critics": 2, "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875, "ignore_done": False,
    "entropy_in_target": True, "dqda_clipping": None, "tuning": "log", "min_prob": 0.1, "target_entropy": None,
    "share_hidden_layers": False,
}  # fmt: skip


def sac(config):
    c = SimpleNamespace(**config)
    return scrambled(
        SacAlgorithm(
            c.spec, ACTION_SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, td_loss=OneStepTDLoss(c.gamma, c.ignore_done),
            action_min_prob=c.min_prob, target_entropy=c.target_entropy, entropy_in_target=c.entropy_in_target,
            temperature_ctor=functools.partial(Temperature, initial_value=0.7, tuning=c.tuning),
            dqda_clipping=c.dqda_clipping, **networks(c.num_critics, share_hidden_layers=c.share_hidden_layers),
        )
    )  # fmt: skip


def sac_reference(w, config, time_step, noise):
    """docs/equations.md#the-sac-family and #learning-in-taac, one frame at a time: the loss `[T][B]`."""
    c = SimpleNamespace(**config)
    alpha, scale = temperature(w, "temperature.value", c.tuning)
    target_entropy = NUM_ACTIONS * math.log(2 * c.min_prob) if c.target_entropy is None else c.target_entropy
    gamma = c.gamma if isinstance(c.gamma, tuple) else (c.gamma,) * len(c.reward_weights or [1])
    loss = [[0.0] * BATCH for _ in range(STEPS)]
    value = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            obs = encode(w, "encoder", time_step.observation, t, b).detach()
            a, log_pi = act(w, obs, noise[t, b])

            def q(action, obs=obs):
                return total(worst(critics(w, "critics", obs, action), c.reward_weights), c.reward_weights)

            dq_da = numeric_gradient(q, a)
            if c.dqda_clipping is not None:
                dq_da = dq_da.clamp(-c.dqda_clipping, c.dqda_clipping)
            loss[t][b] = 0.5 * ((a - (a + dq_da).detach()) ** 2).sum() + alpha * log_pi
            if scale is not None:
                loss[t][b] = loss[t][b] + scale * (-log_pi.item() - target_entropy)
            target_obs = encode(w, "target_encoder", time_step.observation, t, b)
            value[t][b] = worst(critics(w, "target_critics", target_obs, a), c.reward_weights).detach()
            if c.entropy_in_target:
                value[t][b] = value[t][b] - alpha * log_pi.item()
    everywhere = [[True] * BATCH] * STEPS
    for t in range(STEPS - 1):
        for b in range(BATCH):
            target = forward_return(time_step, value, everywhere, t, b, gamma, c.ignore_done)
            obs = encode(w, "encoder", time_step.observation, t, b)
            for q_i in critics(w, "critics", obs, time_step.prev_action[t + 1, b]):
                loss[t][b] = loss[t][b] + ((q_i - target) ** 2).mean()
    return [[0.0 if IS_LAST[t, b] else loss[t][b] for b in range(BATCH)] for t in range(STEPS)]


COST = {"reward_weights": (1.0, -0.5, 2.0), "gamma": (0.875, 0.5, 0.75), "entropy_in_target": False}


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
    algorithm = sac(config)
    reward_weights = config["reward_weights"]
    time_step = replayed(config["spec"], len(reward_weights) if reward_weights else None)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    weights = weights_of(algorithm)
    expected = sac_reference(weights, config, time_step, noise)

    drawn = record_draws(monkeypatch, noise)
    experience = Experience(time_step, ())
    info = algorithm.train_step(experience)
    loss = algorithm.calc_loss(experience, info).loss
    assert drawn["noise"] == 1
    in_float32 = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {}
    check_update(algorithm, loss, weights, expected, **in_float32)


@pytest.mark.parametrize("reward_weights", [(1.0, -0.5, 2.0), (1.0, -1.0, 1e-3)], ids=str)
def test_the_entropy_bonus_of_a_vector_reward_adds_up_to_that_of_a_scalar_one(reward_weights):
    """Whatever part of the reward it is booked under, what the actor maximises gets -alpha log pi."""
    algorithm = sac(SAC | COST | {"reward_weights": reward_weights})
    experience = Experience(replayed(VECTOR_SPEC, 3), ())
    values = {}
    for algorithm.entropy_in_target in (False, True):
        torch.manual_seed(3)
        info = algorithm.train_step(experience)
        values[algorithm.entropy_in_target] = info.value @ torch.tensor(reward_weights, dtype=torch.float64)
    bonus = values[True] - values[False]
    torch.testing.assert_close(bonus[1:], -algorithm.temperature.value.exp().detach() * info.log_pi[1:])


def test_no_entropy_is_paid_after_a_termination():
    """Two frames, the second terminal: the target is the reward alone. Truncated, it bootstraps with the bonus."""
    algorithm = sac(SAC)
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


@pytest.mark.parametrize("spec", [VECTOR_SPEC, IMAGE_SPEC], ids=["vector", "image"])
def test_the_actors_loss_trains_the_actor_alone(spec):
    algorithm = sac(SAC | {"spec": spec})
    info = algorithm.train_step(Experience(replayed(spec), ()))
    check_actor_alone(algorithm, info.actor_loss, ("actor.",))


def check_actor_alone(algorithm, actor_loss, names):
    actor_loss.sum().backward()
    for name, parameter in algorithm.named_parameters():
        if name.startswith(names):
            assert parameter.grad is not None and parameter.grad.any(), name
        else:
            assert parameter.grad is None or not parameter.grad.any(), name


def test_what_an_update_reports():
    algorithm = sac(SAC)
    experience = Experience(replayed(VECTOR_SPEC)._replace(reward=torch.zeros(STEPS, BATCH).double()), ())
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
    w = weights_of(algorithm)
    x = torch.relu(features.double() @ w["actor.hidden.0.weight"].T + w["actor.hidden.0.bias"])
    mean, log_std = (x @ w["actor.head.weight"].T + w["actor.head.bias"]).detach().split(NUM_ACTIONS, -1)
    return mean, log_std.exp()


def test_predict_step_is_the_mode_whatever_the_seed():
    algorithm, time_step = actor_alone(), frame(50)
    expected = torch.tanh(pre_tanh_moments(algorithm, time_step.observation)[0])
    for seed in (1, 2):
        torch.manual_seed(seed)
        step = algorithm.predict_step(time_step, ())
        torch.testing.assert_close(step.output.double(), expected, rtol=1e-4, atol=1e-5)
        assert step.decided.all() and step.state == ()


@pytest.mark.parametrize("how", ["rollout", "epsilon 1"])
def test_rollouts_sample_the_squashed_normal(how):
    algorithm, count = actor_alone(), 20000
    time_step = frame(count)._replace(observation=torch.randn(1, 3).expand(count, 3))
    mean, std = pre_tanh_moments(algorithm, time_step.observation[0])
    step = algorithm.rollout_step(time_step, ()) if how == "rollout" else algorithm.predict_step(time_step, (), 1.0)
    x = torch.atanh(step.output.double())
    error = 4 / math.sqrt(count)
    assert torch.all((x.mean(0) - mean).abs() < error * std)
    assert torch.all((x.std(0) / std - 1).abs() < error)
    assert abs(torch.corrcoef(x.T)[0, 1]) < error


def test_epsilon_is_the_probability_of_sampling():
    algorithm, count = actor_alone(), 20000
    time_step = frame(count)
    mode = algorithm.predict_step(time_step, ()).output
    sampled = (algorithm.predict_step(time_step, (), 0.3).output != mode).any(-1)
    assert sampled.float().mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))


def check_uniform(x, count):
    """`[M, A]` uniform in [-1, 1], independent: moments, and ten bins of equal weight."""
    assert x.min() >= -1 and x.max() <= 1
    assert torch.all(x.mean(0).abs() < 4 * math.sqrt(1 / 3 / count))
    assert torch.all((x.square().mean(0) - 1 / 3).abs() < 4 * math.sqrt(4 / 45 / count))
    for column in x.T:
        share = torch.histc(column, 10, -1.0, 1.0) / count
        assert torch.all((share - 0.1).abs() < 4.5 * math.sqrt(0.09 / count))
    assert abs(torch.corrcoef(x.T)[0, 1]) < 4 / math.sqrt(count)


def test_random_step_is_uniform():
    step = actor_alone().random_step(frame(20000), ())
    check_uniform(step.output, 20000)
    assert step.decided.all()


def test_reset_where_first_sets_only_the_rows_that_begin():
    time_step = frame(3)._replace(step_type=torch.tensor([M, F, L], dtype=torch.uint8))
    state = {"x": torch.ones(3, 2), "count": torch.tensor([4, 5, 6])}
    initial = {"x": torch.zeros(3, 2), "count": torch.zeros(3, dtype=torch.int64)}
    new = reset_where_first(state, initial, time_step)
    assert new["x"].tolist() == [[1, 1], [0, 0], [1, 1]]
    assert new["count"].tolist() == [4, 0, 6]
    assert reset_where_first((), (), time_step) == ()


# --- Targets, groups, refusals ----------------------------------------------------------------------------------------


def check_targets_move(algorithm, tau, period):
    """Exactly by tau, after every `period`-th update and no other; the online networks stay."""
    pairs = [
        (p, dict(algorithm.named_parameters())[f"target_{name}"])
        for name, p in algorithm.named_parameters()
        if name.startswith(("encoder.", "critics."))
    ]
    assert len(pairs) == 2 * 2 + 2 * 3  # convolution and projection; three layers
    for online, target in pairs:
        assert torch.equal(online, target) and online is not target  # a copy, to begin with
        online.data.normal_()
    target_now = [target.detach().clone() for _, target in pairs]
    online_then = [online.detach().clone() for online, _ in pairs]
    for update in range(1, 2 * period + 2):
        algorithm.after_update(update)
        if update % period == 0:
            target_now = [(1 - tau) * t + tau * o for t, o in zip(target_now, online_then)]
        for (online, target), expected, then in zip(pairs, target_now, online_then):
            torch.testing.assert_close(target.detach(), expected, rtol=1e-5, atol=1e-7)
            if update < period:
                assert torch.equal(target, expected)
            assert torch.equal(online, then)


def check_groups(algorithm, actor_names):
    """Every trainable parameter once, no other, each in the group of its role."""
    groups = algorithm.parameter_groups()
    assert set(groups) == {"actor", "critic", "temperature"}
    name_of = {id(p): name for name, p in algorithm.named_parameters()}
    found = {group: sorted(name_of[id(p)] for p in parameters) for group, parameters in groups.items()}
    trainable = sorted(name for name, p in algorithm.named_parameters() if p.requires_grad)
    assert sorted(name for names in found.values() for name in names) == trainable
    assert not any(name.startswith("target_") for name in trainable)
    assert found["actor"] == [n for n in trainable if n.startswith(actor_names)]
    assert found["critic"] == [n for n in trainable if n.startswith(("encoder.", "critics."))]
    assert found["temperature"] == [n for n in trainable if "temperature." in n]
    return found


@pytest.mark.parametrize("tau, period", [(0.25, 1), (0.25, 3), (1.0, 2)])
def test_targets_move_softly_and_on_time(tau, period):
    check_targets_move(
        SacAlgorithm(IMAGE_SPEC, ACTION_SPEC, target_update_tau=tau, target_update_period=period, **networks()),
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
        **networks(),
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
    with pytest.raises(TaacError, match=r"needs a ratio .* that stays the same"):
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
    found = check_groups(sac(SAC | {"spec": IMAGE_SPEC, "tuning": tuning}), ("actor.",))
    assert len(found["temperature"]) == temperatures


def test_a_direct_temperature_stays_at_or_above_0():
    algorithm = sac(SAC | {"tuning": "direct"})
    algorithm.temperature.value.data.fill_(-0.5)
    algorithm.after_update(1)
    assert algorithm.temperature.value.item() == 0.0


def test_target_entropy():
    assert SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, action_min_prob=0.1).temperature.target_entropy == pytest.approx(
        2 * math.log(0.2)
    )
    given = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, target_entropy=-3.0)
    assert given.temperature.target_entropy == -3.0
    assert "-3.0000 nats" in "\n".join(given.describe())
    uniform = 2 * math.log(2)  # no policy in [-1, 1]^2 has more
    assert SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, target_entropy=uniform).temperature.target_entropy == uniform
    with pytest.raises(TaacError, match=r"target_entropy 1\.39.* 1\.3863 nats"):
        SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, target_entropy=uniform + 0.01)
    for min_prob in (0.0, 1.1):
        with pytest.raises(TaacError, match="min_prob"):
            SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, action_min_prob=min_prob)


BAD_ACTION_SPECS = [
    pytest.param(TensorSpec((), torch.int64, np.asarray(0), np.asarray(3)), "discrete", id="discrete"),
    pytest.param(bounded((2,), 0, 4, torch.int64), "discrete", id="multi-discrete"),
    pytest.param({"arm": ACTION_SPEC, "leg": ACTION_SPEC}, "nested", id="nested"),
    pytest.param((ACTION_SPEC,), "nested", id="tuple"),
    pytest.param(bounded((2,), -2.0, 2.0), r"\[-1, 1\]", id="unscaled"),
    pytest.param(TensorSpec((2,), torch.float32, np.array([-1, -1]), np.array([1, 1.5])), r"\[-1, 1\]", id="one-off"),
    pytest.param(TensorSpec((2,)), r"\[-1, 1\]", id="unbounded"),
    pytest.param(bounded((2, 2), -1.0, 1.0), "rank 1", id="matrix"),
    pytest.param(bounded((0,), -1.0, 1.0), "at least one dimension", id="empty"),
]


@pytest.mark.parametrize("spec, message", BAD_ACTION_SPECS)
def test_actions_it_cannot_take_are_refused(spec, message):
    with pytest.raises(TaacError, match=message):
        SacAlgorithm(VECTOR_SPEC, spec)


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
