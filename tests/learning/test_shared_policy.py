"""Agents that share a policy and actions in branches, the whole way: collecting, replay, updates, evaluation, learning."""

from __future__ import annotations

import pytest
import torch

from taac import configuration, nest
from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.data_structures import StepType
from taac.demonstrations.replay import demonstrated_frames
from taac.errors import TaacError
from taac.runs.run_folder import RunFolder
from taac.specs import AGENT_MASK
from taac.training import experiment
from tests.environments.team import ALONE, CALLED, TEAM, Team
from tests.learning.test_compiled_update import PRIORITIZED, assert_close, told_by
from tests.training.runs import built, recorded, trained

SHARED = "create_agent.shared_policy = True"
SMALL = ["hidden_layers = (32,)", "batch_size = 32", "initial_collect_steps = 100", "num_envs = 2", "replay_length = 2000",
         "normalize_rewards = False", "reward_clip = None"]  # fmt: skip


def build(method, *params, env=TEAM, **kwargs):
    task = "discrete_control" if "discrete" in method or "branches" in method else "simple_control"
    bound = f"create_environment.env_name = '{env}'", f"create_environment.env_kwargs = {kwargs!r}"
    return built([f"gin/tasks/{task}.gin", f"gin/methods/{method}.gin"], [*SMALL, *bound, *params])


TEAMS = {
    "taac": ("taac", {"own_reward": True}),
    "branches": ("sac_discrete", {"kind": "branches", "own_reward": True}),
}
EXPLORE = ["exploration/LinearSchedule.start = 0.5", "exploration/LinearSchedule.end = 0.5"]


@pytest.mark.parametrize("name", ["taac", "branches"])
def test_absent_agents_are_sent_nothing(name, tmp_path):
    """Collecting at random, exploring, over a checkpoint, and evaluating; what was replayed is what was done."""
    method, kwargs = TEAMS[name]
    params = ["num_env_steps = 200", "evaluation_interval = 100", "checkpoint_interval = 150"]
    params += ["create_agent.normalize_observations = True", "evaluation_episodes = 2"]
    trainer = build(method, SHARED, *params, *(EXPLORE if "discrete" in method else []), comes_and_goes=True, **kwargs)
    folder = RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0, "environment": "Team"})
    Team.mistakes = 0
    trainer.train(folder)
    trainer.close()
    assert Team.mistakes == 0 and trainer.learner.num_updates == 50 and trainer.evaluation.length == 20
    frames = trainer.replay_buffer.sample(300, trainer.segment_length).time_step
    present, acted = frames.observation[AGENT_MASK][:-1], frames.step_type[:-1] != int(StepType.LAST)
    action = frames.prev_action[1:].flatten(3) if frames.prev_action.dim() > 3 else frames.prev_action[1:].unsqueeze(-1)
    assert not action[~present & acted.unsqueeze(-1)].any() and action[present & acted.unsqueeze(-1)].any()


@pytest.mark.parametrize("method", ["taac_l"])
def test_recorded_agents_that_come_and_go_are_found_again_as_they_were_stored(method, tmp_path):
    """An agent that is back begins at rest, also where its last trajectory would have gone on through its absence."""
    trainer = build(method, SHARED, "num_envs = 1", comes_and_goes=True)
    stored = recorded(trainer, tmp_path / "e.npz", 3, lambda i: trainer.agent.random_step)
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    found = demonstrated_frames(str(tmp_path / "e.npz"), trainer.environment, trainer.agent, spec)
    time_step, expected = nest.map_structure(lambda *leaves: torch.cat(leaves), *stored)
    present = time_step.observation[AGENT_MASK]
    back = present & ~torch.cat([present[:1], present[:-1]]) & (time_step.step_type == int(StepType.MID)).unsqueeze(-1)
    assert back.sum() > 10
    for (path, x), (_, y) in zip(nest.flatten_with_path(found.rollout_info), nest.flatten_with_path(expected)):
        assert torch.equal(x[back], y[back]), path


