"""Automatic mixed precision rounds the products of hidden layers; what is decided and learnt from stays in float32."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from taac import nest
from taac.learning.side_losses import cloning_loss
from taac.machine import amx
from taac.machine.compiled import CompiledFunction
from taac.networks import ActorNetwork, CategoricalActorNetwork, CriticEnsemble, SwitchNetwork
from taac.networks.bodies import LayerNorm, RMSNorm
from taac.networks.prefix_critics import PrefixCritics
from taac.networks.recurrent import GRUMemory, LSTMMemory
from tests.training.runs import build

BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16}
TWO = ["create_agent.reward_signals = (@RND,)", "RND.strength = 1.0"]


def both(function):
    """The results in float32, and under automatic mixed precision."""
    plain = function()
    with torch.autocast(**BFLOAT16):
        return plain, function()


@pytest.mark.parametrize(
    "network",
    [
        lambda: CriticEnsemble(6, hidden_layers=(), last_init_range=9.0),
        lambda: CriticEnsemble(6, 2, hidden_layers=(), num_choices=3, last_init_range=9.0),
        lambda: ActorNetwork(6, 2, hidden_layers=()),
        lambda: CategoricalActorNetwork(6, 4, hidden_layers=()),
        lambda: SwitchNetwork(6, 2, hidden_layers=()),
    ],
    ids=["critics", "critics of two rewards and three choices", "actor", "categorical actor", "switch"],
)
def test_last_layers_are_in_float32(network):
    """Without hidden layers, nothing at all is rounded."""
    tested, x = network(), torch.randn(64, 6) * 10
    plain, mixed = both(lambda: tested(x))
    for one, other in zip(nest.flatten(plain), nest.flatten(mixed), strict=True):
        assert other.dtype == torch.float32 and torch.equal(one, other)


def test_hidden_layers_are_rounded():
    tested, x = CriticEnsemble(6, hidden_layers=(32,), last_init_range=9.0), torch.randn(64, 6) * 10
    plain, mixed = both(lambda: tested(x))
    assert 1e-4 < (plain - mixed).norm() / plain.norm() < 1e-2


def test_cloning_is_learnt_with_the_products_of_the_learner():
    seen = lambda demonstrated: torch.full((2, 2), float(torch.is_autocast_enabled("cpu")))  # noqa: E731
    algorithm = SimpleNamespace(cloning_loss=seen)
    agent = SimpleNamespace(algorithm=algorithm, device=torch.device("cpu"), learning=contextlib.nullcontext)
    assert [cloning_loss(agent, None, products).item() for products in ("plain", "bfloat16")] == [0, 1]


@pytest.mark.parametrize("kind", [GRUMemory, LSTMMemory])
def test_memories_are_in_float32(kind):
    """Rounded, a memory could not change by less than a 256th of itself a step."""
    memory = kind(3, 5)
    x = torch.randn(40, 8, 3)

    def remembered():
        state = memory.initial_state(8)
        for frame in x:
            output, state = memory(frame, state)
        return output, state

    plain, mixed = both(remembered)
    for one, other in zip(nest.flatten(plain), nest.flatten(mixed), strict=True):
        assert other.dtype == torch.float32 and torch.equal(one, other)


def test_the_state_of_prefix_critics_is_in_float32():
    tested, seen = PrefixCritics(6 + 3 * 2 + 1, hidden_layers=(16,), action_sizes=(2, 4, 1)), []
    tested.of_state.register_forward_hook(lambda module, given, result: seen.append((given[0].dtype, result.dtype)))
    with torch.autocast(**BFLOAT16):
        tested(torch.randn(5, 6), torch.rand(5, 2), torch.rand(5, 4), torch.ones(5, 1))
    assert seen == [(torch.float32, torch.bfloat16)] * 3


def test_norms_are_in_float32():
    x = torch.randn(2, 64, 16).bfloat16()
    for norm in (RMSNorm(2, 16), LayerNorm(2, 16)):
        assert norm(x).dtype == torch.float32 and torch.equal(norm(x), norm(x.float()))


@pytest.mark.parametrize("path, params", [("plain", TWO), ("traced", [])], ids=["two rewards", "one reward, traced"])
def test_beta_and_targets_at_values_of_100(params, path, monkeypatch, traced_only):
    """Multiples of 0.5 are all that bfloat16 has there, and beta, a softmax of differences, would change by 0.1 and more."""
    trainer = build("hidden_layers = (64, 64)", *params)
    while trainer.env_steps < 300:
        trainer.collect()
    trainer.close()
    algorithm = trainer.agent.algorithm
    for critics in (algorithm.critics, algorithm.target_critics):
        critics.last.bias.data.fill_(100.0 / (algorithm.weights.numel() or 1))
        critics.last.weight.data.uniform_(-0.5, 0.5)
    experience, products = trainer.agent.prepare(trainer.replay_buffer.sample(256, 4)), []

    def mixed(experience):
        torch.manual_seed(0)
        with torch.autocast(**BFLOAT16):
            return algorithm.train_step(experience)._replace(actor_loss=())

    def kernel(x, y, parts):
        """What the kernel of the package computes, on any processor."""
        products.append(x.dtype)
        return (x.float() @ y.float()).bfloat16()

    torch.manual_seed(0)
    plain = algorithm.train_step(experience)
    if path == "plain":
        found = mixed(experience)
    else:
        monkeypatch.setattr(amx, "amx_product", kernel)
        found = CompiledFunction(mixed, algorithm, parts=1)(experience)
        assert len(products) > 10 and set(products) == {torch.bfloat16}
    value = algorithm.weighted(plain.q)
    assert 95 < value.mean() < 105 and plain.beta[..., 0].std() > 0.02
    assert not torch.equal(plain.beta, found.beta)
    assert (plain.beta - found.beta).abs().max() < 0.01
    for name in ("q", "value", "log_pi"):
        assert (getattr(plain, name) - getattr(found, name)).abs().max() < 0.03, name
