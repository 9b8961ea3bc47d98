"""The collector alone: what it counts and hands on, by hand; its state in the middle of episodes; failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

from taac import nest
from taac.acting.collector import Collector
from taac.acting.random_numbers import TRAINING, derived_seed
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.data_structures import AlgStep, Experience, Nest, StepType, TimeStep
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import EnvironmentFailed
from taac.networks import ObservationNormalizer
from taac.runs.files import Damaged
from tests.environments.toys import env_id

FIRST, MID, LAST = (int(t) for t in StepType)
RANDOM = -1.0  # `info` of a uniformly random step
EVEN_SEED = next(seed for seed in range(20) if derived_seed(seed, TRAINING, 0) % 2 == 0)  # the first script comes first


class Alternating(Algorithm):
    """Chooses a new action at every other frame of an episode. `info` is the frame's place in the episode, its state."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.unused, self.size = nn.Parameter(torch.zeros(())), size

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size)

    def rollout_step(self, time_step: TimeStep, state: torch.Tensor) -> AlgStep:
        action = ((state + 1) / 10).unsqueeze(-1).expand(-1, self.size)
        return AlgStep(action, state + 1, state, state % 2 == 0)

    def random_step(self, time_step: TimeStep, state: torch.Tensor) -> AlgStep:
        step = self.rollout_step(time_step, state)
        return step._replace(output=-step.output, info=torch.full_like(state, RANDOM))


class Frames(list):
    """Stands for a replay buffer."""

    device = torch.device("cpu")

    def add(self, experience: Experience) -> None:
        self.append(nest.map_structure(lambda leaf: torch.tensor(nest.array(leaf)), experience))

    def newest_episode(self, environment: int) -> None:
        return None


