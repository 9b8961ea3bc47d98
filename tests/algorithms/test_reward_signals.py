"""Reward signals: losses and rewards against recomputation from the raw weights, when they arrive, normalisation, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from taac import nest
from taac.algorithms.reward_signals import GAIL, ICM, RND
from taac.data_structures import StepType, TimeStep
from taac.errors import TaacError
from taac.specs import TensorSpec, bounded
from tests.algorithms.reference import BATCH, IMAGE_SPEC, IS_FIRST, IS_LAST, STEP_TYPE, STEPS, observation

VECTOR = bounded((3,), -5.0, 5.0)
CHOICE = bounded((), 0, 2, torch.int64)
CHOICES = TensorSpec((2,), torch.int64, np.array([0, 0]), np.array([1, 3]))  # of 2 and of 4
ACTIONS = {
    "continuous": bounded((2,), -1.0, 1.0),
    "discrete": CHOICE,
    "agents": bounded((3,), 0, 1, torch.int64),
    "unequal": CHOICES,
    "tuple": (CHOICE, bounded((2,), -1.0, 1.0)),
    "dict": {"arm": bounded((1,), -1.0, 1.0), "gear": CHOICES, "leg": bounded((1, 1), -1.0, 1.0)},
}
RECORDED = ~torch.as_tensor(IS_FIRST)  # a transition arrives here


def random_action(spec):
    if isinstance(spec, TensorSpec) and spec.is_categorical:
        highest = torch.as_tensor(np.broadcast_to(spec.maximum, spec.shape).copy())
        return (torch.rand(STEPS, BATCH, *spec.shape) * (highest + 1)).long()
    if isinstance(spec, TensorSpec):
        return torch.rand(STEPS, BATCH, *spec.shape) * 2 - 1
    return nest.map_structure(random_action, spec)


def frames(action_spec=ACTIONS["continuous"], spec=VECTOR):
    """Random frames; the actions of frame 0 and of FIRST are zeros, and rewards, discounts are never read."""
    action = random_action(action_spec)
    for leaf in nest.flatten(action):
        leaf[0], leaf[torch.as_tensor(IS_FIRST)] = 0, 0
    nothing = torch.full((STEPS, BATCH), math.nan)
    return TimeStep(STEP_TYPE.clone(), nothing, nothing, observation(spec, STEPS, BATCH), action, nothing)


def hot(spec, leaf):
    """One frame's action as a list of `(numbers, is a choice)`, one a choice."""
    if not spec.is_categorical:
        return [(leaf.reshape(-1).double(), False)]
    counts = (np.broadcast_to(spec.maximum, spec.shape) - np.broadcast_to(spec.minimum, spec.shape) + 1).reshape(-1)
    values = (leaf - torch.as_tensor(np.broadcast_to(spec.minimum, spec.shape).copy())).reshape(-1)
    return [(torch.eye(int(n), dtype=torch.float64)[v], True) for n, v in zip(counts, values)]


def action_parts(action_spec, time_step, t, b):
    """Of the action that led to frame t."""
    leaves = zip(nest.flatten(action_spec), nest.flatten(time_step.prev_action))
    return [part for spec, leaf in leaves for part in hot(spec, leaf[t, b])]


def network(w, name, x):
    """Linear layers with ReLUs between them, named `0.weight` and so on."""
    layers = sorted({n.removesuffix(".weight").removesuffix(".bias") for n in w if n.startswith(f"{name}.")})
    for number, layer in enumerate(layers):
        x = w[f"{layer}.weight"] @ x + w[f"{layer}.bias"]
        x = torch.relu(x) if number < len(layers) - 1 else x
    return x


def scrambled(signal):
    with torch.no_grad():
        for parameter in signal.parameters():
            parameter.normal_(0.0, 0.5)
    return signal


def weights_of(signal):
    return {n: p.detach().double().clone().requires_grad_(p.requires_grad) for n, p in signal.named_parameters()}


