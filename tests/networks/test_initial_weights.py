"""The settings of initial weights: torch's own, and ranges of last layers."""

import math

import pytest
import torch

from taac.errors import TaacError
from taac.networks import ActorNetwork, CategoricalActorNetwork, CriticEnsemble, SwitchNetwork
from tests.networks.uniform import assert_uniform

HEADS = [
    (lambda **ranges: ActorNetwork(20, 40, (50,), **ranges).head, "head"),
    (lambda **ranges: CategoricalActorNetwork(20, 80, (50,), **ranges).head, "head"),
    (lambda **ranges: SwitchNetwork(20, 80, (50,), **ranges).head, "head"),
    (lambda **ranges: CriticEnsemble(20, hidden_layers=(50,), num_choices=80, **ranges).last, "last"),
]


@pytest.mark.parametrize("make, name", HEADS)
def test_weights_and_biases_of_last_layers_have_ranges_of_their_own(make, name):
    plain = make()
    assert not plain.bias.any()
    layer = make(**{f"{name}_init_range": 0.02, f"{name}_bias_init_range": 0.5})
    assert_uniform(layer.weight, 0.02)
    assert 0.4 < layer.bias.abs().max() <= 0.5 and (layer.bias > 0).any() and (layer.bias < 0).any()
    torch.manual_seed(0)
    weights = make(**{f"{name}_init_range": 0.02}).weight
    torch.manual_seed(0)
    biased = make(**{f"{name}_init_range": 0.02, f"{name}_bias_init_range": 0.5})
    assert torch.equal(biased.weight, weights), "the biases are drawn after the weights"
    for which in (f"{name}_init_range", f"{name}_bias_init_range"):
        for value in (-0.1, float("nan"), float("inf")):
            with pytest.raises(TaacError, match="must be 0 or more, got"):
                make(**{which: value})


NETWORKS = {
    "actor": (lambda **settings: ActorNetwork(50, 40, (400, 200), **settings), "head"),
    "categorical": (lambda **settings: CategoricalActorNetwork(50, 80, (400, 200), **settings), "head"),
    "switch": (lambda **settings: SwitchNetwork(50, 80, (400, 200), **settings), "head"),
    "critics": (lambda **settings: CriticEnsemble(50, 2, 3, hidden_layers=(400, 200), num_choices=40, **settings), "last"),
}


@pytest.mark.parametrize("make, name", NETWORKS.values(), ids=NETWORKS)
def test_initial_weights_of_torch_are_those_of_torchs_linear_layers(make, name):
    layers = [m for m in make(initial_weights="torch").modules() if getattr(m, "weight", None) is not None]
    assert len(layers) == 3
    for layer, fan_in in zip(layers, (50, 400, 200)):
        torchs = torch.nn.Linear(fan_in, 80)
        for own, other in ((layer.weight, torchs.weight), (layer.bias, torchs.bias)):
            bound = 1 / math.sqrt(fan_in)
            assert other.abs().max() <= bound and own.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.25)
        assert_uniform(layer.weight, bound)
        assert 0.9 * bound < layer.bias.abs().max() <= bound
    set_apart = getattr(make(initial_weights="torch", **{f"{name}_init_range": 0.02, f"{name}_bias_init_range": 0.0}), name)
    assert_uniform(set_apart.weight, 0.02)
    assert not set_apart.bias.any()


@pytest.mark.parametrize("make, name", NETWORKS.values(), ids=NETWORKS)
def test_xavier_weights_are_those_of_torchs_xavier_uniform(make, name):
    layers = [m for m in make(initial_weights="xavier").modules() if getattr(m, "weight", None) is not None]
    for layer, fan_in, fan_out in zip(layers, (50, 400, 200), (400, 200, 40 if name == "last" else 80), strict=True):
        torchs = torch.nn.init.xavier_uniform_(torch.empty(fan_out, fan_in))
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert_uniform(layer.weight, bound)
        assert torchs.abs().max().item() == pytest.approx(bound, rel=0.01) and not layer.bias.any()
    assert_uniform(getattr(make(initial_weights="xavier", **{f"{name}_init_range": 0.02}), name).weight, 0.02)


@pytest.mark.parametrize("make, name", NETWORKS.values(), ids=NETWORKS)
def test_unknown_initial_weights_are_refused(make, name):
    with pytest.raises(TaacError, match="initial_weights must be 'published', 'torch' or 'xavier', got 'keras'"):
        make(initial_weights="keras")
