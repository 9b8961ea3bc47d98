"""Targets of several steps pay the entropy of every step that they go through, whatever the soft method.

The bonus of a step is read off where the method cannot hide it: the value of its state with `entropy_in_target` less that
without, from the same draws. The expected target is then the hard return of `reward + discount * bonus`, summed forward.
"""

from __future__ import annotations

import functools

import pytest
import torch

from taac import nest
from taac.algorithms import (
    DiscreteSacAlgorithm,
    MixedSacAlgorithm,
    RecurrentSacAlgorithm,
    SacAlgorithm,
    SacValueAlgorithm,
    SdarAlgorithm,
    TDLoss,
    TempoRLAlgorithm,
)
from taac.algorithms.temporl import TempoRLInfo
from taac.data_structures import Experience, StepType, TimeStep
from taac.networks import CriticEnsemble
from taac.networks.recurrent import GRUMemory, RecurrentEncoder
from taac.specs import bounded

OBSERVATION, ACTION = bounded((3,), -5.0, 5.0), bounded((2,), -1.0, 1.0)
CHOICE = bounded((), 0, 3, torch.int64)
AGENTS = bounded((2,), 0, 3, torch.int64)
T, B, BURN_IN, GAMMA = 7, 8, 2, 0.9
F, M, L = StepType.FIRST, StepType.MID, StepType.LAST

memory = functools.partial(RecurrentEncoder, memory_ctor=functools.partial(GRUMemory, output_size=5))
METHODS = {
    "sac": (SacAlgorithm, ACTION, {}),
    "sac_without_the_last_frame": (SacAlgorithm, ACTION, {"actor_on_last_frame": False}),
    "discrete": (DiscreteSacAlgorithm, CHOICE, {}),
    "discrete_agents": (DiscreteSacAlgorithm, AGENTS, {}),
    "mixed": (MixedSacAlgorithm, (CHOICE, ACTION), {}),
    "recurrent": (RecurrentSacAlgorithm, ACTION, {"burn_in": BURN_IN, "memory_ctor": memory}),
    "value": (SacValueAlgorithm, ACTION, {"reward_scale": 2.0}),
    "value_without_the_last_frame": (SacValueAlgorithm, ACTION, {"reward_scale": 2.0, "actor_on_last_frame": False}),
    "sdar": (SdarAlgorithm, ACTION, {}),
    "temporl": (TempoRLAlgorithm, ACTION, {}),
}  # fmt: skip
PARTS = {"scalar": {}, "vector": {"reward_dim": 2, "reward_weights": (1.0, -0.5)}}
CASES = [(m, p) for m in METHODS for p in PARTS if (m, p) != ("discrete_agents", "vector")]


def built(method, entropy_in_target, td_loss, **options):
    """The same networks whatever the options, with critics that matter."""
    torch.manual_seed(5)
    ctor, action_spec, own = METHODS[method]
    critic = functools.partial(CriticEnsemble, hidden_layers=(6,), last_init_range=0.5)
    algorithm = ctor(
        OBSERVATION if method != "discrete_agents" else bounded((2, 3), -5.0, 5.0), action_spec, critic_ctor=critic,
        td_loss=td_loss, entropy_in_target=entropy_in_target, **own, **options,
    )  # fmt: skip
    return algorithm


def replayed(method, parts=None):
    generator = torch.Generator().manual_seed(3)
    letters = ["FMMMMMM", "MMLFMMM", "MMMMMML", "FMLFMLF", "LFMMMLF", "MFMMMMM", "FMMMMLF", "MMMMLFM"]
    step_type = torch.tensor([[{"F": F, "M": M, "L": L}[w[t]] for w in letters] for t in range(T)], dtype=torch.uint8)
    discount = torch.ones(T, B)
    discount[step_type == L] = (torch.arange(int((step_type == L).sum())) % 2).float()  # terminated and truncated
    reward = torch.randn(T, B, *([parts] if parts else []), generator=generator)
    vector = torch.rand(T, B, 2, generator=generator) * 2 - 1
    choice = torch.randint(4, (T, B), generator=generator)
    action = {"discrete": choice, "mixed": (choice, vector),
              "discrete_agents": torch.randint(4, (T, B, 2), generator=generator)}.get(method, vector)  # fmt: skip
    shape = (T, B, 2, 3) if method == "discrete_agents" else (T, B, 3)
    observation = torch.randn(shape, generator=generator)
    return TimeStep(step_type, reward, discount, observation, action, torch.ones(T, B, dtype=torch.int16))


def targets(algorithm, method, time_step):
    """Targets `[T-1, B(, D)]`, values and the sampled log-probabilities of one update, from the same draws each time."""
    info = {"temporl": TempoRLInfo(torch.ones(T, B, dtype=torch.bool))}.get(method, ())
    if method == "recurrent":
        info = nest.map_structure(lambda x: x.expand(T, *x.shape), algorithm.initial_state(B))
    seen = []
    error = algorithm.td_loss.error
    algorithm.td_loss.error = lambda q, target: (seen.append(target), error(q, target))[1]
    torch.manual_seed(11)
    experience = Experience(time_step, info)
    train_info = algorithm.train_step(experience)
    algorithm.calc_loss(experience, train_info)
    train_info = getattr(train_info, "sac", train_info)
    return seen[0], train_info.value, train_info.log_pi


def hard_return(reward, discount, value, step_type):
    """Forward sums to LAST or the segment's end, `[T-1, B(, D)]`."""
    returns = torch.zeros_like(value[1:])
    for t in range(len(value) - 1):
        for b in range(value.shape[1]):
            weight, k = 1.0, t
            while True:
                k += 1
                returns[t, b] += weight * reward[k, b]
                weight = weight * discount[k, b].item()
                if k == len(value) - 1 or step_type[k, b] == L:
                    break
            returns[t, b] += weight * value[k, b]
    return returns


@pytest.mark.parametrize("method, parts", CASES)
def test_every_step_pays_its_entropy(method, parts):
    options = PARTS[parts]
    time_step = replayed(method, options.get("reward_dim"))
    soft = built(method, True, TDLoss(GAMMA), **options)
    target, soft_value, log_pi = targets(soft, method, time_step)
    _, hard_value, _ = targets(built(method, False, TDLoss(GAMMA), **options), method, time_step)
    if method.startswith("value"):  # V' is learnt: it contains a bonus that no switch takes away
        weights = soft.weights / soft.weights.square().sum() if options else torch.ones(())
        bonus = torch.zeros_like(soft_value)
        bonus[: len(log_pi)] = -soft.temperature.alpha() * (log_pi.unsqueeze(-1) if options else log_pi) * weights
        hard_value = soft_value - bonus
    else:
        bonus = soft_value - hard_value
    assert bonus[1:-1].abs().mean() > 0.1

    if method == "recurrent":
        time_step = nest.index(time_step, slice(BURN_IN, None))
    reward, discount = time_step.reward * getattr(soft, "reward_scale", 1.0), GAMMA * time_step.discount
    if reward.dim() < bonus.dim():
        reward = reward.unsqueeze(-1)
    wide = discount.unsqueeze(-1) if bonus.dim() == 3 else discount
    expected = hard_return(reward + wide * bonus, discount, hard_value, time_step.step_type)
    acted = time_step.step_type[:-1] != L
    torch.testing.assert_close(target[acted], expected[acted], rtol=1e-4, atol=1e-4)
