"""Acting in a loop of one's own: what the agent does in evaluations, with the state outside."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import taac
from taac import configuration, nest
from taac.acting.evaluation import evaluate
from taac.algorithms import TaacAlgorithm
from taac.api.agent import TrainedAgent
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.training import experiment
from taac.training.saved_agent import load_saved
from tests.environments.toys import Masked, env_id
from tests.learning.test_optimizers import CAMERA
from tests.methods import DISCRETE_METHODS, METHODS, fitting
from tests.training.test_tensorboard import TINY


def untrained(method, *params):
    """An agent, and its environment."""
    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [*TINY, *fitting(method), *params])
    environment = configuration.build(lambda: create_environment(num_envs=1))
    agent = configuration.build(
        lambda: experiment.create_agent(environment, experiment.choose_device("cpu"), role="act")
    )
    return TrainedAgent(agent, environment, method, 0), agent, environment


def episode(act, env, seed):
    """Return and length of one episode of Gymnasium's own loop."""
    observation, _ = env.reset(seed=seed)
    total, length, done = 0.0, 0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, length, done = total + float(reward), length + 1, terminated or truncated
    return total, length


@pytest.mark.parametrize("method", METHODS)
def test_every_method_acts_as_in_evaluations(method):
    agent, inner, environment = untrained(method, "create_environment.action_repeat_plain_sum = True")
    try:
        (expected,) = evaluate(inner, environment, 1, seed=7)
        controller = agent.controller()
        found, _ = episode(controller.act, environment._env.envs[0], seed=7)
    finally:
        environment.close()
    assert found == pytest.approx(float(expected.ret), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_greedy_step_takes_the_mode_of_its_distribution(method):
    """At the first frames of four episodes, and at the next ones, where a trajectory may go on."""
    agent, _, environment = untrained(method)
    environment.close()
    space, state = agent.observation_space, agent.initial_state(4)
    for _ in range(2):
        observation = np.stack([space.sample() for _ in range(4)])
        found = agent.distribution(observation, state)
        _, after = agent.act(observation, state)
        new, action = after.decided, nest.flatten(after.action)
        if found.switch_probability is not None:
            assert np.array_equal(new, found.switch_probability > 0.5)
        if found.mean is not None:
            assert (found.std > 0).all()
            assert action[-1][new] == pytest.approx(np.tanh(found.mean)[new], abs=1e-6)
        if found.probabilities is not None:
            assert found.probabilities.sum(-1) == pytest.approx(1.0)
            assert action[0].reshape(4, -1).tolist() == found.probabilities.argmax(-1).reshape(4, -1).tolist()
        assert (found.mean is None) == (method in DISCRETE_METHODS) and len(found) == 4
        state = after
    one = agent.distribution(observation[0], agent.initial_state())
    assert all((a is None) == (b is None) and (a is None or a.shape == b.shape[1:]) for a, b in zip(one, found))


def test_an_algorithm_without_a_distribution_says_so(trained, monkeypatch):
    step = TaacAlgorithm.predict_step
    monkeypatch.setattr(TaacAlgorithm, "predict_step", lambda *given, **more: step(*given, **more)._replace(policy=()))
    with pytest.raises(TaacError, match=r"TaacAlgorithm\.predict_step returns no AlgStep\.policy"):
        trained.agent.distribution(np.zeros(3, np.float32), trained.agent.initial_state())


def test_a_trained_agent_in_a_plain_environment(trained):
    agent = taac.load(trained.root_dir)
    assert repr(agent) == "TrainedAgent(taac, 330 environment steps)" and agent.action_space.shape == (1,)
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)
    state, states = agent.initial_state(), []

    def act(observation):
        nonlocal state
        action, state = agent.act(observation, state)
        states.append(state)
        assert agent.action_space.contains(action)
        return action

    total, length = episode(act, env, seed=0)
    expected = trained.evaluate(1)
    assert (total, length) == (pytest.approx(expected.return_mean, rel=1e-6), 20)
    repeated = 1 - np.mean([s.decided[0] for s in states])
    assert repeated == pytest.approx(expected.summary.fraction_repeated) and 0 < repeated < 1
    assert not any(s.first.any() for s in states) and agent.initial_state().first.all()


