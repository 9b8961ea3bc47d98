"""Noise that is correlated in time: its covariance by theory, of each environment, and what actions are made of it."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from taac import nest
from taac.acting.noise import AutoregressiveNoise, ColoredNoise, HeldNoise, StateDependentNoise
from taac.algorithms.algorithm import Algorithm
from taac.data_structures import StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork
from taac.networks.bodies import MlpBody
from tests.environments.team import TEAM
from tests.methods import METHODS, fitting, thinned
from tests.training.runs import build

F, M, L = (int(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))
NOISES = [ColoredNoise(1.0, 4), AutoregressiveNoise(0.9), HeldNoise(), StateDependentNoise(5)]
EXPLORERS = [
    ["create_collector.explorer = @ColoredNoise()", "ColoredNoise.length = 40"],
    ["create_collector.explorer = @AutoregressiveNoise()"],
    ["create_collector.explorer = @HeldNoise()"],
    ["create_collector.explorer = @StateDependentNoise()"],
    ["create_collector.explorer = @StateDependentNoise()", "ActorNetwork.gsde_log_std = -1.0"],
]


def an_agent(features=None, size=2):
    """What a noise asks of an agent."""
    noise_basis = partial(Algorithm.noise_basis, None)
    algorithm = SimpleNamespace(
        action_size=size, actor_feature_size=0 if features is None else features.shape[-1], noise_basis=noise_basis
    )
    return SimpleNamespace(
        agents=None, device=torch.device("cpu"), algorithm=algorithm, noise_basis=lambda time_step: noise_basis(features)
    )


def drawn(noise, step_types, features=None, size=2):
    """The noise `[T, B, A]` at frames of step types `[T, B]`."""
    agent, step_types = an_agent(features, size), torch.as_tensor(step_types, dtype=torch.uint8)
    if features is None and isinstance(noise, StateDependentNoise):
        agent = an_agent(torch.zeros(step_types.shape[1], 1), size)
    state, found = noise.initial_state(agent, step_types.shape[1]), []
    initial = state
    for frame in step_types:
        state = nest.where(frame == F, initial, state)  # as the collector does
        eps, state = noise.draw(agent, TimeStep(frame, *[()] * 5), state)
        found.append(eps)
    return torch.stack(found)


def covariance(x):
    """Over environments and dimensions, of all pairs of steps: `[T, T]`."""
    x = x.flatten(1).double()
    return x @ x.T / x.shape[1]


# Colours --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 7, 32])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_the_spectrum_of_a_sequence_is_a_power_of_the_frequency(beta, length):
    """Exactly: a sequence is linear in white noise, so that its covariance follows from what becomes of each unit vector."""
    response = ColoredNoise(beta, length)._drawn(torch.eye(length).unsqueeze(-1)).squeeze(-1).double()
    power = [max(min(k, length - k), 1) ** -beta for k in range(length)]
    total = sum(power)
    autocovariance = [
        sum(p / total * math.cos(2 * math.pi * k * lag / length) for k, p in enumerate(power)) for lag in range(length)
    ]
    expected = torch.tensor([[autocovariance[abs(s - t)] for s in range(length)] for t in range(length)], dtype=torch.float64)
    assert autocovariance[0] == pytest.approx(1.0)
    torch.testing.assert_close(response.T @ response, expected, rtol=0, atol=1e-5)
    if beta == 0:
        torch.testing.assert_close(response, torch.eye(length).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_periodogram_of_what_is_drawn(beta):
    """Of 4000 sequences: its slope on logarithmic axes is -beta."""
    x = drawn(ColoredNoise(beta, 64), [[F] * 2000] + [[M] * 2000] * 63)
    power = torch.fft.rfft(x.double(), dim=0).abs().square().mean((1, 2))
    for k in (1, 2, 4, 8, 16, 31):
        assert (power[k] / power[1]).item() == pytest.approx(k**-beta, rel=0.1)
    assert covariance(x).diagonal().numpy() == pytest.approx(1.0, abs=0.1)


def test_after_its_length_and_at_a_new_episode_another_sequence_begins():
    step_types = [[F, F]] + [[M, M]] * 6
    step_types[2] = [F, M]
    x = drawn(ColoredNoise(2.0, 4), [[row[0]] * 20_000 + [row[1]] * 20_000 for row in step_types], size=1)
    begins = [[0, 2, 6], [0, 4]]  # of the first and the last 20,000 environments
    for own, starts in zip(x.split(20_000, dim=1), begins):
        found = covariance(own)
        for s in range(7):
            for t in range(s):
                together = not any(t < start <= s for start in starts)
                assert (abs(found[s, t]) > 0.05) == together, (s, t, found[s, t])


# The Ornstein-Uhlenbeck process ---------------------------------------------------------------------------------------


def test_autoregressive_noise_has_the_autocorrelation_rho_to_the_power_of_the_lag():
    found = covariance(drawn(AutoregressiveNoise(0.8), [[M] * 20_000] * 6))
    for s in range(6):
        for t in range(6):
            assert found[s, t].item() == pytest.approx(0.8 ** abs(s - t), abs=0.02)


def test_autoregressive_noise_by_hand(monkeypatch):
    """Two environments, of which the second begins an episode at frame 2."""
    white = iter([[[1.0], [2.0]], [[-1.0], [0.5]], [[0.0], [3.0]]])
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.tensor(next(white)))
    found = drawn(AutoregressiveNoise(0.6), [[F, M], [M, M], [M, F]], size=1)
    assert found[..., 0].flatten().tolist() == pytest.approx([1, 2, 0.6 - 0.8, 1.2 + 0.4, 0.6 * -0.2, 3.0])


# Held noise -----------------------------------------------------------------------------------------------------------


def test_noise_is_held_for_n_steps_as_often_as_one_over_n_squared():
    assert len(HeldNoise()._odds) == 16  # as published
    found = drawn(HeldNoise(4), [[M] * 400] * 400, size=1)[..., 0].T.tolist()
    lengths = [n for row in found for n in [len(list(same)) for _, same in itertools.groupby(row)][:-1]]
    weights = [n**-2 for n in range(1, 5)]
    assert [lengths.count(n) / len(lengths) for n in range(1, 5)] == pytest.approx([w / sum(weights) for w in weights], abs=0.01)
    assert max(lengths) == 4


def test_an_episode_begins_with_new_noise(monkeypatch):
    monkeypatch.setattr(torch, "multinomial", lambda odds, count, replacement: torch.full((count,), 3))  # n = 4
    found = drawn(HeldNoise(), [[F, F], [M, M], [M, F], [M, M], [M, M], [M, M]], size=1)[..., 0].T.tolist()
    assert [[row.index(x) for x in row] for row in found] == [[0, 0, 0, 0, 4, 4], [0, 0, 2, 2, 2, 2]]


# Noise that depends on the state --------------------------------------------------------------------------------------


def test_equal_states_have_equal_noise_until_it_is_drawn_anew():
    features = torch.tensor([[1.0, 2.0]]).expand(3, 2)
    found = drawn(StateDependentNoise(2), [[M, F, M], [M, M, F], [M, M, M]], features)
    for b, same in enumerate([[True, False], [True, False], [False, True]]):
        assert [torch.equal(found[t, b], found[t + 1, b]) for t in range(2)] == same


def test_the_noise_of_two_states_is_correlated_by_their_angle(monkeypatch):
    """Of the features with the 1: `(3, 1, 1)`, `(-1, 2, 1)`, which is at right angles to it, and `(7, 3, 1)`."""
    states = torch.tensor([[3.0, 1.0], [-1.0, 2.0], [7.0, 3.0]])
    noise, count = StateDependentNoise(3), 40_000
    state, found = noise.initial_state(an_agent(states[:1]), count), []
    for one in states:
        eps, state = noise.draw(an_agent(one.expand(count, 2)), TimeStep(torch.full((count,), M), *[()] * 5), state)
        found.append(eps)
    unit = torch.nn.functional.normalize(torch.cat([states, torch.ones(3, 1)], -1), dim=-1).double()
    torch.testing.assert_close(covariance(torch.stack(found)), unit @ unit.T, rtol=0, atol=0.02)


@pytest.mark.parametrize("normalized", [False, True])
def test_gsde_is_a_random_linear_function_of_the_last_hidden_layer(normalized):
    """Deviations by a slow sum over h_j; the action is `tanh(mean + (sigma W) h)`, with W the noise's matrix."""
    params = ["create_collector.explorer = @StateDependentNoise()", "ActorNetwork.gsde_log_std = -1.0",
              f"create_agent.normalize_observations = {normalized}"]  # fmt: skip
    trainer = build(*SHORT, "num_envs = 3", *params, method="sac")
    for _ in range(20):
        trainer.collector.step()
    agent, rollout, actor = trainer.agent, trainer.collector.rollout, trainer.agent.algorithm.actor
    assert actor.noise_log_std.shape == (8, 1) and actor.head.out_features == 1
    with torch.no_grad():
        actor.noise_log_std.uniform_(-2.0, 0.5)
        eps, state = trainer.collector.explorer.draw(agent, rollout.time_step, trainer.collector.explorer.initial_state(agent, 3))
        step = agent.algorithm.rollout_step(agent._seen(rollout.time_step), rollout.state, eps)
        features = agent.algorithm.actor_features(agent._seen(rollout.time_step).observation)
        mean, log_std = actor(features)
        hidden, sigma = actor.hidden(features).double(), actor.noise_log_std.double().exp()
    trainer.close()
    for b in range(3):
        variance = sum(float(h * s) ** 2 for h, s in zip(hidden[b], sigma[:, 0]))
        assert log_std[b].item() == pytest.approx(0.5 * math.log(variance + 1e-6), abs=1e-5)
        noise = sum(float(h * s * w) for h, s, w in zip(hidden[b], sigma[:, 0], state.values[b, :, 0]))
        assert step.output[b].item() == pytest.approx(math.tanh(mean[b].item() + noise), abs=1e-4)


