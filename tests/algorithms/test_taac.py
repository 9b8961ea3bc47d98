"""TAAC: one whole update against a slow reference, acting, identities with SAC, targets, refusals."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import OneStepTDLoss, SacAlgorithm, TaacAlgorithm, TAACTDLoss, TDLoss, Temperature
from taac.algorithms.algorithm import reset_where_first
from taac.algorithms.taac import TaacInfo, TaacState
from taac.algorithms.trajectories import ConstantTrajectory, LinearTrajectory, QuadraticTrajectory, Tau
from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble
from tests.algorithms.reference import (
    ACTION_SPEC,
    BAD_ACTION_SPECS,
    BATCH,
    IMAGE_SPEC,
    IS_FIRST,
    IS_LAST,
    NAN,
    NUM_ACTIONS,
    STEPS,
    VECTOR_SPEC,
    F,
    L,
    M,
    act,
    check_actor_alone,
    check_groups,
    check_targets_move,
    check_uniform,
    check_update,
    critics,
    encode,
    forward_return,
    frame,
    networks,
    numeric_gradient,
    record_draws,
    replayed,
    scrambled,
    temperature,
    total,
    weights_of,
    worst,
)

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
    "action_min_prob": 0.1, "beta_min_prob": 0.05,
}  # fmt: skip


def taac(config):
    c = SimpleNamespace(**config)
    return scrambled(
        TaacAlgorithm(
            c.spec, ACTION_SPEC, reward_dim=len(c.reward_weights) if c.reward_weights else None,
            reward_weights=c.reward_weights, trajectory=TRAJECTORIES[c.kind],
            td_loss=TD_LOSSES[c.td](c.gamma, c.ignore_done),
            action_min_prob=c.action_min_prob, beta_min_prob=c.beta_min_prob,
            temperature_ctor=functools.partial(Temperature, initial_value=0.3, tuning=c.tuning),
            b1_advantage_clipping=c.clipping, dqda_clipping=c.dqda_clipping, **networks(c.num_critics),
        )
    )  # fmt: skip


def experience_of(config):
    """Random frames, with trajectories before each frame (at rest at FIRST) and executed switches."""
    reward_weights = config["reward_weights"]
    time_step = replayed(config["spec"], len(reward_weights) if reward_weights else None)
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
    time_step, (tau_prev, b_executed, _) = experience
    replayed_parts = [p for p in tau_prev if not isinstance(p, tuple)]
    alpha_a, scale_a = temperature(w, "action_temperature.value", c.tuning)
    alpha_b, scale_b = temperature(w, "beta_temperature.value", c.tuning)
    p = c.beta_min_prob
    target_a = NUM_ACTIONS * math.log(2 * c.action_min_prob)
    target_b = -p * math.log(p) - (1 - p) * math.log(1 - p)
    gamma = c.gamma if isinstance(c.gamma, tuple) else (c.gamma,) * len(c.reward_weights or [1])
    low, high = c.clipping or (None, None)
    loss, value, switch, betas = ([[None] * BATCH for _ in range(STEPS)] for _ in range(4))
    for t in range(STEPS):
        for b in range(BATCH):
            obs = encode(w, "encoder", time_step.observation, t, b).detach()
            target_obs = encode(w, "target_encoder", time_step.observation, t, b).detach()
            prev = [part[t, b] for part in replayed_parts]
            embedded = [
                w[f"tau_embedding.parts.{i}.weight"] @ part + w[f"tau_embedding.parts.{i}.bias"]
                for i, part in enumerate(prev)
            ]
            a_hat, log_pi = act(w, torch.cat([obs, *embedded]), noise[t, b])

            def q_of(tau, name="critics", obs=obs):
                return worst(critics(w, name, obs, *tau), c.reward_weights)

            def q_1_of(action, prev=prev, q_of=q_of):
                return total(q_of(start(c.kind, action, prev)), c.reward_weights)

            q_0, q_1 = total(q_of(advance(c.kind, prev)), c.reward_weights).item(), q_1_of(a_hat).item()
            advantage = q_1 - q_0
            advantage = advantage if low is None else max(advantage, low)
            advantage = advantage if high is None else min(advantage, high)
            beta_1 = 1 / (1 + math.exp(-advantage / alpha_b))
            beta_0 = 1 - beta_1

            dq_da = numeric_gradient(q_1_of, a_hat)
            if c.dqda_clipping is not None:
                dq_da = dq_da.clamp(-c.dqda_clipping, c.dqda_clipping)
            frame_loss = 0.5 * ((a_hat - (a_hat + beta_1 * dq_da).detach()) ** 2).sum() + alpha_a * log_pi
            if scale_a is not None:
                frame_loss = frame_loss + scale_a * (-log_pi.item() - target_a)
                entropy_b = -beta_0 * math.log(beta_0) - beta_1 * math.log(beta_1)
                frame_loss = frame_loss + scale_b * (entropy_b - target_b)
            loss[t][b] = frame_loss
            q_new = q_of([x.detach() for x in start(c.kind, a_hat, prev)], "target_critics", target_obs)
            q_old = q_of(advance(c.kind, prev), "target_critics", target_obs)
            value[t][b] = (beta_0 * q_old + beta_1 * q_new).detach()
            switch[t][b] = bool(b_executed[t, b]) or float(uniform[t, b]) < beta_1
            betas[t][b] = beta_1

    never, always = [[False] * BATCH] * STEPS, [[True] * BATCH] * STEPS
    stop = {"compare-through": switch, "one-step": always, "n-step": never}[c.td]
    for t in range(STEPS - 1):
        for b in range(BATCH):
            target = forward_return(time_step, value, stop, t, b, gamma, c.ignore_done)
            obs = encode(w, "encoder", time_step.observation, t, b)
            executed = [part[t + 1, b] for part in replayed_parts]
            for q_i in critics(w, "critics", obs, *executed):
                loss[t][b] = loss[t][b] + ((q_i - target) ** 2).mean()
    loss = [[0.0 if IS_LAST[t, b] else loss[t][b] for b in range(BATCH)] for t in range(STEPS)]
    return loss, torch.tensor(betas, dtype=torch.float64), torch.tensor(switch)


COST = {"reward_weights": (1.0, -0.5, 2.0), "gamma": (0.875, 0.5, 0.75)}


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param({"kind": kind}, id=kind) for kind in TRAJECTORIES),
        *(pytest.param({"kind": kind, **COST}, id=f"{kind}-vector-reward") for kind in TRAJECTORIES),
        pytest.param({**COST, "gamma": 0.75, "num_critics": 3, "dqda_clipping": 0.05}, id="vector-reward-one-gamma"),
        pytest.param({"td": "one-step"}, id="one-step"),
        pytest.param({"td": "n-step"}, id="n-step"),
        pytest.param({"clipping": (0.0, None)}, id="clipping-below"),
        pytest.param({"clipping": (None, -0.1)}, id="clipping-above"),
        pytest.param({"clipping": (-0.1, 0.2)}, id="clipping-both"),
        pytest.param({"dqda_clipping": 0.05}, id="dqda-clipping"),
        pytest.param({"tuning": "fixed"}, id="fixed-temperature"),
        pytest.param({"tuning": "direct"}, id="direct-temperature"),
        pytest.param({"num_critics": 1}, id="one-critic"),
        pytest.param({"num_critics": 3}, id="three-critics"),
        pytest.param({"ignore_done": True}, id="ignore-done"),
        pytest.param({"action_min_prob": 0.2, "beta_min_prob": 0.3}, id="min-probs"),
        pytest.param({"spec": IMAGE_SPEC}, id="image"),
        pytest.param({"spec": IMAGE_SPEC, "kind": "quadratic"}, id="image-quadratic"),
    ],
)
def test_an_update_is_that_of_the_reference(changes, monkeypatch):
    config = TAAC | changes
    algorithm, experience = taac(config), experience_of(config)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    uniform = torch.rand(STEPS, BATCH, dtype=torch.float64)
    weights = weights_of(algorithm)
    expected, beta_1, switch = taac_reference(weights, config, experience, noise, uniform)
    assert beta_1.max() - beta_1.min() > 0.1  # the critics do tell the candidates apart
    reached = ~switch[1:-1] & ~IS_LAST[1:-1]
    assert reached.any() and not reached.all()

    drawn = record_draws(monkeypatch, noise, uniform)
    info = algorithm.train_step(experience)
    loss = algorithm.calc_loss(experience, info).loss
    assert drawn == {"noise": 1, "uniform": 1}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if config["spec"] is IMAGE_SPEC else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(info.beta, torch.stack([1 - beta_1, beta_1], -1), **tolerance)
    assert torch.equal(info.switch, switch)
    check_update(algorithm, loss, weights, expected, **tolerance)


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("spec", [VECTOR_SPEC, IMAGE_SPEC], ids=["vector", "image"])
def test_the_actors_loss_trains_the_actor_alone(kind, spec):
    config = TAAC | {"kind": kind, "spec": spec}
    algorithm = taac(config)
    check_actor_alone(algorithm, algorithm.train_step(experience_of(config)).actor_loss, ACTORS)


def test_clipping_from_0_never_prefers_the_old_trajectory():
    algorithm = taac(TAAC | {"clipping": (0.0, None)})
    beta = algorithm.train_step(experience_of(TAAC)).beta
    assert torch.all(beta[..., 1] >= 0.5)
    assert (beta[..., 1] == 0.5).any() and (beta[..., 1] > 0.6).any()


def test_training_leaves_what_was_replayed_alone():
    experience = experience_of(TAAC | {"kind": "quadratic"})
    copies = [x.clone() for x in nest.flatten(experience)]
    algorithm = taac(TAAC | {"kind": "quadratic"})
    algorithm.calc_loss(experience, algorithm.train_step(experience)).loss.mean().backward()
    for before, after in zip(copies, nest.flatten(experience)):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_what_an_update_reports():
    algorithm, experience = taac(TAAC), experience_of(TAAC)
    experience.time_step.reward[0] = 0.0
    info = algorithm.train_step(experience)
    extra = algorithm.calc_loss(experience, info).extra
    assert all(x.dim() == 0 and not x.requires_grad for x in extra.values())
    acted = ~IS_LAST
    assert extra["beta/switch_probability"].item() == pytest.approx(info.beta[acted][:, 1].mean().item())
    entropy = -(info.beta * info.beta.log()).sum(-1)
    assert extra["beta/entropy"].item() == pytest.approx(entropy[acted].mean().item())
    assert extra["policy/alpha"].item() == pytest.approx(math.exp(algorithm.action_temperature.value.item()))
    assert extra["beta/alpha"].item() == pytest.approx(math.exp(algorithm.beta_temperature.value.item()))


@pytest.mark.parametrize(
    "words, switches, expected",
    [
        # what a return may go through is the MIDs of frames 1..T-2; "b" marks a switch, executed or newly sampled
        (["FMMMM"], ["....."], 3 / 3),
        (["FMMMM"], ["b...b"], 3 / 3),  # at the ends nothing goes on
        (["FMMMM"], [".b..."], 2 / 3),
        (["MMLFM"], ["....."], 1 / 1),  # neither through LAST nor into FIRST
        (["MMLFM"], [".b..."], 0 / 1),
        (["MMLFM", "FMMMM"], [".....", ".bb.."], 2 / 4),
        (["LFMML"], ["..b.."], 1 / 2),
        (["FM"], [".."], 0.0),  # two frames: every return is of one step
    ],
)
def test_reach_through_counts_the_frames_that_a_return_may_go_through(words, switches, expected):
    algorithm, letters = small(td_loss=TAACTDLoss(0.5)), {"F": F, "M": M, "L": L}
    step_type = torch.tensor([[letters[x] for x in word] for word in words], dtype=torch.uint8).T
    steps, batch = step_type.shape
    time_step = TimeStep(
        step_type, torch.zeros(steps, batch), torch.ones(steps, batch), torch.randn(steps, batch, 3),
        torch.zeros(steps, batch, NUM_ACTIONS), torch.ones(steps, batch),
    )  # fmt: skip
    tau = nest.map_structure(lambda x: x.expand(steps, *x.shape), algorithm.initial_state(batch).tau)
    experience = Experience(time_step, TaacInfo(tau, torch.zeros(steps, batch).bool()))
    switch = torch.tensor([[x == "b" for x in word] for word in switches]).T
    info = algorithm.train_step(experience)._replace(switch=switch)
    assert algorithm.calc_loss(experience, info).extra["beta/reach_through"].item() == pytest.approx(expected)


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


def parts_of(tau):
    return nest.flatten(tau)


def assert_same_tau(got, expected, rows=slice(None)):
    assert len(parts_of(got)) == len(expected)
    for part, reference in zip(parts_of(got), expected):
        torch.testing.assert_close(part[rows], reference[rows], rtol=1e-5, atol=1e-6)


def a_hat_moments(algorithm, features, tau):
    """Mean and standard deviation of the normal that a_hat is squashed from, from the raw weights."""
    w = weights_of(algorithm)
    parts = [
        part.double() @ w[f"tau_embedding.parts.{i}.weight"].T + w[f"tau_embedding.parts.{i}.bias"]
        for i, part in enumerate(parts_of(tau))
    ]
    x = torch.cat([features.double(), *parts], -1)
    x = torch.relu(x @ w["actor.hidden.0.weight"].T + w["actor.hidden.0.bias"])
    mean, log_std = (x @ w["actor.head.weight"].T + w["actor.head.bias"]).detach().split(NUM_ACTIONS, -1)
    return mean, log_std.clamp(-20, 2).exp()


STEPS_OF = {"predict": "predict_step", "rollout": "rollout_step", "random": "random_step"}


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_the_initial_state_is_at_rest(kind):
    state = small(kind).initial_state(3)
    assert state.repeats.tolist() == [0, 0, 0] and state.repeats.dtype == torch.int64
    assert len(parts_of(state.tau)) == NUM_PARTS[kind]
    for part in parts_of(state.tau):
        assert part.shape == (3, NUM_ACTIONS) and not part.any()


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("policy", ["predict", "rollout"])
def test_not_switching_goes_on_with_the_old_trajectory(kind, policy):
    algorithm, state = small(kind, NEVER), state_of(kind, 6)._replace(repeats=torch.tensor([0, 1, 2, 3, 50, 7]))
    step = getattr(algorithm, STEPS_OF[policy])(frame(6), state)
    assert_same_tau(step.state.tau, advance(kind, parts_of(state.tau)))
    assert step.state.repeats.tolist() == [1, 2, 3, 4, 51, 8]
    assert not step.decided.any()
    assert torch.equal(step.output, step.state.tau.a)
    if policy == "rollout":
        assert not step.info.switch.any()
        assert_same_tau(step.info.tau_prev, parts_of(state.tau))


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_switching_starts_a_trajectory_from_the_actors_mode(kind):
    algorithm, state, time_step = small(kind, ALWAYS), state_of(kind, 30, 9), frame(30)
    a_hat = torch.tanh(a_hat_moments(algorithm, time_step.observation, state.tau)[0]).float()
    step = algorithm.predict_step(time_step, state)
    assert_same_tau(step.state.tau, start(kind, a_hat, parts_of(state.tau)))
    assert step.state.repeats.tolist() == [1] * 30
    assert step.decided.all()
    torch.testing.assert_close(step.output, step.state.tau.a)


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
def test_switching_starts_a_trajectory_from_a_sample(kind):
    count = 20000
    algorithm = small(kind, ALWAYS)
    one = state_of(kind, 1)
    tau = record([part.expand(count, -1) for part in parts_of(one.tau)])
    time_step = frame(count)._replace(observation=torch.randn(1, 3).expand(count, -1))
    mean, std = (x[0] for x in a_hat_moments(algorithm, time_step.observation, tau))
    state = TaacState(tau, torch.ones(count, dtype=torch.int64))
    for step in (algorithm.rollout_step(time_step, state), algorithm.predict_step(time_step, state, epsilon=1.0)):
        x = torch.atanh(step.output.double().clamp(-1 + 1e-7, 1 - 1e-7))
        assert torch.all((x.median(0).values - mean).abs() < 1.2533 * 4.5 / math.sqrt(count) * std)
        below = (x < mean - std).double().mean(0)
        assert torch.all((below - 0.158655).abs() < 4.5 * math.sqrt(0.1335 / count))
        assert_same_tau(step.state.tau, start(kind, step.output, parts_of(tau)))


def test_a_tie_repeats_when_greedy_and_is_a_fair_coin_in_rollouts():
    algorithm, state, time_step = small(clipping=TIE), state_of("constant", 10000), frame(10000)
    assert not algorithm.predict_step(time_step, state).decided.any()
    assert algorithm.rollout_step(time_step, state).decided.float().mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("p, greedy", [(0.2, False), (0.45, False), (0.55, True), (0.9, True)])
def test_greedily_the_likelier_of_the_two(p, greedy):
    step = small(clipping=with_probability(p)).predict_step(frame(5), state_of("constant", 5))
    assert step.decided.tolist() == [greedy] * 5


@pytest.mark.parametrize("kind", ["constant", "quadratic"])
def test_predict_step_does_not_depend_on_chance(kind):
    algorithm, state, time_step = small(kind, randomize_first_state_tau=True), state_of(kind, 40), frame(40, F)
    steps = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        steps.append(algorithm.predict_step(time_step, state))
    for x, y in zip(nest.flatten(steps[0]), nest.flatten(steps[1])):
        assert torch.equal(x, y)
    went_on = ~steps[0].decided
    assert_same_tau(
        steps[0].state.tau, advance(kind, parts_of(state.tau)), went_on
    )  # it does not draw the first either
    assert went_on.any()


@pytest.mark.parametrize("p, epsilon", [(0.7, 0.0), (0.7, 1.0), (0.7, 0.5), (0.2, 0.5), (0.2, 0.1)])
def test_with_epsilon_the_switch_is_sampled_instead_of_its_mode(p, epsilon):
    count = 20000
    step = small(clipping=with_probability(p)).predict_step(frame(count), state_of("constant", count), epsilon)
    expected = (1 - epsilon) * (p > 0.5) + epsilon * p
    tolerance = 4 * math.sqrt(expected * (1 - expected) / count)
    assert step.decided.float().mean().item() == pytest.approx(expected, abs=tolerance)


def test_with_epsilon_the_action_is_sampled_instead_of_its_mode_and_each_stage_by_itself():
    count, epsilon, p = 20000, 0.3, 0.4
    algorithm, state, time_step = small(clipping=with_probability(p)), state_of("constant", count), frame(count)
    mode = torch.tanh(a_hat_moments(algorithm, time_step.observation, state.tau)[0])
    step = algorithm.predict_step(time_step, state, epsilon)
    sampled = ((step.output - mode).abs() > 1e-5).any(-1)[step.decided]  # a switch shows a_hat; greedy would repeat
    share = sampled.double().mean().item()
    assert share == pytest.approx(epsilon, abs=4 * math.sqrt(0.21 / len(sampled)))


@pytest.mark.parametrize("kind, reward_weights", [("constant", None), ("quadratic", None), ("linear", (1.0, -2.0))])
def test_rollouts_switch_as_often_as_beta_says(kind, reward_weights):
    """beta_1 = 1/(1 + exp((q_0 - q_1) / alpha)), by the online critics, computed from the raw weights."""
    count, alpha = 20000, 0.4
    algorithm = small(
        kind, reward_dim=2 if reward_weights else None, reward_weights=reward_weights,
        temperature_ctor=functools.partial(Temperature, initial_value=alpha),
    )  # fmt: skip
    nn.init.zeros_(algorithm.actor.head.weight[NUM_ACTIONS:])
    nn.init.constant_(algorithm.actor.head.bias[NUM_ACTIONS:], -20.0)  # a_hat is as good as certain
    for parameter in [*algorithm.critics.parameters(), *algorithm.target_critics.parameters()]:
        nn.init.normal_(parameter, 0.0, 0.5)
    algorithm.action_temperature.value.data.fill_(2.0)  # has no part in it
    w = weights_of(algorithm)
    rows = 8
    time_step, state = frame(rows), state_of(kind, rows)
    a_hat = torch.tanh(a_hat_moments(algorithm, time_step.observation, state.tau)[0])
    expected = []
    for i in range(rows):
        obs, prev = time_step.observation[i].double(), [part[i].double() for part in parts_of(state.tau)]
        q_0, q_1 = (
            float(total(worst(critics(w, "critics", obs, *tau), reward_weights), reward_weights).detach())
            for tau in (advance(kind, prev), start(kind, a_hat[i], prev))
        )
        expected.append(1 / (1 + math.exp((q_0 - q_1) / alpha)))
    assert max(expected) - min(expected) > 0.2
    assert algorithm.predict_step(time_step, state).decided.tolist() == [p > 0.5 for p in expected]

    many = nest.map_structure(lambda x: x.repeat_interleave(count // rows, 0), (time_step, state))
    switched = algorithm.rollout_step(*many).decided.reshape(rows, -1).double().mean(1)
    for p, share in zip(expected, switched.tolist()):
        assert share == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / (count // rows)))


# --- Acting: repeats, and the first trajectory ------------------------------------------------------------------------


def run(algorithm, policy, step_types, batch=1):
    """Acts through frames as the drivers do; gives the steps and the states that were handed in."""
    initial = algorithm.initial_state(batch)
    state, steps, handed_in = initial, [], []
    for step_type in step_types:
        time_step = frame(batch)
        step_type = torch.as_tensor(step_type, dtype=torch.uint8).expand(batch)
        time_step = time_step._replace(step_type=step_type)
        state = reset_where_first(state, initial, time_step)
        handed_in.append(state)
        steps.append(getattr(algorithm, STEPS_OF[policy])(time_step, state))
        state = steps[-1].state
    return steps, handed_in


def test_repeats_count_the_steps_of_a_trajectory():
    never, _ = run(small(clipping=NEVER), "rollout", [F, M, M, L, F, M])
    assert [int(s.state.repeats) for s in never] == [1, 2, 3, 4, 1, 2]  # b = 0 at FIRST: 0 + 1
    assert all(not s.output.any() for s in never)  # and goes on with the zero trajectory
    always, _ = run(small(clipping=ALWAYS), "rollout", [F, M, M, L, F, M])
    assert [int(s.state.repeats) for s in always] == [1] * 6
    by_chance, _ = run(small(clipping=TIE), "rollout", [F] + [M] * 200)
    repeats = 0
    for step in by_chance:
        repeats = 1 if step.info.switch else repeats + 1
        assert int(step.state.repeats) == repeats
    assert {bool(s.info.switch) for s in by_chance} == {True, False}


@pytest.mark.parametrize("policy", ["predict", "rollout"])
@pytest.mark.parametrize("longest", [1, 2, 3])
def test_a_trajectory_runs_for_max_repeat_steps_and_the_forced_switch_is_recorded(policy, longest):
    """One that never would switch runs each trajectory for exactly so many steps, the one at rest included."""
    steps, _ = run(small(clipping=NEVER, max_repeat_steps=longest), policy, [F] + [M] * (4 * longest - 1))
    expected = [t >= longest and t % longest == 0 for t in range(4 * longest)]
    assert [bool(s.decided) for s in steps] == expected
    if policy == "rollout":
        assert [bool(s.info.switch) for s in steps] == expected
    assert [int(s.state.repeats) for s in steps] == [t % longest + 1 for t in range(4 * longest)]
    actions = [tuple(s.output[0].tolist()) for s in steps]
    assert actions[:longest] == [(0.0, 0.0)] * longest
    for t in range(1, len(actions)):
        assert (actions[t] != actions[t - 1]) == expected[t]


def test_max_repeat_steps_only_adds_switches():
    steps, _ = run(small(clipping=ALWAYS, max_repeat_steps=3), "rollout", [F] + [M] * 5)
    assert all(bool(s.info.switch) for s in steps)
    steps, _ = run(small(clipping=TIE, max_repeat_steps=2), "rollout", [F] + [M] * 300)
    pattern = "".join("1" if s.info.switch else "0" for s in steps)
    assert "000" not in pattern and "00" not in pattern.lstrip("0")  # two steps at rest at most, then one repeat
    assert "11" in pattern and "101" in pattern


def test_the_limit_begins_anew_with_each_episode():
    steps, _ = run(small(clipping=NEVER, max_repeat_steps=3), "rollout", [F, M, L, F, M, M, M])
    assert [bool(s.info.switch) for s in steps] == [False] * 6 + [True]


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("policy", ["rollout", "random"])
def test_the_first_trajectory_can_be_drawn(kind, policy):
    """In rollouts alone and at FIRST alone; what was drawn is what is recorded, and what is gone on with."""
    count = 20000
    step_type = torch.full((count,), int(M), dtype=torch.uint8)
    step_type[: count // 2] = int(F)
    algorithm = small(kind, NEVER, randomize_first_state_tau=True)
    state = state_of(kind, count, repeats=0)
    state = state._replace(tau=nest.map_structure(lambda x: torch.where(step_type[:, None] == F, 0.0, x), state.tau))
    step = getattr(algorithm, STEPS_OF[policy])(frame(count)._replace(step_type=step_type), state)
    first, others = slice(0, count // 2), slice(count // 2, None)
    assert_same_tau(step.info.tau_prev, parts_of(state.tau), others)
    drawn = torch.cat([part[first] for part in parts_of(step.info.tau_prev)], -1)
    check_uniform(drawn, count // 2)
    went_on = ~step.info.switch
    assert went_on.any()
    assert_same_tau(step.state.tau, advance(kind, parts_of(step.info.tau_prev)), went_on)
    assert torch.all(step.state.repeats == 1)

    at_rest = getattr(small(kind, NEVER), STEPS_OF[policy])(frame(count)._replace(step_type=step_type), state)
    assert_same_tau(at_rest.info.tau_prev, parts_of(state.tau))


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("policy", ["rollout", "random"])
@pytest.mark.parametrize("settings", [{}, {"max_repeat_steps": 2}, {"randomize_first_state_tau": True}], ids=str)
def test_what_was_executed_is_what_the_next_frame_begins_with(kind, policy, settings):
    """Training reads the trajectory executed at t from `tau_prev` of t+1, unless t is LAST."""
    words = ["FMMMMLFMMMMM", "FLFLFMMLFMMM", "FMMMMMMMMMMM", "FMLFMLFMLFML"]
    step_types = [[{"F": F, "M": M, "L": L}[word[t]] for word in words] for t in range(len(words[0]))]
    steps, handed_in = run(small(kind, TIE, **settings), policy, step_types, batch=len(words))
    switches = torch.stack([s.info.switch for s in steps])
    assert switches.any() and not switches.all()
    for t, step in enumerate(steps):
        is_first = torch.tensor(step_types[t]) == F
        assert torch.equal(step.output, step.state.tau.a)
        assert torch.equal(step.decided, step.info.switch)
        if not settings.get("randomize_first_state_tau"):
            assert_same_tau(step.info.tau_prev, parts_of(handed_in[t].tau))
            for part in parts_of(step.info.tau_prev):
                assert not part[is_first].any()
        old = advance(kind, parts_of(step.info.tau_prev))
        assert_same_tau(step.state.tau, old, ~step.info.switch)
        changed = torch.cat([new - part for new, part in zip(parts_of(step.state.tau), old)], -1).abs() > 1e-6
        assert changed.any(-1)[step.info.switch].all()
        if t + 1 < len(steps):
            goes_on = torch.tensor(step_types[t + 1]) != F
            assert_same_tau(steps[t + 1].info.tau_prev, parts_of(step.state.tau), goes_on)
            # equal b = 0 means equal actions: what compare-through rests on
            went_on = goes_on & ~steps[t + 1].info.switch
            assert_same_tau(steps[t + 1].state.tau, advance(kind, parts_of(step.state.tau)), went_on)


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
def test_random_step_is_uniform_with_a_fair_switch(kind):
    count = 40000
    state = state_of(kind, count)
    step = small(kind, NEVER).random_step(frame(count), state)  # whatever beta would say
    switch = step.info.switch
    assert switch.double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(count))
    check_uniform(step.output[switch], int(switch.sum()))
    assert_same_tau(step.state.tau, start(kind, step.output, parts_of(state.tau)), switch)
    assert_same_tau(step.state.tau, advance(kind, parts_of(state.tau)), ~switch)
    assert torch.equal(step.state.repeats, torch.where(switch, 1, 2))


def test_random_step_keeps_to_max_repeat_steps():
    count = 8000
    state = state_of("constant", count)._replace(repeats=torch.arange(count) % 4)
    switch = small(max_repeat_steps=2).random_step(frame(count), state).info.switch
    shares = [switch[state.repeats == r].double().mean().item() for r in range(4)]
    assert shares[:2] == pytest.approx([0.5, 0.5], abs=4 * 0.5 / math.sqrt(count / 4))
    assert shares[2:] == [1.0, 1.0]


def test_acting_leaves_no_graph_and_its_input_alone():
    algorithm, state, time_step = small("quadratic"), state_of("quadratic", 5), frame(5)
    copies = [x.clone() for x in nest.flatten((state, time_step))]
    for policy in STEPS_OF.values():
        step = getattr(algorithm, policy)(time_step, state)
        assert not any(x.requires_grad for x in nest.flatten(step))
    assert all(torch.equal(x, y) for x, y in zip(copies, nest.flatten((state, time_step))))


# --- Identities with SAC ----------------------------------------------------------------------------------------------


def twins():
    """TAAC forced to switch everywhere, and the SAC whose weights it has; its actor does not look at tau_prev."""
    shared = {"action_min_prob": 0.1, **networks()}
    ours = scrambled(
        TaacAlgorithm(VECTOR_SPEC, ACTION_SPEC, b1_advantage_clipping=ALWAYS, td_loss=TAACTDLoss(0.875), **shared)
    )
    theirs = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, entropy_in_target=False, td_loss=OneStepTDLoss(0.875), **shared)
    theirs.double()
    with torch.no_grad():
        ours.actor.hidden[0].weight[:, ours.feature_size :] = 0.0
        theirs.load_state_dict(
            {
                name: ours.actor.hidden[0].weight[:, : ours.feature_size]
                if name == "actor.hidden.0.weight"
                else ours.state_dict()[name.replace("temperature.", "action_temperature.")]
                for name in theirs.state_dict()
            }
        )
    return ours, theirs


def test_forced_to_switch_it_learns_as_sac_without_entropy_in_the_target(monkeypatch):
    ours, theirs = twins()
    experience = experience_of(TAAC)
    time_step = experience.time_step._replace(prev_action=experience.rollout_info.tau_prev.a)
    noise = torch.randn(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64)
    uniform = torch.rand(STEPS, BATCH, dtype=torch.float64)
    record_draws(monkeypatch, noise, uniform)
    info = ours.train_step(experience)
    sac_experience = Experience(time_step, ())
    sac_info = theirs.train_step(sac_experience)
    assert info.switch.all() and torch.all(info.beta[..., 1] == 1)
    torch.testing.assert_close(info.value, sac_info.value)
    torch.testing.assert_close(info.q, sac_info.q)
    torch.testing.assert_close(info.actor_loss, sac_info.actor_loss)
    target = ours.td_loss.returns(experience.time_step, info.value, info.switch)
    sac_target = theirs.td_loss.returns(time_step, sac_info.value, info.switch)
    torch.testing.assert_close(target, sac_target)

    ours.calc_loss(experience, info).loss.mean().backward()
    theirs.calc_loss(sac_experience, sac_info).loss.mean().backward()
    for name, parameter in theirs.named_parameters():
        if name.startswith(("critics.", "actor.head", "actor.hidden.2", "temperature.")):
            gradient = ours.get_parameter(name.replace("temperature.", "action_temperature.")).grad
            torch.testing.assert_close(gradient, parameter.grad)


def test_forced_to_switch_it_acts_as_sac(monkeypatch):
    ours, theirs = twins()
    time_step, state = frame(9), state_of("constant", 9)
    state = state._replace(tau=Tau(state.tau.a.double(), (), ()))
    torch.testing.assert_close(ours.predict_step(time_step, state).output, theirs.predict_step(time_step, ()).output)
    record_draws(monkeypatch, torch.randn(9, NUM_ACTIONS), torch.rand(9))
    torch.testing.assert_close(ours.rollout_step(time_step, state).output, theirs.rollout_step(time_step, ()).output)


def test_its_value_pays_no_entropy_and_never_uses_the_targets_to_switch():
    """With equal target critics everywhere V is their constant, whatever beta, alpha and log pi."""
    algorithm = taac(TAAC)
    for critic_parameter in algorithm.target_critics.parameters():
        critic_parameter.data.zero_()
    algorithm.target_critics.last.bias.data[:] = torch.tensor([4.0, 5.0]).reshape(2, 1, 1)
    info = algorithm.train_step(experience_of(TAAC))
    torch.testing.assert_close(info.value[1:], torch.full((STEPS - 1, BATCH), 4.0, dtype=torch.float64))
    assert info.beta[..., 1].std() > 0.05


# --- Targets, groups, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau, period", [(0.25, 1), (0.25, 3), (1.0, 2)])
def test_targets_move_softly_and_on_time(tau, period):
    check_targets_move(
        TaacAlgorithm(IMAGE_SPEC, ACTION_SPEC, target_update_tau=tau, target_update_period=period, **networks()),
        tau, period,
    )  # fmt: skip


@pytest.mark.parametrize("tuning, temperatures", [("log", 2), ("direct", 2), ("fixed", 0)])
@pytest.mark.parametrize("kind", ["constant", "quadratic"])
def test_groups_hold_every_trainable_parameter_once(kind, tuning, temperatures):
    found = check_groups(taac(TAAC | {"spec": IMAGE_SPEC, "kind": kind, "tuning": tuning}), ACTORS)
    assert len(found["temperature"]) == temperatures


def test_direct_temperatures_stay_at_or_above_0():
    algorithm = taac(TAAC | {"tuning": "direct"})
    for temperature_module in (algorithm.action_temperature, algorithm.beta_temperature):
        temperature_module.value.data.fill_(-0.5)
    algorithm.after_update(1)
    assert algorithm.action_temperature.value.item() == algorithm.beta_temperature.value.item() == 0.0
    beta = algorithm.train_step(experience_of(TAAC)).beta  # at temperature 0 the better candidate, not NaN
    assert torch.isfinite(beta).all() and torch.all((beta == 0) | (beta == 1))


@pytest.mark.parametrize("spec, message", BAD_ACTION_SPECS)
def test_actions_it_cannot_take_are_refused(spec, message):
    with pytest.raises(TaacError, match=message):
        TaacAlgorithm(VECTOR_SPEC, spec)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_repeat_steps": 0},
        {"b1_advantage_clipping": (1.0, 0.0)},
        {"target_update_tau": 0.0},
        {"target_update_period": 0},
        {"dqda_clipping": -1.0},
        {"reward_weights": (1.0,)},
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(TaacError):
        TaacAlgorithm(VECTOR_SPEC, ACTION_SPEC, **settings)
