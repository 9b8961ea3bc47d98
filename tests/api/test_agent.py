"""Acting in a loop of one's own: what the agent does in evaluations, with the state outside."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import taac
from taac import configuration, nest
from taac.acting.evaluation import evaluate
from taac.algorithms import Algorithm, TaacAlgorithm
from taac.api.agent import TrainedAgent
from taac.data_structures import StepType
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.playing.pictures import Pictures
from taac.playing.saved_agent import load_saved
from taac.training import experiment
from tests.environments.team import TEAM, Team
from tests.environments.toys import Masked, env_id
from tests.learning.test_optimizers import CAMERA
from tests.learning.test_roles import disturb
from tests.methods import DETERMINISTIC, DISCRETE_METHODS, every_method, fitting
from tests.training.runs import SMALL, built
from tests.training.test_tensorboard import TINY


def untrained(method, *params, role="act"):
    """An agent, and its environment."""
    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], [*TINY, *fitting(method), *params])
    environment = configuration.build(lambda: create_environment(num_envs=1))
    agent = configuration.build(lambda: experiment.create_agent(environment, experiment.choose_device("cpu"), role=role))
    return TrainedAgent(agent, environment, method, 0), agent, environment


@pytest.fixture(scope="module")
def valued(trained):
    """The agent of the run with its critics."""
    return taac.load(trained.root_dir, critics=True)


def episode(act, env, seed):
    """Return and length of one episode of Gymnasium's own loop."""
    observation, _ = env.reset(seed=seed)
    total, length, done = 0.0, 0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, length, done = total + float(reward), length + 1, terminated or truncated
    return total, length


@pytest.mark.parametrize("method", every_method("sac_nrep", "sac_krep"))
def test_every_method_acts_as_in_evaluations(method):
    agent, inner, environment = untrained(method, "create_environment.action_repeat_plain_sum = True")
    try:
        (expected,) = evaluate(inner, environment, 1, seed=7)
        controller = agent.controller()
        found, _ = episode(controller.act, environment._env.envs[0], seed=7)
    finally:
        environment.close()
    assert found == pytest.approx(float(expected.ret), rel=1e-12)


@pytest.mark.parametrize("method", every_method("sdar", "sac_krep", "sac_branches"))
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
            assert (found.std > 0).all() if method not in DETERMINISTIC else not found.std.any()
            first = np.tanh(found.mean)[:, : action[-1].shape[1]]  # of a chunk, the first action
            assert action[-1][new] == pytest.approx(first[new], abs=1e-6)
        if found.probabilities is not None:
            assert found.probabilities.sum(-1) == pytest.approx(1.0)
            assert action[0].reshape(4, -1).tolist() == found.probabilities.argmax(-1).reshape(4, -1).tolist()
        assert (found.mean is None) == (method in DISCRETE_METHODS) and found[4:] == (None, None)
        state = after
    one = agent.distribution(observation[0], agent.initial_state())
    assert all((a is None) == (b is None) and (a is None or a.shape == b.shape[1:]) for a, b in zip(one, found))


