"""Evaluation: which episodes count, and which random numbers it draws."""

from __future__ import annotations

import random

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn as nn

from taac.acting import evaluation
from taac.acting.evaluation import evaluate
from taac.acting.metrics import Episode, high_frequency
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.data_structures import AlgStep, Nest, StepType, TimeStep
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from tests.environments.toys import Counter, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


class EpsilonAlgorithm(Algorithm):
    """Repeats at odd places of an episode; with probability epsilon, the action is random. Only predicts."""

    def __init__(self, action_size: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.action_size = action_size
        self.epsilons: list[float] = []

    def initial_state(self, batch_size: int) -> Nest:
        return torch.zeros(batch_size, dtype=torch.int64)

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        self.epsilons.append(epsilon)
        assert len(self.epsilons) < 2000, "the evaluation does not end"
        count = len(state)
        action = torch.zeros(count, self.action_size)
        if epsilon > 0:
            random = torch.rand(count, self.action_size)
            action = torch.where(torch.rand(count, 1) < epsilon, random, action)
        return AlgStep(action, state + 1, (), state % 2 == 0)


def counters(*scripts: tuple[str, ...]) -> VectorEnvironment:
    return create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts})


def agent(action_size: int = 2) -> Agent:
    return Agent(EpsilonAlgorithm(action_size))


def facts(episodes: list[Episode]) -> list[tuple]:
    return [(float(e.ret), *e[1:-1]) for e in episodes if e.info is None]


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7])
@pytest.mark.parametrize("num_episodes", [1, 2, 5, 9])
def test_the_number_of_episodes_is_exact(num_envs, num_episodes):
    environment = counters(*[(f"{i + 1}t",) for i in range(num_envs)])
    episodes = evaluate(agent(), environment, num_episodes, seed=0)
    assert len(episodes) == num_episodes
    # Environment i's episodes are i + 1 long: each gives its share, however long that takes, and one more by turn.
    shares = [sum(e.length == i + 1 for e in episodes) for i in range(num_envs)]
    whole, rest = divmod(num_episodes, num_envs)
    assert shares == [whole + 1] * rest + [whole] * (num_envs - rest)


def test_short_episodes_are_not_favoured():
    """In the time of one long episode, the other environment has ended ten: only its first two count."""
    episodes = evaluate(agent(), counters(("1t",), ("19u",)), 4, seed=0)
    assert sorted(e.length for e in episodes) == [1, 1, 19, 19]
    # The first ones: rewards are 10 e + k, so episode e has return 10 e + 1, or 190 e + (1 + ... + 19).
    assert sorted(float(e.ret) for e in episodes) == [1, 11, 190, 380]


def test_episodes_are_recorded_whole():
    (episode,) = evaluate(agent(), counters(("5u",)), 1, seed=0)
    # Rewards 1 to 5; the policy decides at places 0, 2 and 4 and repeats at 1 and 3.
    assert facts([episode]) == [(15.0, 5, 2, 3, 3, 2, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0)]


def test_state_begins_anew_in_every_episode():
    """Episodes of 3: with a state that ran on through LAST, the second would begin with a decision at place 0 of 4."""
    episodes = evaluate(agent(), counters(("2t",)), 3, seed=0)
    assert [(e.decisions, e.repeated) for e in episodes] == [(1, 1)] * 3


def test_an_environment_left_in_the_middle_is_reset():
    environment = counters(("4t",))
    environment.reset(0)
    environment.step(torch.zeros(1, 2))
    assert facts(evaluate(agent(), environment, 1, seed=0)) == [(10.0, 4, 2, 2, 2, 2, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0)]


def test_steps_are_shown_in_order():
    seen = []
    evaluate(
        agent(), counters(("2t",)), 2, seed=0, on_step=lambda time_step, alg_step: seen.append((time_step, alg_step))
    )
    assert [int(frame.step_type) for frame, _ in seen] == [FIRST, MID, LAST, FIRST, MID, LAST]
    assert [int(step.state) for _, step in seen] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("given, used", [([], 0.0), ([0.25], 0.25), ([1.0], 1.0)])
def test_epsilon_reaches_the_policy_and_is_0_unless_told(given, used):
    tested = agent()
    evaluate(tested, counters(("2t",)), 2, 0, *given)
    assert set(tested.algorithm.epsilons) == {used}


def noise(seed: int, epsilon: float = 0.5) -> list[tuple]:
    environment = create_environment(env_id("Noise"), 2)
    return facts(evaluate(agent(1), environment, 6, seed, epsilon))


@pytest.mark.parametrize("scripts", [(("99n",),), (("3t", "99n"),), (("3t", "3t"), ("99n",)), (("99n",), ("99n",))])
def test_episodes_that_do_not_end_are_told_once_and_then_refused(monkeypatch, capsys, scripts):
    """Whether or not others have ended."""
    monkeypatch.setattr(evaluation, "_LONG", 6)
    with pytest.raises(TaacError, match=r"after 20 steps in each of . .* [12] of 2 episodes have not ended; set create_env"):
        evaluate(agent(), counters(*scripts), 2, seed=0, max_steps=20)
    told = capsys.readouterr().err
    assert told.count("an episode of an evaluation has not ended after 6 steps") == 1
    assert "create_environment.max_episode_steps" in told


