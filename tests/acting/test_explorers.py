"""Temporally extended epsilon-greedy: what is held, for how long, how often, and what it must not touch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac import configuration, nest
from taac.acting.explorers import EpsilonGreedyExplorer, ZetaExplorer
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.errors import TaacError
from taac.training import experiment
from tests.training.runs import built, trained

B = 5


def time_step(step_type=StepType.MID, batch=B):
    filled = torch.full((batch,), int(step_type), dtype=torch.uint8)
    return TimeStep(filled, torch.zeros(batch), torch.ones(batch), (), (), torch.ones(batch))


def policy_step(value, batch=B):
    return AlgStep(torch.full((batch, 2), value), (), (), torch.ones(batch, dtype=torch.bool))


def uniform(batch):
    return lambda: torch.empty(batch, 2).uniform_(-1.0, 1.0)


def play(explorer, steps, first=(), batch=B, env_steps=0):
    """Executed actions `[steps, B, 2]` and decisions `[steps, B]`; the policy's action at step t is 2 + t."""
    state = explorer.initial_state(torch.zeros(batch, 2))
    actions, decided = [], []
    for t in range(steps):
        kind = StepType.FIRST if t in first else StepType.MID
        if t in first:  # as the collector does
            state = explorer.initial_state(torch.zeros(batch, 2))
        executed, state = explorer.step(
            time_step(kind, batch), policy_step(2.0 + t, batch), state, env_steps, uniform(batch)
        )
        actions.append(executed.output)
        decided.append(executed.decided)
    return torch.stack(actions), torch.stack(decided)


def test_with_epsilon_zero_the_policy_acts():
    actions, decided = play(ZetaExplorer(epsilon=0.0), 10)
    assert actions[:, 0, 0].tolist() == [2.0 + t for t in range(10)] and decided.all()


def test_with_epsilon_one_an_action_is_held_for_exactly_its_duration(monkeypatch):
    duration = [3]
    monkeypatch.setattr(ZetaExplorer, "_durations", lambda self, b, d: torch.full((b,), duration[0]))
    explorer = ZetaExplorer(epsilon=1.0)
    state = explorer.initial_state(torch.zeros(B, 2))
    seen, decided = [], []
    for expected in (3, 1, 2):
        duration[0] = expected
        for _ in range(expected):
            step, state = explorer.step(time_step(), policy_step(9.0), state, 0, uniform(B))
            seen.append(step.output[0, 0].item())
            decided.append(bool(step.decided[0]))
    assert seen[0] == seen[1] == seen[2] != seen[3] and seen[4] == seen[5] and len({*seen}) == 3
    assert decided == [True, False, False, True, True, False]
    assert all(-1 <= x <= 1 for x in seen)


def test_the_end_of_an_episode_ends_what_is_held(monkeypatch):
    monkeypatch.setattr(ZetaExplorer, "_durations", lambda self, b, d: torch.full((b,), 100))
    actions, decided = play(ZetaExplorer(epsilon=1.0), 6, first=(3,))
    assert (actions[0] == actions[1]).all() and (actions[0] == actions[2]).all()
    assert (actions[3] != actions[2]).all() and (actions[3] == actions[5]).all()
    assert decided[:, 0].tolist() == [True, False, False, True, False, False]


def test_environments_are_held_apart():
    torch.manual_seed(1)
    actions, _ = play(ZetaExplorer(epsilon=0.5), 50, batch=3)
    policy = torch.arange(2.0, 52.0).unsqueeze(1)
    explores = actions[..., 0] != policy
    assert not (explores[:, 0] == explores[:, 1]).all() and not (explores[:, 1] == explores[:, 2]).all()


@pytest.mark.parametrize("mu", [2.0, 3.0])
def test_durations_follow_the_zeta_distribution(mu):
    drawn = ZetaExplorer(mu=mu)._durations(200_000, torch.device("cpu")).numpy()
    total = np.sum(np.arange(1, 1_000_000, dtype=np.float64) ** -mu)
    for n in (1, 2, 3, 5, 10):
        p = n**-mu / total
        assert np.mean(drawn == n) == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / len(drawn)))


def test_longer_durations_are_cut():
    drawn = ZetaExplorer(mu=1.5, max_duration=4)._durations(20_000, torch.device("cpu"))
    total = np.sum(np.arange(1, 3_000_000, dtype=np.float64) ** -1.5) + 2 / np.sqrt(3_000_000)
    beyond = 1 - sum(n**-1.5 for n in (1, 2, 3)) / total
    assert set(drawn.tolist()) == {1, 2, 3, 4}
    assert (drawn == 4).double().mean().item() == pytest.approx(beyond, abs=0.02)


def test_algorithms_that_store_their_own_choice_are_refused():
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/taac.gin"],
        ["create_collector.explorer = @ZetaExplorer()", "replay_length = 500"],
    )
    with pytest.raises(TaacError, match="ZetaExplorer replaces actions, but TaacAlgorithm also stores"):
        configuration.build(experiment.create_experiment)


@pytest.mark.slow
def test_recurrent_sac_learns_from_what_was_executed():
    """The memories that it stores are of the executed actions, which were not the policy's, and it trains."""
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_recurrent.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 20", "replay_length = 500",
         "hidden_layers = (8,)", "batch_size = 4", "num_envs = 1", "create_collector.explorer = @ZetaExplorer()",
         "ZetaExplorer.epsilon = 1.0"],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    while trainer.env_steps < 60:
        trainer.collect()
    frames, memories = trainer.replay_buffer.sample(1, 30)
    for t in range(29):
        with torch.no_grad():
            _, after = trainer.agent.algorithm.remember(nest.index(frames, t), nest.index(memories, t))
        torch.testing.assert_close(after, nest.index(memories, t + 1))
    trained(trainer, 45)
    assert all(bool(torch.as_tensor(value).isfinite()) for value in trainer.learner.losses.values())