def check(signal, time_step, reward, loss, demonstrations=None):
    """Rewards of transitions, and loss and gradients, against `reward(w, t, b)`, on arriving at frame t, and `loss(w)`."""
    w = weights_of(signal)
    given = signal.reward(time_step)
    assert given.shape == (STEPS - 1, BATCH)
    for t in range(1, STEPS):
        for b in range(BATCH):
            if RECORDED[t, b]:
                assert given[t - 1, b].item() == pytest.approx(reward(w, t, b).item(), rel=2e-4, abs=1e-5), (t, b)
    own = {n: p for n, p in signal.named_parameters() if p.requires_grad}
    found, expected = signal.loss(time_step, demonstrations), loss(w)
    assert found.item() == pytest.approx(expected.item(), rel=2e-4)
    found.backward()
    gradients = torch.autograd.grad(expected, [w[n] for n in own], allow_unused=True)
    for (name, parameter), gradient in zip(own.items(), gradients, strict=True):
        gradient = torch.zeros_like(parameter).double() if gradient is None else gradient
        torch.testing.assert_close(
            parameter.grad.double(), gradient, rtol=2e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert all(p.grad is None for p in signal.parameters() if not p.requires_grad)


def arrivals():
    return [(t, b) for t in range(1, STEPS) for b in range(BATCH) if not IS_FIRST[t, b]]


# --- Each model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ACTIONS)
def test_icm(kind):
    """The inverse model's error of each part of the action, squared or cross-entropy, and the forward model's."""
    spec = ACTIONS[kind]
    signal = scrambled(ICM(VECTOR, spec, feature_size=4, hidden_layers=(5,), beta=0.3))
    time_step = frames(spec)

    def phi(w, t, b):
        return network(w, "phi", time_step.observation[t, b].double())

    def surprise(w, before, after, t, b):
        action = torch.cat([x for x, _ in action_parts(spec, time_step, t, b)])
        told = network(w, "forward_model", torch.cat([before, action]))
        return ((told - after) ** 2).sum() / 2

    def inverse(w, t, b):
        told = network(w, "inverse", torch.cat([phi(w, t - 1, b), phi(w, t, b)]))
        error, position = 0.0, 0
        for part, chosen in action_parts(spec, time_step, t, b):
            mine = told[position : position + len(part)]
            position += len(part)
            if chosen:
                error = error - torch.log(torch.exp(mine) / torch.exp(mine).sum()) @ part
            else:
                error = error + ((mine - part) ** 2).sum()
        assert position == len(told)
        return error

    def loss(w):
        terms = [
            0.7 * inverse(w, t, b) + 0.3 * surprise(w, phi(w, t - 1, b).detach(), phi(w, t, b).detach(), t, b)
            for t, b in arrivals()
        ]
        return sum(terms) / len(terms)

    check(signal, time_step, lambda w, t, b: surprise(w, phi(w, t - 1, b), phi(w, t, b), t, b), loss)


def test_rnd():
    """Of the state arrived at; the target never learns."""
    signal = scrambled(RND(VECTOR, CHOICE, feature_size=4, hidden_layers=(5,)))
    time_step = frames(CHOICE)

    def error(w, t, b):
        x = time_step.observation[t, b].double()
        return ((network(w, "predictor", x) - network(w, "fixed", x)) ** 2).sum()

    check(signal, time_step, error, lambda w: sum(error(w, t, b) for t, b in arrivals()) / len(arrivals()))
    assert not any(p.requires_grad for p in [*signal.fixed.parameters(), *signal.fixed_encoder.parameters()])


def test_rnd_of_images_leaves_the_fixed_encoder_fixed():
    spec = {**IMAGE_SPEC, "image": bounded((40, 40, 2), 0, 255, torch.uint8)}
    signal, time_step = RND(spec, CHOICE, feature_size=4, hidden_layers=(5,)), frames(CHOICE, spec)
    signal.loss(time_step, None).backward()
    assert all(p.grad is None and not p.requires_grad for p in signal.fixed_encoder.parameters())
    assert all(p.grad is not None and p.grad.any() for p in signal.encoder.parameters())
    reward = signal(time_step)
    assert reward.shape == (STEPS, BATCH) and not reward.requires_grad


@pytest.mark.parametrize("kind", ["continuous", "discrete", "unequal", "tuple", "dict"])
def test_gail(kind, monkeypatch):
    """Cross-entropy, and the penalty of the logit's slope between each pair of an own and a demonstrated transition."""
    spec = ACTIONS[kind]
    signal = scrambled(GAIL(VECTOR, spec, hidden_layers=(6, 5), gradient_penalty=3.0))
    time_step, shown = frames(spec), frames(spec)
    shown = nest.map_structure(lambda x: x.flip(1), shown)  # episodes that end elsewhere
    mixing = torch.rand(STEPS - 1, BATCH, 1)
    monkeypatch.setattr(torch, "rand_like", lambda x: mixing if x.shape == mixing.shape else pytest.fail("one draw"))

    def pair(frame, t, b):
        action = torch.cat([x for x, _ in action_parts(spec, frame, t, b)])
        return torch.cat([frame.observation[t - 1, b].double(), action])

    def probability(w, x):
        return 1 / (1 + torch.exp(-network(w, "logit", x)[0]))

    def slope(w, x):
        """The logit's gradient, from the weights and which units are on."""
        jacobian = torch.eye(len(x), dtype=torch.float64)
        layers = sorted({n.removesuffix(".weight").removesuffix(".bias") for n in w})
        for number, layer in enumerate(layers):
            x, jacobian = w[f"{layer}.weight"] @ x + w[f"{layer}.bias"], w[f"{layer}.weight"] @ jacobian
            if number < len(layers) - 1:
                on = (x > 0).double()
                x, jacobian = x * on, jacobian * on.unsqueeze(-1)
        return jacobian[0]

    def loss(w):
        demonstrated = [(t, b) for t in range(1, STEPS) for b in range(BATCH) if not IS_FIRST[t, BATCH - 1 - b]]
        both = [place for place in arrivals() if place in demonstrated]
        assert 0 < len(both) < len(demonstrated)
        own = sum(-torch.log(1 - probability(w, pair(time_step, t, b))) for t, b in arrivals()) / len(arrivals())
        theirs = sum(-torch.log(probability(w, pair(shown, t, b))) for t, b in demonstrated) / len(demonstrated)
        penalty = 0.0
        for t, b in both:
            share = mixing[t - 1, b, 0].double()
            x = (1 - share) * pair(time_step, t, b) + share * pair(shown, t, b)
            penalty = (
                penalty + ((slope(w, x).square().sum() + 1e-30).sqrt() - 1) ** 2
            )  # where all units are off, it is 0
        return own + theirs + 3.0 * penalty / len(both)

    check(signal, time_step, lambda w, t, b: -torch.log(1 - probability(w, pair(time_step, t, b))), loss, shown)


def test_gail_without_a_penalty_by_hand():
    """A discriminator that does not look: logit x everywhere, loss softplus(x) + softplus(-x), reward softplus(x)."""
    signal = GAIL(VECTOR, CHOICE, hidden_layers=(), gradient_penalty=0.0)
    with torch.no_grad():
        signal.logit[0].weight.zero_()
        signal.logit[0].bias.fill_(0.4)
    time_step = frames(CHOICE)
    assert signal.loss(time_step, time_step).item() == pytest.approx(
        math.log1p(math.exp(0.4)) + math.log1p(math.exp(-0.4))
    )
    assert signal(time_step)[RECORDED & (torch.arange(STEPS).unsqueeze(-1) > 0)].numpy() == pytest.approx(0.91301525)


def test_where_the_discriminator_is_flat_its_gradient_is_finite():
    signal = GAIL(VECTOR, CHOICE, hidden_layers=(6,))
    with torch.no_grad():
        for parameter in signal.logit.parameters():
            parameter.fill_(-100.0)  # every unit is off
    loss = signal.loss(frames(CHOICE), frames(CHOICE))
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in signal.parameters())