class Halving:
    """An explorer that halves every third action, which it counts in its state."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def check(self, action_spec: Nest) -> None: ...

    def initial_state(self, action: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(action))

    def step(self, time_step, alg_step, state, env_steps, uniform) -> Any:
        self.asked.append(env_steps)
        factor = torch.where(state % 3 == 2, 0.5, 1.0).unsqueeze(-1)
        return alg_step._replace(output=alg_step.output * factor), state + 1


def collector_in(environment: VectorEnvironment, size: int = 2, seed: int = EVEN_SEED, **options: Any) -> Collector:
    return Collector(environment, Agent(Alternating(size)), Frames(), seed, **options)


def counter(*scripts: tuple[str, ...], **options: Any) -> VectorEnvironment:
    return create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, **options)


@pytest.mark.parametrize("device, kind", [("cpu", np.ndarray), ("cuda", torch.Tensor)])
def test_frames_are_handed_on_as_their_place_needs_them(monkeypatch, device, kind):
    """Arrays need no conversion on the CPU; on a GPU, tensors that are there already need not be sent again."""
    collector, added = collector_in(counter(("2t",))), []
    collector._replay.device = torch.device(device)
    monkeypatch.setattr(collector._replay, "add", added.append)
    collector.step()
    assert {type(leaf) for leaf in nest.flatten(added[0].time_step)} == {kind}


def test_what_is_counted_and_handed_on():
    """Episodes of 2 transitions beside episodes of 3. New actions come at the frames 0 and 2 of an episode.

    At LAST nothing is decided, whatever the algorithm says. The reward on arriving at step k of episode e is 10 e + k.
    """
    collector = collector_in(counter(("2t",), ("3u",)))
    rows = []
    for _ in range(7):
        transitions = collector.step()
        rows.append((transitions, collector.env_steps, collector.decisions, collector.episodes))
    assert rows == [
        (2, 2, 2, 0),  # F F
        (2, 4, 2, 0),  # M M
        (1, 5, 3, 1),  # L M, which decides
        (1, 6, 4, 2),  # F L
        (2, 8, 5, 2),  # M F
        (1, 9, 5, 3),  # L M
        (2, 11, 7, 3),  # F M
    ]
    frames = collector._replay
    assert torch.stack([f.time_step.step_type for f in frames]).T.tolist() == [
        [FIRST, MID, LAST, FIRST, MID, LAST, FIRST],
        [FIRST, MID, MID, LAST, FIRST, MID, MID],
    ]
    assert torch.stack([f.rollout_info for f in frames]).T.tolist() == [[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1, 2]]
    assert torch.stack([f.time_step.reward for f in frames]).T.tolist() == [[0, 1, 2, 0, 11, 12, 0], [0, 1, 2, 3, 0, 11, 12]]
    assert collector.fraction_repeated == 1 - 7 / 11
    ended, signal_returns = collector.pop_episodes()
    assert [(e.ret.item(), e.length, e.decisions) for e in ended] == [(3, 2, 1), (6, 3, 2), (23, 2, 1)]
    assert signal_returns == [] and collector.pop_episodes() == ([], [])


def test_repeated_actions_count_by_their_steps():
    """Episodes of 3 steps under actions of 2: they take 2 steps and then 1; the reset at LAST takes none."""
    collector = collector_in(counter(("3t",), action_repeat=2))
    rows = [(collector.step(), collector.env_steps, collector.decisions) for _ in range(6)]
    assert rows == [(1, 2, 1), (1, 3, 1), (0, 3, 1), (1, 5, 2), (1, 6, 2), (0, 6, 2)]


def test_random_actions_come_first_and_explorers_after_them():
    """Of an episode that does not end: 3 random steps are 0 to 2. Then the explorer is asked, and halves its third action."""
    explorer = Halving()
    collector = collector_in(counter(("99n",)), explorer=explorer, uniform_steps=3)
    for _ in range(8):
        collector.step()
    assert explorer.asked == [3, 4, 5, 6, 7]
    frames = collector._replay
    assert [f.rollout_info.item() for f in frames] == [RANDOM] * 3 + [3, 4, 5, 6, 7]
    executed = [f.time_step.prev_action[0, 0].item() for f in frames[1:]]
    assert executed == pytest.approx([-0.1, -0.2, -0.3, 0.4, 0.5, 0.6 / 2, 0.7])


def test_a_failed_step_stores_and_counts_nothing(monkeypatch):
    collector = collector_in(counter(("9t",)))
    collector.step()
    before = str(collector.state_dict())

    def fails(action):
        raise EnvironmentFailed("it")

    monkeypatch.setattr(collector.environment, "step", fails)
    with pytest.raises(EnvironmentFailed):
        collector.step()
    assert str(collector.state_dict()) == before and len(collector._replay) == 1


@pytest.mark.parametrize("ends", ["restart", "give_up"])
def test_an_episode_that_ended_before_a_failed_step_is_reported(ends, monkeypatch):
    """The first environment is at LAST when the second fails. What runs then is cut off, and is no episode."""
    collector = collector_in(counter(("2t",), ("9t",)))
    for _ in range(2):
        collector.step()
    step, failure = collector.environment.step, EnvironmentFailed("it")

    def fails(action):
        raise failure

    monkeypatch.setattr(collector.environment, "step", fails)
    with pytest.raises(EnvironmentFailed):
        collector.step()
    monkeypatch.setattr(collector.environment, "step", step)
    monkeypatch.setattr(collector.environment, "restart", lambda failure: None)
    add, reported, recorder = collector._recorder.add, [], collector._recorder
    monkeypatch.setattr(recorder, "add", lambda *given, **more: reported.append(more) or add(*given, **more))
    collector.restart(failure) if ends == "restart" else collector.give_up()
    assert reported[0]["episode_info"] is collector.environment.episode_info
    assert [(e.ret.item(), e.length, e.decisions) for e in collector.ended] == [(3, 2, 1)]
    assert (collector.env_steps, collector.decisions, collector.episodes) == (4, 2, 1)
    collector.give_up()
    assert collector.episodes == 1


def test_giving_up_ends_the_running_episodes_where_they_were_last_seen():
    """The frame to act at next becomes LAST. It is handed on once, counts as no step, and still bootstraps.

    Statistics do not count it: a step that failed has observed it before.
    """
    collector = collector_in(counter(("9t",), ("9u",)))
    collector.agent.observation_normalizer = ObservationNormalizer(collector.environment.observation_spec)
    collector.step()
    collector.step()
    seen = collector.rollout.time_step
    for _ in range(2):
        collector.give_up()
    (last,) = collector._replay[2:]
    assert last.time_step.step_type.tolist() == [LAST, LAST] and last.time_step.discount.tolist() == [1, 1]
    for name in ("reward", "observation", "prev_action"):
        assert torch.equal(getattr(last.time_step, name), getattr(seen, name))
    assert (collector.env_steps, collector.episodes) == (4, 0)
    assert collector.state_dict()["running"] is None
    assert collector.agent.observation_normalizer.count == 4


def test_explorers_begin_anew_after_a_restart(monkeypatch):
    """Two actions, then new episodes: the third action of those is halved."""
    collector = collector_in(counter(("99n",)), explorer=Halving())
    monkeypatch.setattr(collector.environment, "restart", lambda failure: None)
    for _ in range(2):
        collector.step()
    collector.restart(EnvironmentFailed("it"))
    for _ in range(5):
        collector.step()
    executed = [f.time_step.prev_action[0, 0].item() for f in collector._replay]
    assert executed == pytest.approx([0, 0.1, 0.2, 0, 0.1, 0.2, 0.3 / 2, 0.4])


def test_explorers_begin_anew_with_each_episode():
    """In the environment that begins one alone: every third action of its episode is halved."""
    collector = collector_in(counter(("3t",), ("99n",)), explorer=Halving())
    for _ in range(9):
        collector.step()
    executed = torch.stack([f.time_step.prev_action[:, 0] for f in collector._replay], dim=1).tolist()
    assert executed[0] == pytest.approx([0, 0.1, 0.2, 0.3 / 2] * 2 + [0])
    assert executed[1] == pytest.approx([0, 0.1, 0.2, 0.3 / 2, 0.4, 0.5, 0.6 / 2, 0.7, 0.8])


# State ----------------------------------------------------------------------------------------------------------------


def swinging(explorer: Halving | None = None) -> Collector:
    """Two pendulums, whose state follows from the seed and all actions. Episodes have 5 transitions."""
    environment = create_environment("Pendulum-v1", 2, max_episode_steps=5)
    return collector_in(environment, size=1, seed=3, explorer=explorer or Halving(), uniform_steps=4)


@pytest.mark.parametrize("moment", [0, 1, 4, 5, 6, 10])
def test_a_state_saved_in_the_middle_of_episodes_goes_on_alike(moment):
    """At 5 the frame to act at is LAST; at 6 it is FIRST; at 10 the explorer is about to halve an action."""
    whole, first, second = swinging(), swinging(), swinging()
    for _ in range(moment + 7):
        whole.step()
    for _ in range(moment):
        first.step()
    second.load_state_dict(first.state_dict())
    assert second.num_restarts == 0
    for _ in range(7):
        second.step()
    rest = [*first._replay, *second._replay]
    for one, other in zip(whole._replay, rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(nest.flatten(one), nest.flatten(other), strict=True))
    assert str(whole.state_dict()) == str(second.state_dict())


def test_saving_changes_nothing():
    whole, saved = swinging(), swinging()
    for _ in range(13):
        whole.step()
        saved.state_dict()
        saved.step()
    assert str(whole.state_dict()) == str(saved.state_dict())


def test_restoring_leaves_the_random_numbers_of_the_run_alone():
    """Even if the environments draw from numpy's own generator, which is seeded for each of their episodes."""
    first, second = (collector_in(create_environment(env_id("GlobalNoise")), size=1) for _ in range(2))
    for _ in range(3):
        first.step()
    np.random.seed(7)
    second.load_state_dict(first.state_dict())
    drawn = np.random.random()
    np.random.seed(7)
    assert drawn == np.random.random()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state.update(decisions=-1), "counts -1 decisions, expected 0 or more"),
        (lambda state: state["running"].update(numbers=[0]), r"no numbers of 2 episodes: \[0\]"),
        (lambda state: state["running"].update(numbers=[0, -1]), r"no numbers of 2 episodes: \[0, -1\]"),
        (lambda state: state["running"].update(policy=[torch.zeros(3)]), "states of another kind"),
        (lambda state: state["running"].update(explorer=[torch.zeros(2, dtype=torch.int64)]), "states of another kind"),
    ],
)
def test_states_that_do_not_fit_are_refused(change, message):
    first = swinging()
    for _ in range(6):
        first.step()
    change(state := first.state_dict())
    with pytest.raises(Damaged, match=message):
        swinging().load_state_dict(state)