def test_nested_actions_are_refused():
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_krep.gin"],
        ["create_collector.explorer = @ZetaExplorer()", "replay_length = 500"],
    )
    with pytest.raises(
        TaacError, match="ZetaExplorer explores one continuous action vector, but the actions are nested: 0, 1"
    ):
        configuration.build(experiment.create_experiment)


@pytest.mark.parametrize("batch", [2, 3])
def test_where_dimensions_decide_alone_exploring_decides_for_all_of_them(monkeypatch, batch):
    """The policy decides in dimension 0 alone: a random action that begins is new in both, and held in both."""
    monkeypatch.setattr(ZetaExplorer, "_durations", lambda self, b, d: torch.full((b,), 2))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.linspace(0.0, 1.0, shape[0]))  # row 0 alone begins
    explorer = ZetaExplorer(epsilon=0.3)
    state = explorer.initial_state(torch.zeros(batch, 2))
    policy = policy_step(9.0, batch)._replace(decided=torch.tensor([[True, False]]).expand(batch, 2))
    for expected in ([True, True], [False, False], [True, True]):
        step, state = explorer.step(time_step(batch=batch), policy, state, 0, uniform(batch))
        assert step.decided.tolist() == [expected] + [[True, False]] * (batch - 1)
        assert (step.output[0] != 9.0).all() and (step.output[1:] == 9.0).all()


def test_a_random_action_is_new_in_all_dimensions_whatever_random_steps_of_the_algorithm_keep():
    """SDAR's own random steps keep the last value of a dimension half of the time."""
    params = ["create_environment.env_name = 'Reacher-v5'", "create_collector.explorer = @ZetaExplorer()",
              "ZetaExplorer.epsilon = 1.0", "ZetaExplorer.max_duration = 1", "initial_collect_steps = 10",
              "create_collector.uniform_initial_collect = False", "hidden_layers = (8,)"]  # fmt: skip
    trainer = built(["gin/tasks/simple_control.gin", "gin/methods/sdar.gin"], params)
    for _ in range(20):
        trainer.collector.step()
    trainer.close()
    actions = trainer.replay_buffer.frames(1, 20)["frames/time_step/prev_action"][:, 0]
    assert actions.shape[1] > 1 and (actions[1:] != actions[:-1]).all()


@pytest.mark.parametrize("settings", [{"mu": 1.0}, {"epsilon": 1.5}, {"max_duration": 0}])
def test_settings_out_of_range(settings):
    with pytest.raises(TaacError, match=next(iter(settings))):
        ZetaExplorer(**settings)


@pytest.mark.parametrize("params, last", [([], 0.01), (["exploration/LinearSchedule.end = 0.1"], 0.1)])
def test_epsilon_of_sac_ez_falls_over_the_run_unless_it_is_constant(params, last):
    loaded = configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_ez.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 20000", *params],
    )
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    trainer.close()
    explorer, asked = trainer.collector.explorer, torch.ones(4000, dtype=torch.uint8)
    policy = AlgStep(torch.full((4000, 1), 9.0), (), (), torch.ones(4000, dtype=torch.bool))
    for env_steps, epsilon in ((0, 0.1), (10_000, (0.1 + last) / 2), (20_000, last), (30_000, last)):
        state = explorer.initial_state(policy.output)
        trainer.schedules.move(env_steps, 0)
        step, _ = explorer.step(TimeStep(asked, *[()] * 5), policy, state, env_steps, lambda: torch.zeros(4000, 1))
        assert (step.output != 9).double().mean().item() == pytest.approx(epsilon, abs=4 * (epsilon / 4000) ** 0.5)


def test_what_is_replayed_is_what_was_executed():
    """The whole way: while an action is held, the replayed prev_action stays the same, and the record says repeated."""
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_ez.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 20", "replay_length = 500",
         "hidden_layers = (8,)", "ZetaExplorer.epsilon = 1.0", "ZetaExplorer.mu = 1.2"],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    while trainer.env_steps < 199:
        trainer.collect()
    trainer.close()
    actions = trainer.replay_buffer._storage.time_step.prev_action[21:199, 0, 0]
    repeats = int((actions[1:] == actions[:-1]).sum())
    decided_later = trainer.collector.decisions - 20
    assert repeats > 50
    assert 178 - decided_later == pytest.approx(repeats, abs=1)


def test_branches_and_agents_explore_independently():
    """Of 2 agents with 2 branches each, all four keep the policy's choice 0 in (1 - epsilon)^4 of the frames."""
    torch.manual_seed(0)
    choice = torch.zeros(20_000, 2, 2, dtype=torch.int64)
    step = AlgStep(choice, (), (), torch.ones(20_000, dtype=torch.bool))
    explored, _ = EpsilonGreedyExplorer(0.4).step(None, step, (), 0, lambda: torch.ones_like(choice))
    kept = explored.output == 0
    assert kept.float().mean((0,)).flatten().tolist() == pytest.approx([0.6] * 4, abs=0.015)
    assert kept.flatten(1).all(1).float().mean() == pytest.approx(0.6**4, abs=0.015)