@pytest.mark.parametrize("method", every_method("sdar", "sac_krep", "sac_hybrid", "sac_branches", "sac_value"))
def test_every_method_decides_by_the_values_that_its_distribution_says(method):
    """Probabilities, durations and the default of `q` follow from `q_choices` wherever the method asks its critics."""
    torch.manual_seed(0)
    agent, inner, environment = untrained(method, role="value")
    environment.close()
    disturb(inner)
    agent.observation_space.seed(0)
    space, state, algorithm = agent.observation_space, agent.initial_state(4), inner.algorithm
    for _ in range(3):
        observation = np.stack([space.sample() for _ in range(4)])
        if method == "sac_chunk":  # whose values are of whole chunks
            state = agent.initial_state(4)
        found, (action, after) = agent.distribution(observation, state), agent.act(observation, state)
        q, choices, taken = found.q, found.q_choices, np.zeros(4, int)
        assert q.shape == (4,) and q.std() > 0.01
        if method.startswith("temporl"):
            assert choices.shape == (4, algorithm.max_skip)
            left = np.where(after.decided, choices.argmax(-1), after.memory.left)
            assert left.tolist() == after.memory.left.tolist()
        elif method == "tla":
            begins = after.memory.left == algorithm.slow_steps - 1
            assert choices.shape == (4, 2) and (choices.argmax(-1) == after.memory.open)[begins].all()
        elif found.switch_probability is not None and method != "sdar":
            assert q == pytest.approx(np.where(after.decided, choices[:, 1], choices[:, 0]), rel=1e-4, abs=1e-5)
            if method != "sac_hybrid":  # whose switch is learnt
                beta = algorithm.switch_distribution(*torch.from_numpy(choices).unbind(-1))[:, 1]
                free = found.switch_probability < 1  # where a chunk has ended, the switch has no choice
                assert free.all() or method == "taac_chunk"
                assert found.switch_probability[free] == pytest.approx(beta.detach().numpy()[free], abs=1e-5)
        elif found.probabilities is not None:
            assert choices.shape == found.probabilities.shape
            taken = nest.flatten(after.action)[0].reshape(*choices.shape[:-1], 1)
            assert q == pytest.approx(np.take_along_axis(choices, taken, -1).reshape(4, -1).mean(-1), rel=1e-4, abs=1e-5)
            if method == "sac_krep":
                probs = algorithm._choice_probs(torch.from_numpy(choices)).detach().numpy()
                assert found.probabilities == pytest.approx(probs, abs=1e-5)
        else:
            assert choices is None
        new = agent.distribution(observation, state, action)
        same = np.ones(4, bool) if after.decided.ndim > 1 else after.decided
        assert new.q[same] == pytest.approx(q[same], rel=1e-4, abs=1e-5)
        assert all(np.array_equal(a, b) for a, b in zip(new[:4] + new[5:], found[:4] + found[5:]))
        state = after
    one = agent.distribution(observation[0], agent.initial_state(), nest.map_structure(lambda leaf: leaf[0], action))
    assert one.q.shape == () and (one.q_choices is None or one.q_choices.shape == choices.shape[1:])


def test_what_a_switch_compares_is_less_the_price_of_a_decision():
    found = []
    for price in (0.0, 0.3):
        torch.manual_seed(0)
        agent, inner, environment = untrained("taac", f"TaacAlgorithm.decision_price = {price}", role="value")
        environment.close()
        torch.manual_seed(0)
        disturb(inner)
        observation = np.linspace(-1, 1, 12).reshape(4, 3)
        one = agent.distribution(observation, agent.initial_state(4))
        beta = inner.algorithm.switch_distribution(*torch.from_numpy(one.q_choices).unbind(-1))[:, 1].detach().numpy()
        assert one.switch_probability == pytest.approx(beta, abs=1e-5)
        found.append(one.q_choices)
    price = inner.algorithm.decision_price().item()
    assert price > 0.1
    assert found[1] == pytest.approx(found[0] - np.array([0.0, price]), abs=1e-5)


def test_a_loaded_agent_switches_above_the_threshold_it_is_given(trained):
    observation = np.stack([trained.agent.observation_space.sample() for _ in range(20)])
    decided = [
        taac.load(trained.root_dir, switch_threshold=threshold).act(observation, trained.agent.initial_state(20))[1].decided
        for threshold in (0.0, 0.9999)
    ]
    assert decided[0].all() and not decided[1].any()


class HandActor(torch.nn.Module):
    """Proposes 0.25."""

    def forward(self, features):
        return torch.full_like(features, 0.25).atanh(), torch.zeros_like(features)


class HandCritics(torch.nn.Module):
    """`Q_1 = (4 a + s, -1)` and `Q_2 = (2 - a, -2)`, of a reward of two parts."""

    def forward(self, features, action):
        a, s = action[..., 0], features[..., 0]
        parts = [(4 * a + s, -torch.ones_like(a)), (2 - a, -2 * torch.ones_like(a))]
        return torch.stack([torch.stack(of_one, -1) for of_one in parts])


def test_values_by_hand():
    """Of weights 1 and -0.5: the least of the first part, and the greatest of the second, which is -1 and so adds 0.5."""
    two = "create_environment.env_name = 'tests.toy_tasks:taac-test/TwoRewards-v0'"
    agent, inner, environment = untrained("taac", two, "TaacAlgorithm.reward_weights = (1.0, -0.5)", role="value")
    environment.close()
    algorithm = inner.algorithm
    algorithm.critics, algorithm.encoder, algorithm.actor = HandCritics(), torch.nn.Identity(), HandActor()
    algorithm.tau_embedding.forward = lambda features, tau: features
    state = agent.initial_state(3)._replace(first=np.array([True, False, False]))
    state.memory.tau.a[:] = 1.0  # which is read where no episode begins
    seen = np.array([[0.0], [-2.0], [0.5]], np.float32) + np.zeros(agent.observation_space.shape, np.float32)
    found = agent.distribution(seen, state)
    # of continuing 0 where an episode begins, else 1: min(4 a + s, 2 - a) + 0.5; and of 0.25: min(1 + s, 1.75) + 0.5
    assert found.q_choices == pytest.approx(np.array([[0.5, 1.5], [1.5, -0.5], [1.5, 2.0]]))
    assert found.q.tolist() == pytest.approx([1.5, 1.5, 2.0])
    given = agent.distribution(seen, state, np.array([[1.0], [-2.0], [0.0]]))  # 0.5, -1 and 0 in the agent's scale
    assert given.q.tolist() == pytest.approx([1.5 + 0.5, -6.0 + 0.5, 0.5 + 0.5])
    assert np.array_equal(given.q_choices, found.q_choices)