def test_acting_takes_one_thread_unless_told_otherwise_and_gives_back_the_others(trained, monkeypatch):
    seen, step = [], TaacAlgorithm.predict_step

    def watched(*given, **more):
        seen.append(torch.get_num_threads())
        return step(*given, **more)

    monkeypatch.setattr(TaacAlgorithm, "predict_step", watched)
    torch.set_num_threads(2)
    try:
        agent = taac.load(trained.root_dir)
        seen.clear()
        for count in (agent.num_threads, 3):
            agent.num_threads = count
            agent.act(np.zeros(3, dtype=np.float32), agent.initial_state())
        taac.Run(trained.root_dir).play(1)
        assert torch.get_num_threads() == 2
        load_saved(trained.root_dir).environment.close()  # as the commands do, for as long as they last
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
    assert seen[:2] == [1, 3] and set(seen[2:]) == {1}


def test_rows_of_a_batch_act_alone(trained):
    """Two environments side by side, of which one begins a new episode, act as each alone."""
    agent = trained.agent
    observations = np.random.default_rng(0).uniform(-1, 1, (12, 2, 3)).astype(np.float32)
    both, alone = agent.initial_state(2), [agent.initial_state(), agent.initial_state()]
    kept = []
    for number, observation in enumerate(observations):
        if number == 6:
            both, alone[1] = both.restarted([False, True]), agent.initial_state()
        actions, both = agent.act(observation, both)
        assert actions.shape == (2, 1)
        for row in range(2):
            action, alone[row] = agent.act(observation[row], alone[row])
            np.testing.assert_allclose(actions[row], action, rtol=1e-5, atol=1e-6)
            assert bool(both.decided[row]) == bool(alone[row].decided[0])
        kept.append(both.decided)
    assert np.any(kept) and not np.all(kept)


@pytest.mark.parametrize("where", [[2], [0, 1], [True], np.ones((2, 1), dtype=bool), None])
def test_what_does_not_say_which_episodes_begin_is_refused(trained, where):
    state = trained.agent.initial_state(2)
    with pytest.raises(TaacError, match="a bool, or one for each of 2 environments"):
        state.restarted(where)
    assert state.restarted().first.all() and state.restarted(np.bool_(True)).first.all()


def test_states_are_values(trained):
    """An old state can be used again: nothing is kept inside."""
    agent, observation = trained.agent, np.array([1.0, 0.0, 0.5])  # float64, as some environments have it
    _, state = agent.act(observation, agent.initial_state())
    first, _ = agent.act(observation, state)
    agent.act(-observation, state)
    again, _ = agent.act(observation, state)
    assert np.array_equal(first, again)
    one, _ = agent.act(observation[None], agent.initial_state())
    assert one.shape == (1, 1)


def test_samples_follow_torch_and_differ_from_the_mode(trained):
    agent, observation = trained.agent, np.array([1.0, 0.0, 0.5])
    state = agent.initial_state()
    greedy, _ = agent.act(observation, state)
    samples = []
    for _ in range(2):
        torch.manual_seed(1)
        samples.append([agent.act(observation, state, greedy=False)[0].item() for _ in range(5)])
    assert samples[0] == samples[1] and len({greedy.item(), *samples[0]}) > 2


def test_a_controller_begins_episodes_when_told(trained):
    controller = trained.agent.controller(2)
    observation = np.zeros((2, 3), np.float32)
    controller.act(observation)
    controller.reset([True, False])
    assert controller.state.first.tolist() == [True, False]
    controller.act(observation)
    assert controller.state.decided[0] and not controller.state.first.any()
    controller.reset()
    assert controller.state.first.all()


def test_observations_may_be_nests():
    """A Dict with a mask: an agent that did not see it would make a mistake at almost every step."""
    agent, _, environment = untrained("sac_discrete", f"create_environment.env_name = '{env_id('Masked')}'")
    environment.close()
    before, env = Masked.mistakes, Masked()
    _, length = episode(agent.controller().act, env, seed=0)
    assert length == 20 and Masked.mistakes == before
    observation, _ = env.reset(seed=0)
    with pytest.raises(TaacError, match="expected the keys numbers, action_mask, got numbers"):
        agent.act({"numbers": observation["numbers"]}, agent.initial_state())
    for bare in (observation["numbers"], [1.0, 2.0], None):
        with pytest.raises(TaacError, match="does not fit Dict"):
            agent.act(bare, agent.initial_state())
    with pytest.raises(TaacError, match=r"the state must be agent.initial_state\(\).*got None"):
        agent.act(observation, None)


ASYMMETRIC = (
    "create_environment.env_name = 'tests.toy_tasks:taac-test/Asymmetric-v0'", "create_agent.normalize_observations = True"
)  # fmt: skip


