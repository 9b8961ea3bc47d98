"""What tests of several algorithms share: replayed segments written as words, small algorithms in float64, and a slow reference.

The reference is plain loops over frames in float64, with graphs built from the raw weights and dQ/da by finite differences.
Nothing of it calls `taac.ops` or the networks.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, SacAlgorithm, Temperature
from taac.data_structures import StepType, TimeStep
from taac.networks import ActorNetwork, CriticEnsemble, ImageEncoder, ObservationEncoder
from taac.specs import bounded

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
NAN = float("nan")
LOG_STD_MIN, LOG_STD_MAX = -1.0, 0.3  # narrow, so that both clamps act
NUM_ACTIONS = 2
ACTION_SPEC = bounded((NUM_ACTIONS,), -1.0, 1.0)
VECTOR_SPEC = bounded((3,), -5.0, 5.0)
IMAGE_SPEC = {"image": bounded((7, 6, 2), 0, 255, torch.uint8), "vector": VECTOR_SPEC}
KERNEL, STRIDE, IMAGE_CHANNELS, IMAGE_FEATURES = 3, 2, 3, 4

# An environment a word, a frame a letter; L terminated (discount 0), l was truncated. There are episodes that begin and
# end at the segment's first and last frame and inside it.
ENVIRONMENTS = ["FMMMMM", "MMLFMM", "MlFMLF", "FMMMMl", "LFMMlF", "lFMMML"]
STEPS, BATCH = len(ENVIRONMENTS[0]), len(ENVIRONMENTS)
LETTERS = np.array([list(word) for word in ENVIRONMENTS]).T
STEP_TYPE = torch.tensor([[{"F": F, "M": M}.get(x, L) for x in row] for row in LETTERS], dtype=torch.uint8)
IS_LAST = torch.as_tensor((LETTERS == "L") | (LETTERS == "l"))
IS_FIRST = torch.as_tensor(LETTERS == "F")

# Settings of an update with a vector reward, a vector gamma and a negative weight.
COST = {"reward_weights": (1.0, -0.5, 2.0), "gamma": (0.875, 0.5, 0.75), "entropy_in_target": False}


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


RATE = 0.6  # at which rollouts decide, for a price that is learnt


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
    if algorithm.decision_price is not None and algorithm.decision_price.target_rate is not None:
        algorithm.decision_price.rate.fill_(RATE)
    return algorithm


def random_mask(*batch, counts):
    """Bools `[*batch, sum(counts)]` with one or more valid choices in each branch; every number of them happens."""
    parts = []
    for count in counts:
        part = torch.rand(*batch, count) < 0.5
        parts.append(part.scatter_(-1, torch.randint(count, (*batch, 1)), True))
    return torch.cat(parts, -1)


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


def hidden(w, name):
    """The names of a network's hidden layers, in order."""
    return sorted(n.removesuffix(".weight") for n in w if n.startswith(f"{name}.hidden.") and n.endswith(".weight"))