@pytest.mark.parametrize("body", [None, lambda i, n: MlpBody(i, n, hidden_layers=(5,))], ids=["layers", "body"])
def test_the_gradient_of_gsdes_deviations_reaches_sigma_and_the_hidden_layers(body):
    actor = ActorNetwork(3, 2, (5,), gsde_log_std=-1.0, body=body)
    actor(torch.randn(4, 6, 3))[1].sum().backward()
    assert (actor.noise_log_std.grad != 0).any() and all((p.grad != 0).any() for p in actor.hidden.parameters())
    assert all(p.grad is None for p in actor.head.parameters())


def test_deviations_of_gsde_stay_within_the_limits():
    actor = ActorNetwork(3, 2, (64,), gsde_log_std=-1.0, log_std_min=-3.0, log_std_max=0.5)
    for sigma, limit in ((-20.0, -3.0), (5.0, 0.5)):
        actor.noise_log_std.data.fill_(sigma)
        log_std = actor(torch.randn(9, 3))[1]
        assert torch.equal(log_std, torch.full_like(log_std, limit))


def test_settings_of_gsde_out_of_range_are_refused():
    with pytest.raises(TaacError, match="smooth_log_std has no effect with gsde_log_std"):
        ActorNetwork(3, 2, smooth_log_std=True, gsde_log_std=-3.0)
    for wrong in (math.nan, 3.0):
        with pytest.raises(TaacError, match=rf"gsde_log_std must be in \[-20.0, 2.0\], or None, got {wrong}"):
            ActorNetwork(3, 2, gsde_log_std=wrong)


