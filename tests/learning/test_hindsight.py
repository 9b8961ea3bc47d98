"""Trainings with goals chosen in hindsight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.algorithms import SacAlgorithm
from taac.demonstrations.replay import SqilReplay
from taac.errors import TaacError
from taac.replay import HindsightReplayBuffer
from taac.training.checks import check_hindsight
from tests.methods import DISCRETE_METHODS, METHODS, fitting, thinned
from tests.training.runs import assert_resumes_exactly, built, learn_until, trained

TASK = "gin/tasks/goals.gin"
SMALL = [
    "create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", "hidden_layers = (64, 64)", "batch_size = 64",
    "initial_collect_steps = 300", "replay_length = 5000", "gamma = 0.9", "learning_rate = 3e-3",
]  # fmt: skip


def make(method, *params, hindsight=True):
    files = [TASK, f"gin/methods/{method}.gin", *(["gin/her.gin"] if hindsight else [])]
    return built(files, [*SMALL, *params])


OTHERS = [pytest.param(method, False, marks=pytest.mark.slow) for method in ("sac", "taac_q", "temporl", "td3", "tla")]


@pytest.mark.slow
@pytest.mark.parametrize("method, episodic", [("taac", True), *OTHERS])
def test_rewards_that_chance_hardly_finds_are_learnt_in_hindsight(method, episodic):
    """Going straight there costs 3 on average, standing still 15."""
    env = f"create_environment.env_kwargs = {{'episodic': {episodic}}}"
    trainer = trained(make(method, env), 900)
    result = summarize(evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=7))
    assert result.return_mean > -6, result


REFUSED = {"sac_krep", "sac_nrep", "tacos", *DISCRETE_METHODS}  # an action of several steps, or no such environment


QUICK = ("sac", "taac_l", "td3", "temporl", "sac_chunk")


@pytest.mark.parametrize("method", thinned([method for method in METHODS if method not in REFUSED], QUICK))
def test_every_method_whose_actions_last_a_step_learns_in_hindsight(method):
    trainer = make(method, "hidden_layers = (8,)", "batch_size = 8", *fitting(method))
    prepare, seen = trainer.agent.prepare, []
    goals = lambda experience: experience.time_step.observation["desired_goal"]  # noqa: E731
    trainer.agent.prepare = lambda experience: seen.append(goals(experience)) or prepare(experience)
    before = [p.clone() for p in trainer.agent.algorithm.critics.parameters()]
    trained(trainer, 2)
    assert all(not torch.equal(p, old) for p, old in zip(trainer.agent.algorithm.critics.parameters(), before))
    stored = trainer.replay_buffer.frames(0, trainer.replay_buffer.size)["frames/time_step/observation/desired_goal"]
    drawn = torch.cat([of.flatten(0, 1) for of in seen])
    assert not torch.isin(drawn, stored).all()  # new ones
    if isinstance(trainer.agent.algorithm, SacAlgorithm):
        assert not trainer.agent.algorithm.actor_on_last_frame


def test_the_switch_of_a_relabelled_frame_is_that_of_the_policy_under_the_new_goal():
    """So a return ends where this policy would act otherwise; what the rollout's policy did stays."""
    trainer = make("taac", "hidden_layers = (8,)", "batch_size = 8")
    while trainer.env_steps < 300:
        trainer.collect()
    trainer.close()
    agent, length = trainer.agent, trainer.segment_length
    batch = trainer.replay_buffer.sample_batch(64, length)
    stored, infos = trainer.replay_buffer.at(batch.environment, batch.first, length), []
    for of in (batch, stored):
        torch.manual_seed(0)
        infos.append(agent.algorithm.train_step(agent.prepare(of.experience)))
    goals = [of.experience.time_step.observation["desired_goal"] for of in (batch, stored)]
    new = (goals[0] != goals[1]).any(-1)
    assert 0.3 < new.float().mean() < 1
    differs = (infos[0].beta != infos[1].beta).any(-1)
    assert torch.equal(differs, new)
    assert torch.equal(batch.experience.rollout_info.switch, stored.experience.rollout_info.switch)


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_settings_for_goals_of_objects_reach_what_they_are_of(method):
    trainer = built([TASK, f"gin/methods/{method}.gin", "gin/her_objects.gin"], SMALL)
    trainer.close()
    algorithm = trainer.agent.algorithm
    assert trainer.replay_buffer.skip_achieved and algorithm.combine_critics == "mean"
    assert not getattr(algorithm, "entropy_in_target", False) and not getattr(algorithm, "actor_on_last_frame", False)
    target = algorithm.temperatures()["action"].target_entropy
    assert target == pytest.approx(2 * np.log(2 * 0.4))


