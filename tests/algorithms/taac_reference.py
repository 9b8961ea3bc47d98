"""TAAC for tests: trajectories on lists of parts, and one update as a slow reference, one frame at a time."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, TaacAlgorithm, TAACTDLoss, TDLoss, Temperature
from taac.algorithms.taac import TaacInfo, TaacState
from taac.algorithms.trajectories import ConstantTrajectory, LinearTrajectory, QuadraticTrajectory, Tau
from taac.data_structures import Experience, StepType
from taac.networks import ActorNetwork, CriticEnsemble
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, BATCH, IS_FIRST, NAN, NUM_ACTIONS, STEPS, VECTOR_SPEC

TRAJECTORIES = {
    "constant": ConstantTrajectory(),
    "linear": LinearTrajectory(),
    "quadratic": QuadraticTrajectory(),
    "linear-direct": LinearTrajectory(inverse_mode=False),
    "quadratic-direct": QuadraticTrajectory(inverse_mode=False),
}
NUM_PARTS = {"constant": 1, "linear": 2, "quadratic": 3, "linear-direct": 2, "quadratic-direct": 3}
TD_LOSSES = {"compare-through": TAACTDLoss, "one-step": OneStepTDLoss, "n-step": TDLoss}
ACTORS = ("actor.", "tau_embedding.")

# --- docs/equations.md#trajectories, on lists of parts ----------------------------------------------------------------


def clamp(x):
    return torch.minimum(torch.maximum(x, -torch.ones_like(x)), torch.ones_like(x))


def advance(kind, tau):
    if kind == "constant":
        return tau
    if kind.startswith("linear"):
        a, v = tau
        return [clamp(a + 2 * v), v]
    a, v, u = tau
    v = clamp(v + 2 * u)
    return [clamp(a + 2 * v), v, u]


def start(kind, a_hat, tau):
    if kind == "constant":
        return [a_hat]
    v = (a_hat - tau[0]) / 2
    return {
        "linear": lambda: [a_hat, v],
        "quadratic": lambda: [a_hat, v, v / 2],
        "linear-direct": lambda: advance("linear", [tau[0], a_hat]),
        "quadratic-direct": lambda: advance("quadratic", [tau[0], torch.zeros_like(a_hat), a_hat]),
    }[kind]()


def record(parts):
    """The package's record of a trajectory's parts."""
    return Tau(*parts, *[()] * (3 - len(parts)))


# --- One update of TAAC -----------------------------------------------------------------------------------------------

TAAC = {
    "kind": "constant", "num_critics": 2, "spec": VECTOR_SPEC, "reward_weights": None, "gamma": 0.875,
    "ignore_done": False, "td": "compare-through", "clipping": None, "dqda_clipping": None, "tuning": "log",
    "action_min_prob": 0.1, "beta_min_prob": 0.05, "price": 0.0, "rate": None,
    "exact": False,
}  # fmt: skip


def taac(config):
    c = SimpleNamespace(**config)
    return reference.scrambled(
        TaacAlgorithm(
            c.spec, ACTION_SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, trajectory=TRAJECTORIES[c.kind],
            td_loss=TD_LOSSES[c.td](c.gamma, c.ignore_done),
            action_min_prob=c.action_min_prob, beta_min_prob=c.beta_min_prob,
            temperature_ctor=functools.partial(Temperature, initial_value=0.3, tuning=c.tuning),
            b1_advantage_clipping=c.clipping, dqda_clipping=c.dqda_clipping, decision_price=c.price,
            target_decision_rate=c.rate, exact_compare_through=c.exact, **reference.networks(c.num_critics),
        )
    )  # fmt: skip


def experience_of(config):
    """Random frames, with trajectories before each frame (at rest at FIRST) and executed switches."""
    reward_weights = config["reward_weights"]
    time_step = reference.replayed(config["spec"], len(reward_weights) if reward_weights else None)
    time_step = time_step._replace(prev_action=torch.full_like(time_step.prev_action, NAN))  # TAAC has no use for it
    parts = []
    for _ in range(NUM_PARTS[config["kind"]]):
        part = torch.rand(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64) * 2 - 1
        part[IS_FIRST] = 0.0
        parts.append(part)
    return Experience(time_step, TaacInfo(record(parts), torch.rand(STEPS, BATCH) < 0.3))


def taac_reference(w, config, experience, noise, uniform):
    """docs/equations.md#learning-in-taac, one frame at a time: the loss `[T][B]`, beta_1 and b | b~ of each frame."""
    c = SimpleNamespace(**config)
    time_step, (tau_prev, b_executed) = experience
    replayed_parts = [p for p in tau_prev if not isinstance(p, tuple)]
    alpha_a, scale_a = reference.temperature(w, "action_temperature.value", c.tuning)
    alpha_b, scale_b = reference.temperature(w, "beta_temperature.value", c.tuning)
    p = c.beta_min_prob
    target_a = NUM_ACTIONS * math.log(2 * c.action_min_prob)
    target_b = -p * math.log(p) - (1 - p) * math.log(1 - p)
    gamma = reference.gammas(c)
    low, high = c.clipping or (None, None)
    cost, share, scale_c = reference.price(w, config)
    loss, value, switch, betas, paid = ([[None] * BATCH for _ in range(STEPS)] for _ in range(5))
    for t in range(STEPS):
        for b in range(BATCH):
            obs = reference.encode(w, "encoder", time_step.observation, t, b).detach()
            target_obs = reference.encode(w, "target_encoder", time_step.observation, t, b).detach()
            prev = [part[t, b] for part in replayed_parts]
            embedded = [
                w[f"tau_embedding.parts.{i}.weight"] @ part + w[f"tau_embedding.parts.{i}.bias"]
                for i, part in enumerate(prev)
            ]
            a_hat, log_pi = reference.act(w, torch.cat([obs, *embedded]), noise[t, b])

            def q_of(tau, name="critics", obs=obs):
                return reference.worst(reference.critics(w, name, obs, *tau), c.reward_weights)

            def q_1_of(action, prev=prev, q_of=q_of):
                return reference.total(q_of(start(c.kind, action, prev)), c.reward_weights)

            q_0, q_1 = reference.total(q_of(advance(c.kind, prev)), c.reward_weights).item(), q_1_of(a_hat).item()
            advantage = q_1 - q_0
            advantage = advantage if low is None else max(advantage, low)
            advantage = (advantage if high is None else min(advantage, high)) - cost
            beta_1 = 1 / (1 + math.exp(-advantage / alpha_b))
            beta_0 = 1 - beta_1

            dq_da = reference.numeric_gradient(q_1_of, a_hat, c.dqda_clipping)
            frame_loss = 0.5 * ((a_hat - (a_hat + beta_1 * dq_da).detach()) ** 2).sum() + alpha_a * log_pi
            if scale_a is not None:
                frame_loss = frame_loss + scale_a * (-log_pi.item() - target_a)
                entropy_b = -beta_0 * math.log(beta_0) - beta_1 * math.log(beta_1)
                frame_loss = frame_loss + scale_b * (entropy_b - target_b)
            if scale_c is not None:
                frame_loss = frame_loss + scale_c * (c.rate - reference.RATE)
            loss[t][b] = frame_loss
            q_new = q_of([x.detach() for x in start(c.kind, a_hat, prev)], "target_critics", target_obs)
            q_old = q_of(advance(c.kind, prev), "target_critics", target_obs)
            sampled = float(uniform[t, b]) < beta_1
            weight = beta_1
            if c.exact and not (b_executed[t, b] or time_step.step_type[t, b] == StepType.LAST or t == STEPS - 1):
                weight = float(sampled)
            value[t][b] = ((1 - weight) * q_old + weight * (q_new - share)).detach()
            paid[t][b] = bool(b_executed[t, b]) * share
            switch[t][b] = bool(b_executed[t, b]) or sampled
            betas[t][b] = beta_1

    never, always = [[False] * BATCH] * STEPS, [[True] * BATCH] * STEPS
    stop = {"compare-through": switch, "one-step": always, "n-step": never}[c.td]
    predicted = reference.at_executed(w, time_step, *replayed_parts)
    loss = reference.with_critics(loss, time_step, value, gamma, predicted, c.ignore_done, stop, paid)
    return loss, torch.tensor(betas, dtype=torch.float64), torch.tensor(switch)