@pytest.mark.parametrize("method", ["taac", "sdar"])
def test_an_actor_that_sees_more_than_features_has_noise_of_the_features(method):
    trainer = build(*SHORT, "ActorNetwork.gsde_log_std = -1.0", method=method)
    algorithm = trainer.agent.algorithm
    features = torch.randn(2, algorithm.actor_feature_size)
    trainer.close()
    assert torch.equal(algorithm.noise_basis(features).squeeze(-1), torch.cat([features, torch.ones(2, 1)], -1))


# Of each environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_environments_and_dimensions_are_independent_and_each_number_is_standard_normal(noise):
    """Also where the first step is not that of an episode, as after random steps."""
    x = drawn(noise, [[M] * 4000 + [F] * 4000 + [M] * 4000] + [[M] * 12_000] * 5).double()
    x = x.reshape(6, 3, 4000, 2).movedim(2, 1).flatten(2)
    found = torch.einsum("tni,tnj->ij", x, x) / (6 * 4000)
    torch.testing.assert_close(found, torch.eye(6, dtype=torch.float64), rtol=0, atol=0.06)


@pytest.mark.parametrize("noise", [n for n in NOISES if not isinstance(n, HeldNoise)], ids=lambda noise: type(noise).__name__)
def test_the_episodes_of_an_environment_do_not_touch_another(noise):
    """Held noise draws as many numbers as environments need one."""
    quiet, ends = [[F, F]] + [[M, M]] * 3, [[F, F], [M, M], [L, M], [F, M]]
    found = []
    for step_types in (quiet, ends):
        torch.manual_seed(1)
        found.append(drawn(noise, step_types))
    first, other = found
    assert torch.equal(first[:, 1], other[:, 1])
    assert torch.equal(first[:3, 0], other[:3, 0]) and (first[3, 0] != other[3, 0]).all()


