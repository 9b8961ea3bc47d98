"""TAAC acts: which trajectory is continued or started, repeats and their limit, the first trajectory of an episode."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import SacAlgorithm, TaacAlgorithm, Temperature
from taac.algorithms.algorithm import reset_where_first
from taac.algorithms.taac import TaacState
from taac.data_structures import StepType, TimeStep
from taac.errors import TaacError
from tests.algorithms import reference
from tests.algorithms.reference import ACTION_SPEC, NUM_ACTIONS, VECTOR_SPEC, F, L, M
from tests.algorithms.taac_reference import (
    ALWAYS,
    NEVER,
    NUM_PARTS,
    TIE,
    TRAJECTORIES,
    advance,
    record,
    small,
    start,
    state_of,
    with_probability,
)


def parts_of(tau):
    return nest.flatten(tau)


def assert_same_tau(got, expected, rows=slice(None)):
    assert len(parts_of(got)) == len(expected)
    for part, other in zip(parts_of(got), expected):
        torch.testing.assert_close(part[rows], other[rows], rtol=1e-5, atol=1e-6)


def a_hat_moments(algorithm, features, tau):
    """Mean and standard deviation of the normal that a_hat is squashed from, from the raw weights."""
    w = reference.weights_of(algorithm)
    parts = [
        part.double() @ w[f"tau_embedding.parts.{i}.weight"].T + w[f"tau_embedding.parts.{i}.bias"]
        for i, part in enumerate(parts_of(tau))
    ]
    x = torch.cat([features.double(), *parts], -1)
    x = torch.relu(x @ w["actor.hidden.0.weight"].T + w["actor.hidden.0.bias"])
    mean, log_std = (x @ w["actor.head.weight"].T + w["actor.head.bias"]).detach().split(NUM_ACTIONS, -1)
    return mean, log_std.clamp(-20, 2).exp()


STEPS_OF = {"predict": "predict_step", "rollout": "rollout_step", "random": "random_step"}


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
def test_the_initial_state_is_at_rest(kind):
    state = small(kind).initial_state(3)
    assert state.repeats.tolist() == [0, 0, 0] and state.repeats.dtype == torch.int64
    assert len(parts_of(state.tau)) == NUM_PARTS[kind]
    for part in parts_of(state.tau):
        assert part.shape == (3, NUM_ACTIONS) and not part.any()


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
@pytest.mark.parametrize("policy", ["predict", "rollout"])
def test_not_switching_goes_on_with_the_old_trajectory(kind, policy):
    algorithm, state = small(kind, NEVER), state_of(kind, 6)._replace(repeats=torch.tensor([0, 1, 2, 3, 50, 7]))
    step = getattr(algorithm, STEPS_OF[policy])(reference.frame(6), state)
    assert_same_tau(step.state.tau, advance(kind, parts_of(state.tau)))
    assert step.state.repeats.tolist() == [1, 2, 3, 4, 51, 8]
    assert not step.decided.any()
    assert torch.equal(step.output, step.state.tau.a)
    if policy == "rollout":
        assert not step.info.switch.any()
        assert_same_tau(step.info.tau_prev, parts_of(state.tau))


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_switching_starts_a_trajectory_from_the_actors_mode(kind):
    algorithm, state, time_step = small(kind, ALWAYS), state_of(kind, 30, 9), reference.frame(30)
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
    time_step = reference.frame(count)._replace(observation=torch.randn(1, 3).expand(count, -1))
    mean, std = (x[0] for x in a_hat_moments(algorithm, time_step.observation, tau))
    state = TaacState(tau, torch.ones(count, dtype=torch.int64))
    for step in (algorithm.rollout_step(time_step, state), algorithm.predict_step(time_step, state, epsilon=1.0)):
        x = torch.atanh(step.output.double().clamp(-1 + 1e-7, 1 - 1e-7))
        assert torch.all((x.median(0).values - mean).abs() < 1.2533 * 4.5 / math.sqrt(count) * std)
        below = (x < mean - std).double().mean(0)
        assert torch.all((below - 0.158655).abs() < 4.5 * math.sqrt(0.1335 / count))
        assert_same_tau(step.state.tau, start(kind, step.output, parts_of(tau)))


def test_a_tie_repeats_when_greedy_and_is_a_fair_coin_in_rollouts():
    algorithm, state, time_step = small(clipping=TIE), state_of("constant", 10000), reference.frame(10000)
    assert not algorithm.predict_step(time_step, state).decided.any()
    assert algorithm.rollout_step(time_step, state).decided.float().mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["constant", "quadratic"])
def test_predict_step_does_not_depend_on_chance(kind):
    algorithm, state, time_step = small(kind, randomize_first_state_tau=True), state_of(kind, 40), reference.frame(40, F)
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
    step = small(clipping=with_probability(p)).predict_step(reference.frame(count), state_of("constant", count), epsilon)
    expected = (1 - epsilon) * (p > 0.5) + epsilon * p
    tolerance = 4 * math.sqrt(expected * (1 - expected) / count)
    assert step.decided.float().mean().item() == pytest.approx(expected, abs=tolerance)


def test_with_epsilon_the_action_is_sampled_instead_of_its_mode_and_each_stage_by_itself():
    count, epsilon, p = 20000, 0.3, 0.4
    algorithm, state, time_step = small(clipping=with_probability(p)), state_of("constant", count), reference.frame(count)
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
    w = reference.weights_of(algorithm)
    rows = 8
    time_step, state = reference.frame(rows), state_of(kind, rows)
    a_hat = torch.tanh(a_hat_moments(algorithm, time_step.observation, state.tau)[0])
    expected = []
    for i in range(rows):
        obs, prev = time_step.observation[i].double(), [part[i].double() for part in parts_of(state.tau)]
        q_0, q_1 = (
            reference.total(reference.worst(reference.critics(w, "critics", obs, *tau), reward_weights), reward_weights).item()
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
        time_step = reference.frame(batch)
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


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
@pytest.mark.parametrize("policy", ["rollout", "random"])
def test_the_first_trajectory_can_be_drawn(kind, policy):
    """In rollouts alone and at FIRST alone; what was drawn is what is recorded, and what is gone on with."""
    count = 20000
    step_type = torch.full((count,), int(M), dtype=torch.uint8)
    step_type[: count // 2] = int(F)
    algorithm = small(kind, NEVER, randomize_first_state_tau=True)
    state = state_of(kind, count, repeats=0)
    state = state._replace(tau=nest.map_structure(lambda x: torch.where(step_type[:, None] == F, 0.0, x), state.tau))
    step = getattr(algorithm, STEPS_OF[policy])(reference.frame(count)._replace(step_type=step_type), state)
    first, others = slice(0, count // 2), slice(count // 2, None)
    assert_same_tau(step.info.tau_prev, parts_of(state.tau), others)
    drawn = torch.cat([part[first] for part in parts_of(step.info.tau_prev)], -1)
    reference.check_uniform(drawn, count // 2)
    went_on = ~step.info.switch
    assert went_on.any()
    assert_same_tau(step.state.tau, advance(kind, parts_of(step.info.tau_prev)), went_on)
    assert torch.all(step.state.repeats == 1)

    at_rest = getattr(small(kind, NEVER), STEPS_OF[policy])(reference.frame(count)._replace(step_type=step_type), state)
    assert_same_tau(at_rest.info.tau_prev, parts_of(state.tau))


@pytest.mark.parametrize("kind", ["constant", "linear", "quadratic"])
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
    step = small(kind, NEVER).random_step(reference.frame(count), state)  # whatever beta would say
    switch = step.info.switch
    assert switch.double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(count))
    reference.check_uniform(step.output[switch], int(switch.sum()))
    assert_same_tau(step.state.tau, start(kind, step.output, parts_of(state.tau)), switch)
    assert_same_tau(step.state.tau, advance(kind, parts_of(state.tau)), ~switch)
    assert torch.equal(step.state.repeats, torch.where(switch, 1, 2))


def test_random_step_keeps_to_max_repeat_steps():
    count = 8000
    state = state_of("constant", count)._replace(repeats=torch.arange(count) % 4)
    switch = small(max_repeat_steps=2).random_step(reference.frame(count), state).info.switch
    shares = [switch[state.repeats == r].double().mean().item() for r in range(4)]
    assert shares[:2] == pytest.approx([0.5, 0.5], abs=4 * 0.5 / math.sqrt(count / 4))
    assert shares[2:] == [1.0, 1.0]


def test_acting_leaves_no_graph_and_its_input_alone():
    algorithm, state, time_step = small("quadratic"), state_of("quadratic", 5), reference.frame(5)
    copies = [x.clone() for x in nest.flatten((state, time_step))]
    for policy in STEPS_OF.values():
        step = getattr(algorithm, policy)(time_step, state)
        assert not any(x.requires_grad for x in nest.flatten(step))
    assert all(torch.equal(x, y) for x, y in zip(copies, nest.flatten((state, time_step))))


def test_a_demonstrated_trajectory_begins_at_rest_at_each_first_frame():
    """Also where an agent that had left comes back, whose first frame has the action before it left."""
    tested = TaacAlgorithm(VECTOR_SPEC, ACTION_SPEC)
    first, mid = int(StepType.FIRST), int(StepType.MID)
    step_type = torch.tensor([[first], [mid], [first], [mid]], dtype=torch.uint8)
    one = torch.ones(4, 1)
    frames = TimeStep(step_type, 0 * one, one, torch.zeros(4, 1, 3), torch.full((4, 1, 2), 0.5), one)
    info = tested.demonstrated_info(frames)
    assert info.tau_prev.a[:, 0, 0].tolist() == [0.0, 0.5, 0.0, 0.5]
    assert info.switch[:, 0].tolist() == [True, False, True, True]


@pytest.mark.parametrize("threshold, switches", [(0.0, True), (0.5, True), (0.59, True), (0.61, False), (0.99, False)])
def test_a_greedy_agent_switches_where_beta_is_above_its_threshold(threshold, switches):
    algorithm = small(clipping=with_probability(0.6), temperature_ctor=functools.partial(Temperature, initial_value=1.0))
    algorithm.set_switch_threshold(threshold)
    assert algorithm.predict_step(reference.frame(5), state_of("constant", 5)).decided.tolist() == [switches] * 5


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(TaacError, match=rf"switch_threshold must be 0 or more and below 1, got {threshold}"):
        small(switch_threshold=threshold)


def test_a_method_without_a_probability_refuses_a_threshold():
    with pytest.raises(TaacError, match="SacAlgorithm has no switch_threshold"):
        SacAlgorithm(VECTOR_SPEC, ACTION_SPEC).set_switch_threshold(0.7)
