"""Compares the gradients of FlashSAC's critics and actor with those of its published code, at the same weights, batch and noise.

    git clone https://github.com/Holiday-Robot/FlashSAC ../FlashSAC
    python -m experiments.flash_gradients --code ../FlashSAC

Prints the largest difference, as a share of the largest gradient of its parameter. SAC with `gin/backbones/flash.gin` takes some
updates on HalfCheetah-v5 first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from experiments.benchmarks import ours
from experiments.flash_control import published

UPDATES, BATCH = 20, 64
Pair = tuple[str, Tensor, Tensor, Callable[[Tensor], Tensor]]  # name, theirs, ours, and what gives ours their shape


def pairs(net: nn.Module, body: Any, network: int | None) -> Iterator[Pair]:
    """Yields the parameters and statistics of a published network and of ours; `network`: of a single one, its number."""

    def chosen(shaped: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return shaped if network is None else lambda x: shaped(x)[network]

    vector, matrix = chosen(lambda x: x.squeeze(1)), chosen(lambda x: x.transpose(-1, -2))
    modules = [("norm_input", net.embedder.norm, body.norm_input), ("embed", net.embedder.w, body.embed)]
    for i, (theirs, own) in enumerate(zip(net.encoder, body.blocks, strict=True)):
        wide, first, _, narrow, second, _ = own.layers
        modules += [(f"wide {i}", theirs.w1, wide), (f"first norm {i}", theirs.norm1, first)]
        modules += [(f"narrow {i}", theirs.w2, narrow), (f"second norm {i}", theirs.norm2, second)]
    for name, theirs, own in [*modules, ("norm", net.post_norm, body.norm)]:
        if hasattr(own, "scale"):
            yield f"{name}.scale", theirs.weight, own.scale, vector
        else:
            yield f"{name}.weight", theirs.w.weight if hasattr(theirs, "w") else theirs.weight, own.weight, matrix
        if hasattr(own, "mean"):
            yield f"{name}.bias", theirs.bias, own.bias, vector
            yield f"{name}.mean", theirs.running_mean, own.mean, vector
            yield f"{name}.variance", theirs.running_var, own.variance, vector


def critics_pairs(net: Any, critics: Any) -> Iterator[Pair]:
    yield from pairs(net, critics.body, None)
    yield "head.weight", net.predictor.w.weight, critics.last.weight, lambda x: x.transpose(-1, -2)
    yield "head.bias", net.predictor.bias, critics.last.bias, lambda x: x.squeeze(1)


def actor_pairs(net: Any, actor: Any, size: int) -> Iterator[Pair]:
    yield from pairs(net, actor.hidden, 0)
    of_head = {"mean": (net.predictor.mean_w.w.weight, net.predictor.mean_bias, slice(size)),
               "std": (net.predictor.std_w.w.weight, net.predictor.std_bias, slice(size, None))}  # fmt: skip
    for name, (weight, bias, part) in of_head.items():
        yield f"{name}.weight", weight, actor.head.weight, lambda x, part=part: x[0].T[part]
        yield f"{name}.bias", bias, actor.head.bias, lambda x, part=part: x[0, 0, part]


class Network:
    """A published network whose optimizer does nothing."""

    def __init__(self, network: nn.Module):
        self.network, self.scheduler, self.optimizer = network, None, mock.Mock()

    def __call__(self, **given: Any) -> Any:
        return self.network(**given)

    def normalize_parameters(self) -> None:
        pass


def of_weights(net: Any, found: Callable[[Any], Iterator[Pair]]) -> Network:
    for _, theirs, own, shaped in found(net):
        theirs.data = shaped(own.data).clone()
    return Network(net)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--code", type=Path, required=True, help="clone of the published code")
    published(parser.parse_args().code)
    from flash_rl.agents.flashSAC import network, update

    params = ["initial_collect_steps = 1000", "ActorCriticAlgorithm.policy_delay = 1"]
    trainer = ours.build({"method": "sac", "files": ["gin/backbones/flash.gin"]}, params)
    while trainer.learner.num_updates < UPDATES:
        trainer.collect()
        trainer.learn()
    agent, algorithm = trainer.agent, trainer.agent.algorithm
    batch = agent.prepare(trainer.replay_buffer.sample(BATCH, 2))
    step, body, actor = batch.time_step, algorithm.critics.body, algorithm.actor
    step.step_type[:] = 1  # all are in the middle of an episode
    (observation, following), action = step.observation, step.prev_action[1]
    size, width, inputs = action.shape[-1], body.output_size, observation.shape[-1]

    def critics_of(own: Any) -> Network:
        net = network.FlashSACDoubleCritic(len(body.blocks), inputs + size, width, 101, -5.0, 5.0)
        return of_weights(net, lambda net: critics_pairs(net, own))

    critics, for_actor, targets = (critics_of(x) for x in (algorithm.critics, algorithm.critics, algorithm.target_critics))
    torch.manual_seed(0)
    with agent.learning():
        info = algorithm.train_step(batch)
    loss = algorithm.calc_loss(batch, info).loss
    found = torch.autograd.grad(loss.sum(), list(algorithm.critics.parameters()), retain_graph=True)
    of_actor = torch.autograd.grad(loss.sum(), list(actor.parameters()))
    gradients = dict(zip([*algorithm.critics.parameters(), *actor.parameters()], [*found, *of_actor], strict=True))
    torch.manual_seed(0)
    noises = [torch.randn(BATCH, size).repeat(2, 1), torch.randn(BATCH, size)]  # of the actor's loss, and of the next action

    net = network.FlashSACActor(len(actor.hidden.blocks), inputs, actor.hidden.output_size, size)
    acting = of_weights(net, lambda net: actor_pairs(net, actor, size))
    given = {
        "observation": observation, "actor_observation": observation, "next_observation": following, "action": action,
        "actor_next_observation": following, "reward": step.reward[1], "terminated": 1.0 - step.discount[1],
    }  # fmt: skip
    alpha, cpu = algorithm.temperature.alpha().detach(), torch.device("cpu")
    with mock.patch("torch.distributions.normal._standard_normal", lambda *_, **__: noises.pop()):
        update.update_critic(acting, critics, targets, lambda: alpha, given, -5.0, 5.0, 101, algorithm.gamma, 1, cpu, False, None)
        update.update_actor(acting, for_actor, lambda: alpha, given, 0.0, cpu, False, None)
    trainer.close()
    parts = {"critics": (critics_pairs(critics.network, algorithm.critics), 2), "actor": (actor_pairs(net, actor, size), 1)}
    for part, (of_part, networks) in parts.items():
        errors = {}
        for name, theirs, own, shaped in of_part:
            if own in gradients:
                expected = theirs.grad * BATCH * networks  # theirs is a mean over critics and batch, ours a sum
                errors[name] = float((shaped(gradients[own]) - expected).abs().max() / expected.abs().max())
        worst = max(errors, key=lambda name: errors[name])
        print(f"{part}: {len(errors)} parameters; the largest difference is {errors[worst]:.0e}, of {worst}")


if __name__ == "__main__":
    main()