# Of methods -----------------------------------------------------------------------------------------------------------

REFUSE = ("sac_ntd", "sac_chunk", "taac_chunk", "sac_discrete", "sac_branches", "sac_discrete_recurrent")
TAKES = [m for m in METHODS if m not in REFUSE]
SHORT = ["hidden_layers = (8,)", "initial_collect_steps = 36", "batch_size = 4"]


# Those that make their actions in a way of their own; the others are SAC or TAAC with other returns.
OWN = ("sac", "td3", "taac", "taac_l", "sac_krep", "sdar", "sac_recurrent", "temporl", "temporl_ddpg", "tla", "sac_hybrid")


@pytest.mark.parametrize("method", thinned(TAKES, OWN))
def test_an_action_is_made_of_the_noise_it_is_given(method):
    trainer = build(*SHORT, "num_envs = 3", *fitting(method), method=method)
    agent, rollout = trainer.agent, trainer.collector.rollout
    noise = torch.tensor([[0.5], [-2.0], [0.0]]).expand(-1, agent.algorithm.action_size)
    step = agent.rollout_step(rollout.time_step, rollout.state, noise)
    policy = agent.predict_step(rollout.time_step, rollout.state).policy
    trainer.close()
    (action,) = [leaf for leaf in nest.flatten(step.output) if leaf.is_floating_point()]
    mean, log_std = nest.flatten(step.policy or policy)[-2:]
    deterministic = method in ("td3", "temporl_ddpg", "tla")
    expected = (mean.tanh() + 0.1 * noise).clamp(-1, 1) if deterministic else (mean + log_std.exp() * noise).tanh()
    decided = step.decided.reshape(3)
    assert decided.any()
    torch.testing.assert_close(action[decided], expected[decided])


@pytest.mark.parametrize("method", thinned(["sac", "td3", "taac", "sac_krep", "sac_recurrent"], ("td3", "taac")))
def test_without_correlation_the_bits_are_those_of_no_explorer(method):
    trainers = [build(*SHORT, *fitting(method), "num_envs = 2", *more, method=method) for more in ([], WHITE)]
    for trainer in trainers:
        torch.manual_seed(0)
        for _ in range(40):
            trainer.collect()
        trainer.learn()
        trainer.close()
    plain, white = (trainer.agent.state_dict() for trainer in trainers)
    assert all(torch.equal(value, white[name]) for name, value in plain.items())


WHITE = ["create_collector.explorer = @AutoregressiveNoise()", "AutoregressiveNoise.rho = 0.0"]


@pytest.mark.parametrize("method", ["sac_ntd", "sac_discrete", "taac_chunk"])
def test_methods_that_cannot_take_it_are_refused(method):
    with pytest.raises(TaacError, match=r"explorer ColoredNoise draws the noise .* \w+Algorithm does not take"):
        build(*fitting(method), "create_collector.explorer = @ColoredNoise()", method=method)


def test_a_memory_has_no_features_of_a_state_alone():
    with pytest.raises(TaacError, match="StateDependentNoise needs features of a state alone, which RecurrentSacAlgorithm"):
        build("create_collector.explorer = @StateDependentNoise()", *fitting("sac_recurrent"), method="sac_recurrent")