@pytest.mark.slow
@pytest.mark.parametrize("env", ["FetchReach-v4", "PointMaze_UMaze-v3"])
def test_rewards_under_the_original_goal_are_the_stored_ones_at_every_frame(env):
    pytest.importorskip("gymnasium_robotics")
    trainer = make("sac", f"create_environment.env_name = '{env}'", "initial_collect_steps = 700", "num_env_steps = 1000")
    buffer = trainer.replay_buffer
    while trainer.env_steps < 700:
        trainer.collect()
    trainer.close()
    episode = buffer.newest_episode(0).time_step
    seen, arrives = episode.observation, episode.step_type != 0
    computed = buffer._rewards(seen["achieved_goal"][arrives], seen["desired_goal"][arrives])
    assert len(computed) >= 40 and torch.equal(computed, episode.reward[arrives])


@pytest.mark.slow
def test_without_hindsight_they_are_not():
    trainer = trained(make("taac", hindsight=False), 900)
    assert summarize(evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=7)).return_mean < -9


@pytest.mark.parametrize(
    "method, params, said",
    [
        ("sac_krep", [], "lasts up to 3"),
        ("sac", ["create_environment.action_repeat = 3"], "action_repeat = 1"),
        ("sac", ["create_agent.normalize_rewards = True"], "rollouts"),
        ("sac", ["create_environment.env_name = 'Pendulum-v1'"], "achieved_goal and desired_goal"),
        ("sac", ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"], "nothing in this experiment uses"),
        ("sac", ["create_environment.wrappers = (@ObservationDelay,)"], "hindsight knows no rewards: use ActionDelay"),
        (
            "sac",
            ["create_environment.wrappers = (@SuccessEndsEpisode,)", "create_agent.normalize_rewards = 'scale'"],
            "seldom reach their goals, .* get 1 for a step there: bind False, .*CategoricalReturns.low and high",
        ),
        ("sac_chunk", ["HindsightReplayBuffer.max_steps = 4"], r"max_steps must be 5 or more \(.*chunk_length = 5 .*\), got 4"),
        ("tla", ["HindsightReplayBuffer.max_steps = 5"], r"max_steps must be 6 or more \(.*slow_steps = 3\), got 5"),
    ],
)  # fmt: skip
def test_what_would_not_learn_from_other_goals_is_refused(method, params, said):
    with pytest.raises(TaacError, match=said):
        make(method, *params)


def test_rewards_of_sqil_and_goals_of_several_agents_are_refused():
    trainer = make("sac")
    trainer.close()
    buffer, environment, agent = trainer.replay_buffer, trainer.collector.environment, trainer.agent
    with pytest.raises(TaacError, match="SqilReplay sets all rewards itself"):
        check_hindsight(buffer, environment, agent, SqilReplay)
    agent.agents = 2
    with pytest.raises(TaacError, match="agents that share a policy have no goals of their own"):
        check_hindsight(buffer, environment, agent, None)


def test_processes_of_their_own_leave_the_reward_function_here():
    trainer = make("taac", "create_environment.asynchronous = True", "num_envs = 2")
    try:
        learn_until(trainer, 3)
        assert isinstance(trainer.replay_buffer, HindsightReplayBuffer)
    finally:
        trainer.close()


def test_collectors_bring_goals_and_what_episodes_tell():
    told = "create_environment.info = ('is_success',)"
    trainer = make("taac", "create_experiment.collectors = 1", told, "num_env_steps = 2000")
    try:
        learn_until(trainer, 3)
        goals = trainer.replay_buffer.sample_batch(64, 2).experience.time_step.observation["desired_goal"]
        assert isinstance(trainer.replay_buffer, HindsightReplayBuffer) and len(torch.unique(goals)) > 5
        assert trainer.collector.environment.info == ("is_success",)
    finally:
        trainer.close()


def test_success_may_end_episodes_that_the_environment_does_not_end():
    """`SuccessEndsEpisode` turns -1 and 0 into 0 and an end with 1, for new goals, too."""
    trainer = make("sac", "create_environment.wrappers = (@SuccessEndsEpisode,)")
    try:
        functions = trainer.collector.environment.goal_functions
        goals = np.array([[0.0, 0.0], [1.0, 0.0]]), np.zeros((2, 2))
        assert functions["compute_reward"](*goals, [{}] * 2).tolist() == [1, 0]
        assert functions["compute_terminated"](*goals, [{}] * 2).tolist() == [True, False]
        learn_until(trainer, 20)
    finally:
        trainer.close()


@pytest.mark.slow
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    hindsight = [
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", "create_agent.normalize_rewards = False",
        "create_experiment.replay_buffer_ctor = @HindsightReplayBuffer", "reward_clip = None",
        "Intervals.checkpoint_interval = 100",
    ]  # fmt: skip
    assert_resumes_exactly(tmp_path, *hindsight, until=[450])