# --- Acting: a small TAAC in float32 ----------------------------------------------------------------------------------

# Clipping the advantage to one number sets beta: always, never, or with probability p at temperature 1.
ALWAYS, NEVER, TIE = (1e3, 1e3), (-1e3, -1e3), (0.0, 0.0)


def with_probability(p):
    return (math.log(p / (1 - p)),) * 2


def small(kind="constant", clipping=None, **kwargs):
    algorithm = TaacAlgorithm(
        VECTOR_SPEC, ACTION_SPEC, trajectory=TRAJECTORIES[kind], b1_advantage_clipping=clipping,
        actor_ctor=functools.partial(ActorNetwork, hidden_layers=(8,)),
        critic_ctor=functools.partial(CriticEnsemble, hidden_layers=(8,)), **kwargs,
    )  # fmt: skip
    for parameter in [*algorithm.actor.parameters(), *algorithm.tau_embedding.parameters()]:
        nn.init.normal_(parameter, 0.0, 0.4)
    return algorithm


def state_of(kind, batch, repeats=1):
    """A state in the midst of an episode."""
    parts = [torch.rand(batch, NUM_ACTIONS) * 2 - 1 for _ in range(NUM_PARTS[kind])]
    return TaacState(record(parts), torch.full((batch,), repeats))