# --- When a reward arrives, and statistics ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ICM, RND, GAIL])
def test_a_reward_arrives_with_the_frame_that_its_transition_leads_to(kind):
    """Frame t's own state and action move reward t and, as where the next begins, t+1; 0 at frame 0 and FIRST."""
    signal = scrambled(kind(VECTOR, ACTIONS["continuous"], normalize=False, hidden_layers=(16,)))
    time_step = frames()
    reward = signal(time_step)
    assert reward.shape == (STEPS, BATCH) and not reward.requires_grad
    assert not reward[0].any() and not reward[torch.as_tensor(IS_FIRST)].any()
    torch.testing.assert_close(reward[1:][RECORDED[1:]], signal.reward(time_step)[RECORDED[1:]].detach())
    for t in range(STEPS):
        moved = time_step.observation.clone()
        moved[t] += 1.0
        changed = (signal(time_step._replace(observation=moved)) - reward).abs().amax(1) > 1e-6
        expected = {ICM: {t, t + 1}, RND: {t}, GAIL: {t + 1}}[kind] - {0, STEPS}
        assert set(changed.nonzero().flatten().tolist()) == expected
        acted = time_step.prev_action.clone()
        acted[t] += 1.0
        changed = (signal(time_step._replace(prev_action=acted)) - reward).abs().amax(1) > 1e-6
        assert set(changed.nonzero().flatten().tolist()) == (set() if kind is RND else {t} - {0})


