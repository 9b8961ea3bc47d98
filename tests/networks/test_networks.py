"""Actor, trajectory embedding and critic ensemble: initialisation, shapes, values from the raw weights."""

import math

import numpy as np
import pytest
import torch

from taac.algorithms.trajectories import Tau
from taac.errors import TaacError
from taac.networks import (
    ActorNetwork,
    CategoricalActorNetwork,
    CriticEnsemble,
    ImageEncoder,
    SwitchNetwork,
    TrajectoryEmbedding,
)
from taac.networks.layers import Mlp, truncated_normal_
from taac.specs import bounded
from tests.networks.uniform import assert_uniform

BATCHES = [(), (5,), (3, 5), (2, 3, 5)]


# --- Critics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward_dim, share, networks, outputs", [(None, False, 3, 1), (4, False, 12, 1), (4, True, 3, 4)]
)
def test_initialisation_of_critics(reward_dim, share, networks, outputs):
    critics = CriticEnsemble(100, reward_dim, 3, hidden_layers=(400, 200), share_hidden_layers=share)
    for layer, fan_in in zip(critics.hidden, (100, 400)):
        assert len(layer.weight) == networks
        for weights in layer.weight:
            assert_uniform(weights, 1 / math.sqrt(fan_in))
        assert not layer.bias.any()
    last = critics.last.weight
    assert last.shape == (networks, 200, outputs) and not critics.last.bias.any()
    assert 0.003 * 0.9 < last.abs().max() <= 0.003
    assert last.std().item() == pytest.approx(0.003 / math.sqrt(3), rel=0.1)


def test_critics_begin_different_from_each_other():
    critics = CriticEnsemble(6, num_critics=2)
    assert not torch.equal(*critics.hidden[0].weight)
    q = critics(torch.randn(9, 4), torch.randn(9, 2))
    assert not torch.any(q[0] == q[1])


def scramble(module):
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.5)
    return module