LEARNING = ["learning_rate = 3e-3", "hidden_layers = (64,)", "batch_size = 64", "gamma = 0.0", "target_tau = 1.0",
            "Temperature.initial_value = 0.1"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, kwargs, params, random",
    [
        ("sac", {"own_reward": True, "comes_and_goes": True}, [SHARED], 7),  # 1 - E a^2/4 - E x^2 = 1 - 1/3 - 1/3
        pytest.param(
            "sac_discrete", {"kind": "branches", "own_reward": True}, [SHARED, PRIORITIZED], 8.3, marks=pytest.mark.slow
        ),
        pytest.param("sac_branches", {"env": ALONE}, [], 8.3, marks=pytest.mark.slow),
    ],
)
def test_a_shared_policy_and_branches_are_learnt(method, kwargs, params, random):
    """At each of 20 steps the answer to what each agent sees is worth 1; random answers bring much less."""
    trainer, _ = told_by(build(method, *LEARNING, *params, **kwargs), 500)
    evaluated = evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=1)
    whole = 20
    if kwargs.get("own_reward"):  # the sum over agents
        whole *= 3 if not kwargs.get("comes_and_goes") else 2
    assert summarize(evaluated).return_mean > 0.88 * whole > random


def test_choices_that_a_branchs_mask_forbids_are_never_made():
    """The environment asserts it: at random, exploring, from the policy, and greedily. With all that summaries can show."""
    diagnostics = "Learner.diagnostics = 'histograms'"
    trainer, _ = told_by(build("sac_branches", *EXPLORE, diagnostics, env=ALONE, mask=True), 60)
    assert summarize(evaluate(trainer.agent, trainer.evaluation_environment, 5, seed=1)).length == 20


@pytest.mark.parametrize(
    "method, kwargs", [("sac_branches", {"env": ALONE, "mask": True}), TEAMS["taac"]]
)
def test_compiled_updates_are_the_plain_ones(method, kwargs, traced_only):
    if kwargs.get("env") != ALONE:
        kwargs = {**kwargs, "comes_and_goes": True}
    shared = [] if "env" in kwargs else [SHARED]
    compiled = told_by(build(method, "create_agent.compile = True", *shared, PRIORITIZED, **kwargs), 4)
    plain = told_by(build(method, *shared, PRIORITIZED, **kwargs), 4)
    assert len(compiled[0].agent._rollout_step._programs) == 1
    assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


def test_targets_of_branches_start_from_that_of_actions():
    trainer = build("sac_branches", *EXPLORE, env=ALONE)
    trainer.close()
    name = next(name for name in trainer.attributes.names() if name.startswith("target_entropy/branch "))
    for setting, reset in (("DiscreteSacAlgorithm.action_min_prob", True), ("DiscreteSacAlgorithm.beta_min_prob", False)):
        assert trainer.attributes._is_of(name, setting) == reset


def test_priorities_are_of_segments_and_weights_of_all_their_agents():
    trainer, told = told_by(build("sac", SHARED, PRIORITIZED, own_reward=True), 3)
    agent, batch = trainer.agent, trainer.replay_buffer.sample(32, 2)
    assert told[0].segment_error.shape == (32,) and told[0].loss.shape == (2, 96)
    weights, torch_state = torch.rand(32), torch.get_rng_state()
    prepared = agent.prepare(batch)
    torch.set_rng_state(torch_state)
    alone = agent.algorithm.calc_loss(prepared, agent.algorithm.train_step(prepared))
    expected = (alone.loss.unflatten(1, (32, 3)) * weights.reshape(1, 32, 1)).mean()
    torch.set_rng_state(torch_state)
    found = trainer.learner.update(batch, weights)
    torch.testing.assert_close(found.extra["loss/total"], expected)
    of_segments = [alone.segment_error[3 * i : 3 * i + 3].mean() for i in range(32)]  # a segment's agents are neighbours
    torch.testing.assert_close(found.segment_error, torch.stack(of_segments))