@pytest.mark.parametrize("critics", [[], ["ActorCriticAlgorithm.critic_ctor = @PrefixCritics"]])
def test_inside_a_chunk_only_critics_of_prefixes_know_q(critics):
    lengths = ("SacChunkAlgorithm.chunk_length = 3", "Trainer.segment_length = 4")
    agent, _, environment = untrained("sac_chunk", *lengths, *critics, role="value")
    environment.close()
    agent.observation_space.seed(0)
    seen, state, known = agent.observation_space.sample(), agent.initial_state(), []
    for _ in range(4):
        action, after = agent.act(seen, state)
        found = (agent.distribution(seen, state).q, agent.distribution(seen, state, action).q)
        known.append([bool(np.isfinite(q)) for q in found])
        state = after
    inside = [bool(critics)] * 2
    assert known == [[True, True], inside, inside, [True, True]]


def test_episodes_that_ended_are_kept_where_playing_is_stopped(trained, tmp_path, monkeypatch, capsys):
    def stopped(*args):
        evaluate(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr("taac.playing.episodes.evaluate", stopped)
    file = tmp_path / "two.npz"
    with pytest.raises(KeyboardInterrupt):
        trained.play(2, record_demonstrations=str(file))
    assert f"{file} holds the 2 episodes that had ended" in capsys.readouterr().err
    assert (np.load(file)["step_type"] == StepType.LAST).sum() == 2


def test_episodes_are_kept_where_drawing_fails(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(Pictures, "finish", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained.play(1, record_demonstrations=str(tmp_path / "one.npz"))
    assert (np.load(tmp_path / "one.npz")["step_type"] == StepType.LAST).sum() == 1


def test_a_loaded_agent_values_actions_if_it_keeps_its_critics(trained, valued):
    """It acts as it does without them. Each row has its own value."""
    bare = trained.agent
    state, seen = bare.initial_state(2), np.array([[1.0, 0.0, 0.5], [-1.0, 0.0, 2.0]], np.float32)
    found, without = valued.distribution(seen, state), bare.distribution(seen, state)
    assert without.q is None and all(np.array_equal(a, b) for a, b in zip(found[:4], without[:4]) if a is not None)
    actions = np.array([[-2.0], [2.0]], np.float32)  # the bounds of Pendulum's torque
    q = valued.distribution(seen, state, actions).q
    alone = [valued.distribution(one, valued.initial_state(), action).q for one, action in zip(seen, actions)]
    assert q == pytest.approx(np.array(alone), rel=1e-5) and q.shape == (2,) and (q != found.q).all()
    with pytest.raises(TaacError, match=r"no critics to value an action with: load it with taac\.load\(\.\.\., critics=True\)"):
        bare.distribution(seen, state, actions)


@pytest.mark.parametrize(
    "action, message",
    [
        (np.zeros((3, 1)), r"the action has the shape \[3, 1\], expected \[2, 1\]: the state is of 2 environments"),
        (np.zeros(1), r"the action has the shape \[1\], expected \[2, 1\]"),
        ([[0.0], [np.nan]], "the action holds a number that is not finite"),
        ([[0.0], [2.5]], r"the batch has an action outside Box.*: \[2\.5\], at step 1"),
        ({"a": 1}, "the action .* expected"),
    ],
)
def test_actions_that_do_not_fit_are_not_valued(valued, action, message):
    with pytest.raises(TaacError, match=message):
        valued.distribution(np.zeros((2, 3)), valued.initial_state(2), action)


def test_choices_are_valued_as_the_environment_counts_them():
    masked = f"create_environment.env_name = '{env_id('Masked')}'", "create_environment.env_kwargs = {'start': 3}"
    agent, inner, environment = untrained("sac_discrete", *masked, role="value")
    environment.close()
    observation, _ = Masked(start=3).reset(seed=0)
    state, table = agent.initial_state(), torch.tensor([[0.0, 1, 2, 3, 4], [9, 8, 7, -1, 5]])
    inner.algorithm.critics.forward = lambda features: table.unsqueeze(1)
    assert agent.distribution(observation, state).q_choices.tolist() == [[0, 1, 2, -1, 4]]
    assert [agent.distribution(observation, state, choice).q.item() for choice in (3, 4, np.int64(6), 7.0)] == [0, 1, -1, 4]
    for wrong, message in ((2, r"a choice is \[2\]"), (8, r"a choice is \[8\]"), (3.5, r"3\.5 is no int64; pass actions as")):
        with pytest.raises(TaacError, match=rf"the action does not fit Discrete.*{message}"):
            agent.distribution(observation, state, wrong)


@pytest.mark.parametrize("method, kind", [("taac", "box"), ("sac_discrete", "discrete")])
def test_agents_that_share_a_policy_are_valued_each(method, kind):
    """The environments' rows, each of 3 agents, are those of each environment alone."""
    of = {"kind": kind, "comes_and_goes": True}
    team = f"create_environment.env_name = '{TEAM}'", f"create_environment.env_kwargs = {of}"
    agent, inner, environment = untrained(method, *team, "create_agent.shared_policy = True", role="value")
    disturb(inner)
    environment.close()
    observation = nest.map_structure(lambda *rows: np.stack(rows), *[Team(**of).reset(seed=seed)[0] for seed in range(4)])
    state, action = agent.initial_state(4), np.stack([agent.action_space.sample() for _ in range(4)])
    found, given = agent.distribution(observation, state), agent.distribution(observation, state, action)
    assert found.q.shape == given.q.shape == (4, 3) and (found.q != given.q).any()
    for row in range(4):
        alone = agent.distribution(nest.index(observation, row), agent.initial_state(), action[row])
        assert alone.q == pytest.approx(given.q[row], rel=1e-4, abs=1e-5)
        assert alone.q_choices == pytest.approx(found.q_choices[row], rel=1e-4, abs=1e-5)


def test_an_algorithm_without_a_distribution_or_values_says_so(trained, valued, monkeypatch):
    monkeypatch.setattr(TaacAlgorithm, "action_values", Algorithm.action_values)
    with pytest.raises(TaacError, match="TaacAlgorithm does not define action_values"):
        valued.distribution(np.zeros(3, np.float32), valued.initial_state())
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
    with pytest.raises(TaacError, match="action_mask of the observation forbids every choice"):
        agent.act({**observation, "action_mask": np.zeros_like(observation["action_mask"])}, agent.initial_state())
    for bare in (observation["numbers"], [1.0, 2.0], None):
        with pytest.raises(TaacError, match="does not fit Dict"):
            agent.act(bare, agent.initial_state())
    with pytest.raises(TaacError, match=r"the state must be agent.initial_state\(\).*got None"):
        agent.act(observation, None)


ASYMMETRIC = (
    "create_environment.env_name = 'tests.toy_tasks:taac-test/Asymmetric-v0'", "create_agent.normalize_observations = True"
)  # fmt: skip


@pytest.mark.parametrize("method, algorithm, reads", [("sac", "Sac", False), ("taac", "Taac", True)])
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


def test_critics_with_privileged_keys_are_one_file():
    """The actor sees the other keys alone, whichever these are."""
    files = ["gin/tasks/simple_control.gin", "gin/methods/sac.gin", "gin/privileged.gin"]
    for privileged, seen in (("global_state", "x"), ("x", "global_state")):
        trainer = built(files, [*SMALL, *ASYMMETRIC, f"LocalEncoder.privileged = ('{privileged}',)"])
        algorithm, observation = trainer.agent.algorithm, trainer.environment.reset(0).observation
        assert (algorithm.encoder.output_size, algorithm.actor_encoder.output_size) == (2, 1)
        before = algorithm.actor_features(observation)
        for key, changes in ((privileged, False), (seen, True)):
            other = {**observation, key: observation[key] + 1.0}
            assert torch.equal(algorithm.actor_features(other), before) != changes
            assert not torch.equal(algorithm.encoder(other), algorithm.encoder(observation))
        trainer.close()


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
    with pytest.raises(TaacError, match="holds no run"):
        taac.load(tmp_path)