@pytest.mark.parametrize(
    "make, message",
    [(lambda: ColoredNoise(-0.5), r"ColoredNoise\.beta must be 0 or more, got -0\.5"), (lambda: ColoredNoise(math.nan), "beta"),
     (lambda: ColoredNoise(1.0, 1), r"ColoredNoise\.length must be 2 or more, got 1"),
     (lambda: HeldNoise(0), r"HeldNoise\.longest must be 1 or more, got 0"),
     (lambda: AutoregressiveNoise(1.0), r"AutoregressiveNoise\.rho must be in \[0, 1\), got 1\.0"),
     (lambda: StateDependentNoise(0), r"StateDependentNoise\.period must be 1 or more, got 0")],
)  # fmt: skip
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(TaacError, match=message):
        make()


@pytest.mark.parametrize("noise", EXPLORERS, ids=lambda params: params[0].split("@")[1])
def test_agents_that_share_a_policy_have_noise_of_their_own(noise):
    params = [f"create_environment.env_name = '{TEAM}'", "create_environment.env_kwargs = {'own_reward': True}",
              "create_agent.shared_policy = True", "create_collector.uniform_initial_collect = False"]  # fmt: skip
    trainer = build(*SHORT, *params, *noise, "num_envs = 2", method="sac")
    collector, agent = trainer.collector, trainer.agent
    state = agent.initial_state(2)
    eps, _ = collector.explorer.draw(agent, collector.rollout.time_step, collector.explorer.initial_state(agent, 2))
    step = agent.rollout_step(collector.rollout.time_step, state, eps)
    for _ in range(3):
        collector.step()
    trainer.close()
    mean, log_std = step.policy
    assert eps.shape == step.output.shape and eps.dim() == 3 and len(set(eps.flatten().tolist())) == eps.numel()
    torch.testing.assert_close(step.output, torch.tanh(mean + log_std.exp() * eps))


# The whole way --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", thinned(EXPLORERS, EXPLORERS[:2]), ids=lambda params: params[0].split("@")[1])
def test_a_saved_collector_goes_on_alike(noise):
    """In the middle of a sequence; and at once after random steps, of which none is the noise's."""
    params = [*SHORT, "num_envs = 2", "create_environment.max_episode_steps = 25", *noise]
    for moment in (10, 18, 40):
        whole, first, second = (build(*params).collector for _ in range(3))
        torch.manual_seed(0)
        for _ in range(moment + 20):
            whole.step()
        torch.manual_seed(0)
        for _ in range(moment):
            first.step()
        saved = torch.get_rng_state()
        second.load_state_dict(first.state_dict())
        torch.set_rng_state(saved)
        for _ in range(20):
            second.step()
        assert torch.equal(second.rollout.time_step.observation, whole.rollout.time_step.observation)
        assert str(second.state_dict()) == str(whole.state_dict())
        for collector in (whole, first, second):
            collector.environment.close()


def test_acting_is_one_program(traced_only):
    plain, compiled = (build(*SHORT, *EXPLORERS[0], f"create_agent.compile = {on}") for on in (False, True))
    for trainer in (plain, compiled):
        torch.manual_seed(0)
        for _ in range(40):
            trainer.collector.step()
        trainer.close()
    assert len(compiled.agent._rollout_step._programs) == 1
    torch.testing.assert_close(
        plain.collector.rollout.time_step.observation, compiled.collector.rollout.time_step.observation, rtol=1e-4, atol=1e-4
    )


def test_features_of_agents_that_share_a_policy_are_their_own():
    params = [f"create_environment.env_name = '{TEAM}'", "create_agent.shared_policy = True", "num_envs = 2",
              "create_collector.explorer = @StateDependentNoise()"]  # fmt: skip
    trainer = build(*SHORT, *params, method="sac")
    agent, time_step = trainer.agent, trainer.collector.rollout.time_step
    with torch.inference_mode():
        basis = agent.noise_basis(time_step)  # [B, N, J, 1]
        features = agent.algorithm.actor_features(agent._seen(agent.agents.fold(time_step, 0)).observation)
    trainer.close()
    count = agent.agents.count
    for b in range(2):
        for n in range(count):
            torch.testing.assert_close(basis[b, n, : features.shape[1], 0], features[b * count + n])
    assert len({tuple(row.tolist()) for row in features}) == 2 * count