def alone(critics, network, x):
    """One of the networks of an ensemble, `[..., O]`."""
    for layer in critics.hidden:
        x = torch.relu(torch.nn.functional.linear(x, layer.weight[network].T, layer.bias[network, 0]))
    return torch.nn.functional.linear(x, critics.last.weight[network].T, critics.last.bias[network, 0])


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("num_critics, hidden_layers", [(1, ()), (3, (7, 6))])
@pytest.mark.parametrize(
    "num_choices, reward_dim", [(None, None), (None, 1), (None, 3), (1, None), (4, None), (4, 1), (4, 3), (1, 3)]
)
def test_an_ensemble_is_networks_one_by_one(num_choices, reward_dim, num_critics, hidden_layers, share):
    """`[N, ..., C, D]`: a network for each part of the reward, or an output, and an output for each choice."""
    critics = scramble(
        CriticEnsemble(9, reward_dim, num_critics, hidden_layers, num_choices=num_choices, share_hidden_layers=share)
    )
    given = torch.randn(3, 5, 5), torch.randn(3, 5, 2), torch.randn(3, 5, 2)
    q, x, parts, choices = critics(*given), torch.cat(given, -1), reward_dim or 1, num_choices or 1
    assert list(q.shape) == [num_critics, 3, 5, *([num_choices] if num_choices else []), *([reward_dim] if reward_dim else [])]
    q = q.reshape(num_critics, 3, 5, choices, parts)
    for i, c, d in np.ndindex(num_critics, choices, parts):
        network, output = (i, c * parts + d) if share else (i * parts + d, c)
        torch.testing.assert_close(q[i, ..., c, d], alone(critics, network, x)[..., output], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_choices", [None, 4])
def test_parts_of_a_reward_share_nothing(num_choices):
    """The gradient of part 2 of critic 1 is that of one network: none of another part's, or critic's."""
    critics = scramble(CriticEnsemble(6, 3, num_critics=2, hidden_layers=(7,), num_choices=num_choices))
    critics(torch.randn(9, 4), torch.randn(9, 2))[1, ..., 2].sum().backward()
    for name, parameter in critics.named_parameters():
        assert [bool(gradient.any()) for gradient in parameter.grad] == [False] * 5 + [True], name


def test_choices_do_not_change_the_other_layers_initialisation():
    """One choice is no choice: the same draws make the same networks."""
    torch.manual_seed(1)
    plain = CriticEnsemble(6, 2, hidden_layers=(7,))
    torch.manual_seed(1)
    one = CriticEnsemble(6, 2, hidden_layers=(7,), num_choices=1)
    for p, q in zip(plain.parameters(), one.parameters(), strict=True):
        assert torch.equal(p, q)
    x = torch.randn(5, 6)
    assert torch.equal(plain(x), one(x).squeeze(2))
    many = CriticEnsemble(6, 2, hidden_layers=(400,), num_choices=5, last_init_range=0.02)
    assert many.last.weight.shape == (4, 400, 5) and not many.last.bias.any()
    assert 0.02 * 0.9 < many.last.weight.abs().max() <= 0.02


def test_no_critics_are_refused():
    with pytest.raises(TaacError, match="num_critics"):
        CriticEnsemble(6, num_critics=0)


# --- Actor ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden_layers", [(8, -1), (0,)])
def test_no_layer_is_made_of_widths_that_none_has(hidden_layers):
    with pytest.raises(TaacError, match="widths of hidden layers must be 1 or more"):
        ActorNetwork(3, 1, hidden_layers=hidden_layers)


def test_initialisation_of_the_actors_layers():
    actor = ActorNetwork(100, 3, hidden_layers=(300, 200))
    layers = [layer for layer in actor.hidden if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == [(300, 100), (200, 300)]
    for layer in layers:  # Xavier
        assert_uniform(layer.weight, math.sqrt(6 / sum(layer.weight.shape)))
        assert not layer.bias.any()


def test_initialisation_of_the_actors_head():
    """A truncated normal: none beyond two standard deviations (of the normal), many beyond one, gain about 0.3."""
    head = ActorNetwork(100, 100, hidden_layers=(400,)).head
    weights, scale = head.weight.detach().flatten(), 0.3 / math.sqrt(400)
    assert not head.bias.any()
    assert abs(weights.mean()) < 4 * scale / math.sqrt(len(weights))
    assert 0.87 * scale < weights.std() < 1.01 * scale
    assert 1.98 * scale < weights.abs().max() <= 2 / 0.8796 * scale
    kurtosis = ((weights / weights.std()) ** 4).mean().item()
    assert kurtosis == pytest.approx(2.37, abs=0.06)  # uniform 1.8, normal cut at two deviations 2.37, normal 3


def test_a_truncated_normal_has_the_standard_deviation_that_is_asked_for():
    truncated_normal_(weights := torch.empty(400, 400), 0.3 / math.sqrt(400))
    assert weights.std().item() == pytest.approx(0.3 / math.sqrt(400), rel=0.02)


@pytest.mark.parametrize("hidden_layers", [(), (7,), (7, 6)], ids=str)
def test_the_actors_values(hidden_layers):
    actor = scramble(ActorNetwork(4, 2, hidden_layers, log_std_min=-0.2, log_std_max=0.25))
    features = x = torch.randn(200, 4)
    for layer in actor.hidden:
        if isinstance(layer, torch.nn.Linear):
            x = torch.clamp(x @ layer.weight.T + layer.bias, min=0)
    out = x @ actor.head.weight.T + actor.head.bias
    mean, log_std = actor(features)
    torch.testing.assert_close(mean, out[:, :2])
    expected = torch.where(out[:, 2:] < -0.2, -0.2, torch.where(out[:, 2:] > 0.25, 0.25, out[:, 2:]))
    torch.testing.assert_close(log_std, expected)
    assert (log_std == -0.2).any() and (log_std == 0.25).any() and (mean.abs() > 1).any()


def test_log_std_is_clipped_to_minus_20_and_2_unless_told():
    actor = ActorNetwork(1, 2, hidden_layers=())
    actor.head.bias.data[:] = torch.tensor([100.0, -100.0, 100.0, -100.0])
    mean, log_std = actor(torch.zeros(1))
    assert mean.tolist() == [100, -100]
    assert log_std.tolist() == [2, -20]


def test_crossed_clamps_are_refused():
    with pytest.raises(TaacError, match="log_std_min"):
        ActorNetwork(4, 2, log_std_min=1.0, log_std_max=1.0)


# --- Trajectory embedding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_size", [1, 4])
def test_initialisation_of_the_embedding(action_size):
    """Uniform with gain 1: a variance of 1/A, so bounds of +-sqrt(3/A)."""
    embedding = TrajectoryEmbedding(2000, [action_size] * 3)
    assert len(embedding.parts) == 3
    for layer in embedding.parts:
        assert layer.weight.shape == (2000, action_size)
        assert_uniform(layer.weight, math.sqrt(3 / action_size))
        assert not layer.bias.any()


@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_the_embeddings_values(num_parts, batch):
    """The features as they are, then each part through a layer of its own, at the features' width."""
    embedding = scramble(TrajectoryEmbedding(5, [2] * num_parts))
    features, parts = torch.randn(*batch, 5), [torch.randn(*batch, 2) for _ in range(num_parts)]
    out = embedding(features, Tau(*parts, *[()] * (3 - num_parts)))
    assert out.shape == (*batch, 5 * (1 + num_parts)) and embedding.output_size == 5 * (1 + num_parts)
    assert torch.equal(out[..., :5], features)
    for i, (layer, part) in enumerate(zip(embedding.parts, parts)):
        expected = part @ layer.weight.T + layer.bias
        torch.testing.assert_close(out[..., 5 * (i + 1) : 5 * (i + 2)], expected)


# --- Switches ---------------------------------------------------------------------------------------------------------


def test_switches_begin_close_to_a_fair_coin():
    network = SwitchNetwork(8, 3, (64, 64))
    assert not network.head.bias.any()
    assert network.head.weight.std().item() == pytest.approx(0.3 / math.sqrt(64), rel=0.2)
    assert torch.sigmoid(network(torch.randn(1000, 8))).sub(0.5).abs().mean() < 0.1


def test_layers_take_any_batch_and_copy_no_gradients_of_views():
    """ReLU in place on a view would make each gradient a zeroed buffer and three copies; values would be the same."""
    torch.manual_seed(0)
    layers = Mlp(3, (5, 4))
    plain = [module for module in layers if isinstance(module, torch.nn.Linear)]
    for shape in ((), (2,), (2, 6), (2, 0), (2, 3, 4)):
        x = torch.randn(*shape, 3, requires_grad=True)
        y = layers(x)
        assert y.shape == (*shape, 4)
        expected = torch.relu(plain[1](torch.relu(plain[0](x))))
        torch.testing.assert_close(y, expected)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(expected.square().sum(), x)[0])
        names, waiting = set(), [y.grad_fn]
        while waiting:
            node = waiting.pop()
            names.add(type(node).__name__)
            waiting += [parent for parent, _ in node.next_functions if parent is not None]
        assert not any("CopySlices" in name or "AsStrided" in name for name in names), names
    assert Mlp(3, ())(x).shape == x.shape


# --- Activations ------------------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "ReLU": lambda x: x.clamp(min=0), "ELU": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "LeakyReLU": lambda x: torch.where(x > 0, x, 0.01 * x), "Tanh": torch.tanh,
    "GELU": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), "SiLU": lambda x: x * torch.sigmoid(x),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_network_takes_an_activation(name):
    """By its formula; and ReLU where none is given."""
    activation, f = getattr(torch.nn, name), ACTIVATIONS[name]
    given = {"activation": activation}
    x, image = torch.randn(40, 5), torch.randn(6, 4, 4, 2)
    spec = bounded((4, 4, 2), -9.0, 9.0)
    for settings, fn in [(given, f)] + [({}, ACTIVATIONS["ReLU"])] * (name == "ReLU"):
        heads = [
            (ActorNetwork(5, 2, (7, 6), -99.0, 99.0, **settings), lambda y: torch.cat(y, -1)),
            (CategoricalActorNetwork(5, 3, (7, 6), **settings), lambda y: y),
            (SwitchNetwork(5, 2, (7, 6), **settings), lambda y: y),
        ]
        for network, flat in heads:
            h = x
            for layer in [module for module in scramble(network).hidden if isinstance(module, torch.nn.Linear)]:
                h = fn(h @ layer.weight.T + layer.bias)
            torch.testing.assert_close(flat(network(x)), h @ network.head.weight.T + network.head.bias)
        critics = scramble(CriticEnsemble(5, hidden_layers=(7, 6), **settings))
        for n in range(2):
            h = x
            for layer in critics.hidden:
                h = fn(h @ layer.weight[n] + layer.bias[n])
            torch.testing.assert_close(critics(x)[n], (h @ critics.last.weight[n] + critics.last.bias[n]).squeeze(-1))
        encoder = scramble(ImageEncoder(spec, (3,), (2,), (1,), output_size=5, **settings))
        h = fn(
            torch.nn.functional.conv2d(
                image.movedim(-1, 1), encoder.convolutions[0].weight, encoder.convolutions[0].bias
            )
        )
        h = fn(h.flatten(1) @ encoder.projection.weight.T + encoder.projection.bias)
        torch.testing.assert_close(encoder(image), h)


def test_an_activation_that_is_made_already_is_refused():
    for network in (ActorNetwork, CategoricalActorNetwork):
        with pytest.raises(TaacError, match=r"bind @Tanh, not @Tanh\(\)"):
            network(3, 2, activation=torch.nn.Tanh())
    with pytest.raises(TaacError, match=r"bind @ELU, not @ELU\(\)"):
        CriticEnsemble(3, activation=torch.nn.ELU())