def act(w, x, noise):
    """A squashed normal sample `[A]` and its log-density."""
    for layer in hidden(w, "actor"):
        x = torch.relu(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"])
    out = w["actor.head.weight"] @ x + w["actor.head.bias"]
    mean, std = out[:NUM_ACTIONS], out[NUM_ACTIONS:].clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
    x = mean + std * noise
    density = torch.exp(-0.5 * noise**2) / (std * math.sqrt(2 * math.pi)) * torch.cosh(x) ** 2  # 1 / (1 - tanh^2)
    return torch.tanh(x), density.prod().log()


def critics(w, name, *inputs):
    """Each critic's values at one frame: a list of `[D]`, D = 1 for a scalar reward, each part by a network of its own."""
    layers, values = hidden(w, name), []
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


def numeric_gradient(function, at, clipping=None, step=1e-6):
    """The gradient of a scalar function of `[A]`, by central differences, clipped to +-`clipping`."""
    gradient = torch.zeros_like(at)
    with torch.no_grad():
        for i in range(len(at)):
            up, down = at.detach().clone(), at.detach().clone()
            up[i] += step
            down[i] -= step
            gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient if clipping is None else gradient.clamp(-clipping, clipping)


def gammas(c):
    """The discount of each part of the reward."""
    return c.gamma if isinstance(c.gamma, tuple) else (c.gamma,) * len(c.reward_weights or [1])


def price(w, config):
    """What a decision costs `(c, share of it [D], scale of the learnt price's loss)`: the share times the weights is c."""
    c = SimpleNamespace(**config)
    value = w.get("decision_price.log_price")
    cost = c.price if value is None else value.exp().item()
    weights = torch.tensor(c.reward_weights or [1.0], dtype=torch.float64)
    return cost, cost * weights / (weights**2).sum(), value


def forward_return(time_step, values, stop, t, b, gamma, ignore_done=False, paid=None):
    """What frame t's critics regress on, summed forwards until a frame that stops: `[D]`. A frame that is passed pays."""
    target, factor = 0.0, torch.ones(len(gamma), dtype=torch.float64)
    while True:
        t += 1
        target = target + factor * time_step.reward[t, b].reshape(-1)
        factor = factor * torch.tensor(gamma, dtype=torch.float64)
        if not ignore_done:
            factor = factor * time_step.discount[t, b]
        if t == STEPS - 1 or IS_LAST[t, b] or stop[t][b]:
            return target + factor * values[t][b]
        if paid is not None:
            target = target - factor * paid[t][b]


def with_critics(loss, time_step, value, gamma, predicted, ignore_done=False, stop=None, paid=None):
    """The loss `[T][B]` plus that of the critics, which predict `predicted(t, b)`; 0 at LAST. Returns stop at the next frame, or
    where `stop` `[T][B]` says so.
    """
    for t in range(STEPS - 1):
        for b in range(BATCH):
            target = forward_return(time_step, value, stop or [[True] * BATCH] * STEPS, t, b, gamma, ignore_done, paid)
            for q_i in predicted(t, b):
                loss[t][b] = loss[t][b] + ((q_i - target) ** 2).mean()
    return [[0.0 if IS_LAST[t, b] else loss[t][b] for b in range(BATCH)] for t in range(STEPS)]


def at_executed(w, time_step, *actions):
    """What the critics predict of the actions with these parts `[T, B, A]`, of which frame t's are the ones at t + 1."""
    return lambda t, b: critics(
        w, "critics", encode(w, "encoder", time_step.observation, t, b), *(part[t + 1, b] for part in actions)
    )


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
    gamma = gammas(c)
    loss = [[0.0] * BATCH for _ in range(STEPS)]
    value = [[None] * BATCH for _ in range(STEPS)]
    for t in range(STEPS):
        for b in range(BATCH):
            obs = encode(w, "encoder", time_step.observation, t, b).detach()
            a, log_pi = act(w, obs, noise[t, b])

            def q(action, obs=obs):
                return total(worst(critics(w, "critics", obs, action), c.reward_weights), c.reward_weights)

            dq_da = numeric_gradient(q, a, c.dqda_clipping)
            loss[t][b] = 0.5 * ((a - (a + dq_da).detach()) ** 2).sum() + alpha * log_pi
            if scale is not None:
                loss[t][b] = loss[t][b] + scale * (-log_pi.item() - target_entropy)
            target_obs = encode(w, "target_encoder", time_step.observation, t, b)
            value[t][b] = worst(critics(w, "target_critics", target_obs, a), c.reward_weights).detach()
            if c.entropy_in_target:
                value[t][b] = value[t][b] - alpha * log_pi.item()
    return with_critics(loss, time_step, value, gamma, at_executed(w, time_step, time_step.prev_action), c.ignore_done)


def check_actor_alone(algorithm, actor_loss, names):
    actor_loss.sum().backward()
    for name, parameter in algorithm.named_parameters():
        if name.startswith(names):
            assert parameter.grad is not None and parameter.grad.any(), name
        else:
            assert parameter.grad is None or not parameter.grad.any(), name


def check_uniform(x, count):
    """`[M, A]` uniform in [-1, 1], independent: moments, and ten bins of equal weight."""
    assert x.min() >= -1 and x.max() <= 1
    assert torch.all(x.mean(0).abs() < 4 * math.sqrt(1 / 3 / count))
    assert torch.all((x.square().mean(0) - 1 / 3).abs() < 4 * math.sqrt(4 / 45 / count))
    for column in x.T:
        share = torch.histc(column, 10, -1.0, 1.0) / count
        assert torch.all((share - 0.1).abs() < 4.5 * math.sqrt(0.09 / count))
    assert abs(torch.corrcoef(x.T)[0, 1]) < 4 / math.sqrt(count)


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


def check_groups(algorithm, actor_names, critic_names=("encoder.", "critics.")):
    """Every trainable parameter once, no other, each in the group of its role."""
    groups = algorithm.parameter_groups()
    assert set(groups) == {"actor", "critic", "temperature"}
    name_of = {id(p): name for name, p in algorithm.named_parameters()}
    found = {group: sorted(name_of[id(p)] for p in parameters) for group, parameters in groups.items()}
    trainable = sorted(name for name, p in algorithm.named_parameters() if p.requires_grad)
    assert sorted(name for names in found.values() for name in names) == trainable
    assert not any(name.startswith("target_") for name in trainable)
    assert found["actor"] == [n for n in trainable if n.startswith(actor_names)]
    assert found["critic"] == [n for n in trainable if n.startswith(critic_names)]
    assert found["temperature"] == [n for n in trainable if "temperature." in n]
    return found