def test_episodes_that_cannot_be_restored_are_truncated_where_they_were(capsys):
    """With another action in the log, the pendulums swing elsewhere."""
    first, second = swinging(), swinging()
    for _ in range(9):
        first.step()
    state = first.state_dict()
    state["running"]["actions"][1][0][0] += 0.5
    second.agent.algorithm.random_step = second.agent.algorithm.rollout_step  # whose info is the policy's state
    second.load_state_dict(state)
    assert "at 16 environment steps: 'Pendulum-v1' reached another state" in capsys.readouterr().err
    (last,) = second._replay
    assert last.time_step.step_type.tolist() == [LAST, LAST]
    assert torch.equal(last.time_step.observation, first.rollout.time_step.observation)
    # TAAC's info holds the trajectory that led there, and its critics learn from it.
    assert first.rollout.state.tolist() == [3, 3] == last.rollout_info.tolist()
    assert second.rollout.state.tolist() == [0, 0]
    assert second.num_restarts == 1 and second.env_steps == first.env_steps
    assert second.rollout.time_step.step_type.tolist() == [FIRST, FIRST]


class Drawing:
    """An explorer that takes a uniformly random action at every step."""

    def check(self, action_spec):
        pass

    def initial_state(self, action):
        return ()

    def step(self, time_step, alg_step, state, env_steps, uniform):
        return alg_step._replace(output=uniform()), ()


def test_an_explorer_that_draws_does_not_count_observations_twice():
    collector = collector_in(counter(("9t",), ("9u",)), explorer=Drawing())
    normalizer = ObservationNormalizer(collector.environment.observation_spec)
    collector.agent.observation_normalizer = normalizer
    for _ in range(3):
        collector.step()
    assert normalizer.count == 2 * 3