@pytest.mark.parametrize("begins_with", [StepType.FIRST, StepType.LAST])
@pytest.mark.parametrize("kind", [ICM, RND, GAIL])
def test_nothing_is_learnt_from_what_lies_between_two_episodes(kind, begins_with):
    """Neither the state at LAST as one where something was done, nor that at FIRST as one that was arrived at.

    FIRST is LAST where an episode was cut off at its first frame.
    """
    signal = scrambled(kind(VECTOR, ACTIONS["continuous"], hidden_layers=(16,)))
    time_step, shown = frames(), frames()
    cut = torch.as_tensor(IS_FIRST) & torch.as_tensor(IS_LAST).roll(1, 0)
    cut[0] = False
    assert cut.any()
    for each in (time_step, shown):
        each.step_type[cut] = int(begins_with)
    other = nest.map_structure(torch.clone, time_step)
    between = torch.as_tensor(IS_FIRST)
    other.prev_action[between] = 7.0
    if kind is RND:
        other.observation[between] = 7.0
    if kind is GAIL:
        other.observation[torch.as_tensor(IS_LAST)] = 7.0
    losses, gradients = [], []
    for batch in (time_step, other):
        torch.manual_seed(1)
        loss = signal.loss(batch, shown)
        losses.append(loss.item())
        own = [p for p in signal.parameters() if p.requires_grad]
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, own)]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1])


class Given(RND):
    """A signal whose rewards are given."""

    def reward(self, time_step):
        return self.values


def test_rewards_are_divided_by_their_running_root_mean_square():
    """Call k moves the mean square by 8 / (8 + k), of the transitions alone: by hand."""
    signal = Given(VECTOR, CHOICE)
    step_type = torch.tensor([[1, 1], [1, 2], [2, 0]], dtype=torch.uint8)  # the last of column 1 is FIRST
    time_step = frames(CHOICE)._replace(step_type=step_type)
    signal.values = torch.tensor([[1.0, 2.0], [3.0, 1e6]])
    first = signal(time_step)
    mean_square = (1 + 4 + 9) / 3
    expected = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 0.0]])
    torch.testing.assert_close(first, expected / math.sqrt(mean_square))
    signal.values = torch.tensor([[6.0, 0.0], [0.0, -1e6]])
    second = signal(time_step)
    mean_square += 8 / 9 * (12.0 - mean_square)
    torch.testing.assert_close(second, torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 0.0]]) / math.sqrt(mean_square))
    signal(time_step)
    mean_square += 8 / 10 * (12.0 - mean_square)
    assert signal.mean_square.item() == pytest.approx(mean_square, rel=1e-12)
    assert signal.num_batches.item() == 3


@pytest.mark.parametrize("begins_with", [StepType.FIRST, StepType.LAST])
def test_a_batch_without_a_transition_moves_nothing(begins_with):
    signal = Given(VECTOR, CHOICE)
    signal.values = torch.tensor([[3.0]])
    time_step = frames(CHOICE)._replace(step_type=torch.tensor([[2], [begins_with]], dtype=torch.uint8))
    assert not signal(time_step).any()
    assert signal.num_batches.item() == 0 and signal.mean_square.item() == 0
    signal.loss = RND.loss.__get__(signal)
    assert signal.loss(time_step, None).item() == 0


def test_without_normalisation_rewards_are_as_they_are():
    signal = Given(VECTOR, CHOICE, normalize=False)
    signal.values = torch.full((STEPS - 1, BATCH), 5.0)
    assert set(signal(frames(CHOICE)).unique().tolist()) == {0.0, 5.0}
    assert signal.num_batches.item() == 0


@pytest.mark.parametrize(
    "kind, settings, message",
    [
        (ICM, {"strength": 0.0}, "ICM.strength must be a number other than 0"),
        (RND, {"strength": math.nan}, "RND.strength"),
        (GAIL, {"gamma": 1.1}, r"GAIL.gamma must be in \[0, 1\]"),
        (GAIL, {"gamma": math.nan}, "GAIL.gamma"),
        (RND, {"learning_rate": 0.0}, "RND.learning_rate must be above 0"),
        (RND, {"learning_rate": math.inf}, "RND.learning_rate"),
        (ICM, {"update_period": 0}, "ICM.update_period must be a whole number of updates or 1/n of one, got 0"),
        (ICM, {"update_period": 1.5}, "ICM.update_period must be a whole number of updates or 1/n of one, got 1.5"),
        (RND, {"update_period": 0.4}, "RND.update_period must be a whole number of updates or 1/n of one, got 0.4"),
        (ICM, {"beta": 1.0}, r"ICM.beta must be in \(0, 1\)"),
        (GAIL, {"gradient_penalty": -1.0}, "GAIL.gradient_penalty must be 0 or more"),
        (GAIL, {"gradient_penalty": math.nan}, "GAIL.gradient_penalty"),
        (RND, {"feature_size": 0}, "feature_size and hidden_layers must be 1 or more, got 0"),
        (GAIL, {"hidden_layers": (8, 0)}, "feature_size and hidden_layers must be 1 or more"),
    ],
)
def test_bad_settings_are_refused(kind, settings, message):
    with pytest.raises(TaacError, match=message):
        kind(VECTOR, ACTIONS["continuous"], **settings)