@pytest.mark.parametrize(
    "method, algorithm, reads", [("sac", "Sac", False), ("sac_hybrid", "Taac", False), ("taac", "Taac", True)]
)
def test_what_acting_does_not_read_is_not_asked_for(method, algorithm, reads):
    """The actor has an encoder that leaves the global state out; the switch of TAAC asks the critics, which see it."""
    agent, inner, environment = untrained(method, *ASYMMETRIC, f"{algorithm}Algorithm.actor_encoder_ctor = @LocalEncoder")
    environment.close()
    assert list(agent.observation_space) == ["global_state", "x"][not reads :]
    seen, state = {"x": np.array([0.5], np.float32)}, agent.initial_state()
    told = [line for line in inner.algorithm.describe() if "acting reads 'global_state'" in line]
    if reads:
        assert told == ["acting reads 'global_state', which the actor does not see, because it asks critics"]
        with pytest.raises(TaacError, match="expected the keys global_state, x, got x"):
            agent.act(seen, state)
        return
    assert not told
    for greedy in (True, False):
        torch.manual_seed(0)
        action, _ = agent.act(seen, state, greedy=greedy)
        torch.manual_seed(0)  # what it ignores may be passed in, whatever it is
        assert np.array_equal(action, agent.act({**seen, "global_state": None}, state, greedy=greedy)[0])
    assert agent.act({"x": np.zeros((4, 1))}, agent.initial_state(4))[0].shape == (4, 1)
    for wrong in ({}, {**seen, "other": 1}, {"global_state": np.zeros(1)}):
        with pytest.raises(TaacError, match="expected the keys x, got"):
            agent.act(wrong, state)


def test_a_choice_outside_its_space_is_refused():
    agent, _, environment = untrained("taac", f"create_environment.env_name = '{env_id('Faulty')}'")
    environment.close()
    for choice in (0, 2):
        agent.act({"fine": [0.0, 0.0], "parts": (choice, np.zeros((2, 2)))}, agent.initial_state())
    for choice in (-1, 3):
        with pytest.raises(TaacError, match=rf"does not fit Dict.*: a choice is \[{choice}\]"):
            agent.act({"fine": [0.0, 0.0], "parts": (choice, np.zeros((2, 2)))}, agent.initial_state())


def test_numbers_that_are_no_bytes_are_refused():
    """As bytes, an image scaled to [0, 1] would be black, and -1 would be white."""
    agent, _, environment = untrained("taac", *CAMERA)
    environment.close()
    image, rest = np.full((12, 10, 3), 255, np.uint8), (np.zeros(2), 5)
    expected, _ = agent.act({"camera": image, "rest": rest}, agent.initial_state())
    for same in (image.astype(float), image.astype(int), image.tolist()):
        assert agent.act({"camera": same, "rest": rest}, agent.initial_state())[0].tolist() == expected.tolist()
    for wrong, message in ((image / 300, r"0\.85 is no uint8; pass"), (image.astype(int) - 256, "-1 is no uint8")):
        with pytest.raises(TaacError, match=message):
            agent.act({"camera": wrong, "rest": rest}, agent.initial_state())
        with pytest.raises(TaacError, match=message):
            agent.act({"camera": wrong[None], "rest": (rest[0][None], [5])}, agent.initial_state())
    with pytest.raises(TaacError, match=r"5\.5 is no int64"):
        agent.act({"camera": image, "rest": (rest[0], 5.5)}, agent.initial_state())


@pytest.mark.parametrize(
    "observation, num_envs, message",
    [
        (np.zeros(4), 1, r"shape \[4\], expected \[1, 3\]: the state is of 1 environment, whose dimension may be left out"),
        (np.zeros(3), 2, r"shape \[3\], expected \[2, 3\]: the state is of 2 environments"),
        (np.zeros((3, 3)), 2, r"shape \[3, 3\], expected \[2, 3\]"),
        (np.array([0, np.nan, 0]), 1, "not finite"),
        ({"a": np.zeros(3)}, 1, r"shape \[\], expected \[1, 3\]"),
        (["a", "b", "c"], 1, "does not fit Box"),
    ],
)
def test_observations_that_do_not_fit_are_refused(trained, observation, num_envs, message):
    agent = trained.agent
    with pytest.raises(TaacError, match=message):
        agent.act(observation, agent.initial_state(num_envs))
    with pytest.raises(TaacError, match="num_envs must be 1 or more"):
        agent.initial_state(0)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(TaacError, match=r"holds no run.*use the root_dir of"):
        taac.load(tmp_path)
    with pytest.raises(TaacError, match=r"is .* the folder of a run"):
        taac.Run(tmp_path)