@pytest.mark.parametrize("scripts, episodes", [((("6t", "5t"),), 2), ((("5t", "5t"), ("2t", "99n")), 3)])
def test_episodes_that_are_short_enough_or_not_needed_are_not_told_of(monkeypatch, capsys, scripts, episodes):
    """The endless one begins after the only episode that its environment contributes."""
    monkeypatch.setattr(evaluation, "_LONG", 6)
    assert len(evaluate(agent(), counters(*scripts), episodes, seed=0, max_steps=20)) == episodes
    assert capsys.readouterr().err == ""


def test_steps_of_repeated_actions_count_for_the_missing_limit(monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "_LONG", 6)
    environment = create_environment(env_id("Counter"), 1, env_kwargs={"scripts": (("99n",),)}, action_repeat=3)
    with pytest.raises(TaacError, match="after 4 steps"):
        evaluate(agent(), environment, 1, seed=0, max_steps=4)
    assert "has not ended after 6 steps" in capsys.readouterr().err


def test_the_first_evaluation_of_a_run_refuses_episodes_that_seem_not_to_end(monkeypatch):
    """Nothing is lost yet. A later one, of an agent that has learnt to survive, goes on."""
    monkeypatch.setattr(evaluation, "_LONG", 6)
    evaluator = evaluation.Evaluator(agent(), counters(("9n",)), 0, evaluation_episodes=1, max_evaluation_steps=8)
    with pytest.raises(TaacError, match=r"after 6 steps .* no time limit: bind create_environment\.max"):
        evaluator.run(0)
    with pytest.raises(TaacError, match="after 8 steps"):
        evaluator.run(10)


def limited():
    return gymnasium.wrappers.TimeLimit(Counter((("9n",),)), 10)


@pytest.mark.parametrize("name, limit", [(env_id("Counter"), 10), (f"{__name__}:limited", None), (f"{__name__}:limited", 10)])
def test_a_time_limit_keeps_long_episodes_quiet(monkeypatch, capsys, name, limit):
    """Also one that the environment brings along."""
    monkeypatch.setattr(evaluation, "_LONG", 6)
    kwargs = {} if "limited" in name else {"scripts": (("9n",),)}
    environment = create_environment(name, 1, env_kwargs=kwargs, max_episode_steps=limit)
    assert environment.max_episode_steps == 10
    assert [e.length for e in evaluate(agent(), environment, 1, seed=0)] == [10]
    assert capsys.readouterr().err == ""


def test_the_same_seed_gives_the_same_episodes_whatever_was_drawn_before():
    torch.manual_seed(1)
    first = noise(3)
    torch.manual_seed(2)
    torch.rand(5)
    assert noise(3) == first
    assert noise(4) != first


def test_the_seed_is_the_environments_too():
    """Without epsilon the policy draws nothing."""
    assert noise(3, epsilon=0.0) == noise(3, epsilon=0.0) != noise(4, epsilon=0.0)


def test_the_seed_is_the_policys_too():
    """Of an environment without chance of its own; jerk tells random actions apart."""

    def jerks(seed: int) -> list[float]:
        return [e.jerk for e in evaluate(agent(), counters(("9t",)), 2, seed, epsilon=0.5)]

    assert jerks(3) == jerks(3) != jerks(4)
    assert min(jerks(3)) > 0


def test_the_same_environment_evaluates_the_same_again():
    environment = create_environment(env_id("Noise"), 3)
    first = facts(evaluate(agent(1), environment, 5, 9, 0.5))
    assert facts(evaluate(agent(1), environment, 5, 9, 0.5)) == first


def test_environments_that_draw_from_global_numbers_are_seeded_too():
    """Several in this process, which share them."""

    def jerks(seed: int) -> list[float]:
        class Echo(EpsilonAlgorithm):
            def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
                return super().predict_step(time_step, state)._replace(output=time_step.observation.clamp(-1, 1))

        return [e.jerk for e in evaluate(Agent(Echo(1)), create_environment(env_id("GlobalNoise"), 2), 4, seed)]

    random.seed(1), np.random.seed(1)
    first = jerks(3)
    random.seed(2), np.random.seed(2)
    assert jerks(3) == first != jerks(4)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_trainings_random_numbers_are_left_as_they_were(epsilon):
    torch.manual_seed(12)
    torch.rand(3)
    state = torch.get_rng_state()
    noise(3, epsilon)
    assert torch.equal(torch.get_rng_state(), state)


def test_trainings_random_numbers_are_left_as_they_were_after_an_error():
    class Failing(EpsilonAlgorithm):
        def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
            torch.rand(3)
            raise RuntimeError("on purpose")

    state = torch.get_rng_state()
    with pytest.raises(TaacError, match="on purpose"):
        evaluate(Agent(Failing(2)), counters(("2t",)), 1, 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_motion_is_of_actions_as_long_as_they_are_held():
    """Of 3, 3 and 1 steps: the end of the episode cuts the last one short."""

    class Scripted(EpsilonAlgorithm):
        def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
            step = super().predict_step(time_step, state)
            return step._replace(output=torch.full((1, 2), (0.0, 1.0, -1.0, 0.0)[int(state[0])]))

    environment = create_environment(env_id("Counter"), 1, env_kwargs={"scripts": (("7t",),)}, action_repeat=3)
    (episode,) = evaluate(Agent(Scripted(2)), environment, 1, seed=0)
    moved = np.array([[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 3 + [[-1.0, -1.0]])
    assert episode.length == 7 and episode.high_frequency == pytest.approx(high_frequency(moved))