@pytest.mark.parametrize(
    "method, env, kwargs, params, message",
    [
        ("sac_discrete", TEAM, {"kind": "discrete"}, [], "each of 3 agents.*shared_policy = True for agents, or False for"),
        ("sac_discrete", ALONE, {}, [], "shared_policy = True for agents, or False for branches"),
        ("sac", TEAM, {}, [], r"got shape \[3, 1\]; if the first dimension counts agents.*shared_policy = True"),
        ("sac", "Pendulum-v1", {}, [SHARED], r"every observation but 'global_state' must be \[1, \.\.\.\], got float32\[3\]"),
        ("sac_ez", TEAM, {}, [SHARED], r"ZetaExplorer explores one continuous action vector.*float32\[3, 1\]"),
        (
            "sac", TEAM, {"comes_and_goes": True}, [SHARED, "create_agent.normalize_rewards = 'scale'"],
            "normalize_rewards = 'scale' and 'bounded' cannot be combined with an 'agent_mask'",
        ),
        (
            "sac", TEAM, {}, [SHARED, "create_environment.wrappers = (@ActionDelay,)", "ActionDelay.steps = 3",
                              "ActionDelay.observe_pending = True"], "cannot share a policy that sees 'pending_actions'",
        ),
        ("sac", TEAM, {"global_state": True}, [SHARED], r"which only critics may see.*actor_encoder_ctor = @LocalEncoder"),
        ("sac_recurrent", TEAM, {"global_state": True}, [SHARED], "Recurrent algorithms do not support it"),
        ("sac", TEAM, {"comes_and_goes": True}, [SHARED, "OneStepTDLoss.ignore_done = True"], "bind ignore_done = False"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_any_work(method, env, kwargs, params, message):
    with pytest.raises(TaacError, match=message):
        build(method, *params, env=env, **kwargs)


def test_advice_looks_at_one_agents_target_entropy():
    from taac.checking.advice import _entropy

    trainer = build("sac", SHARED, "SacAlgorithm.target_entropy = -1.0")
    trainer.close()
    assert list(_entropy(trainer)) == []


@pytest.mark.slow  # of SAC, `test_learning.py` has it
def test_a_choice_that_was_shown_once_is_recalled():
    """Cue, two steps that do not count, two that do: 2 is the best return, and -2 without a memory."""
    trainer = build(
        "sac_discrete_recurrent", "gamma = 0.9", "target_tau = 0.02", "learning_rate = 3e-3", "batch_size = 16",
        "initial_collect_steps = 300", "Temperature.initial_value = 0.1", "GRUMemory.output_size = 16",
        "Trainer.segment_length = 6", "RecurrentDiscreteSacAlgorithm.burn_in = 1", env=CALLED,
    )  # fmt: skip
    trained(trainer, 600)
    assert 1.7 < summarize(evaluate(trainer.agent, trainer.evaluation_environment, 30, seed=5)).return_mean <= 2.0


@pytest.mark.slow
def test_a_centralised_critic_explains_what_no_agent_sees():
    """A coin that the global state shows is worth 3 or -3: the critics learn it, and the policy answers as well without."""
    central = "SacAlgorithm.actor_encoder_ctor = @LocalEncoder"
    trainer, _ = told_by(build("sac", *LEARNING, SHARED, central, kind="box", global_state=True), 500)
    algorithm, agents = trainer.agent.algorithm, trainer.agent.agents
    sampled = trainer.agent.prepare(trainer.replay_buffer.sample(200, 2)).time_step
    observation = {key: leaf[0] for key, leaf in sampled.observation.items()}
    values = []
    for coin in (1.0, -1.0):
        features = algorithm.encoder({**observation, "global_state": torch.full((600, 1), coin)})
        values.append(algorithm.critics(features, sampled.prev_action[1]).mean())
    assert agents.centralised and (values[0] - values[1]).item() == pytest.approx(6.0, abs=0.6)
    episodes = evaluate(trainer.agent, trainer.evaluation_environment, 40, seed=1)
    assert summarize(episodes).return_mean == pytest.approx(18.5, abs=5.0)  # 20 coins of 3: the mean's deviation is 2
