"""Runs on a GPU where there is one, otherwise on a pretended GPU, from the first step to the last checkpoint.

Nothing is computed from tensors of two devices.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from taac.errors import TaacError
from taac.playing.saved_agent import load_saved
from tests.demonstrations.test_imitation import binding, demonstrations  # noqa: F401, a fixture
from tests.environments.team import TEAM
from tests.environments.toys import env_id
from tests.learning.test_compiled_update import COMPILE, PRIORITIZED, assert_close, updated
from tests.machine import pretend_gpu
from tests.methods import every_method, fitting, thinned
from tests.parallel.collecting import with_collectors
from tests.training.runs import assert_resumes_exactly, build, learn_until, run

REAL = torch.cuda.is_available()
pretended = contextlib.nullcontext if REAL else pretend_gpu.pretended
SMALL = (
    "create_environment.env_name = 'tests.toy_tasks:taac-test/PointMass-v0'", "num_envs = 2", "hidden_layers = (8,)",
    "num_env_steps = 46", "initial_collect_steps = 40", "batch_size = 8", "evaluation_interval = 46", "replay_length = 300",
    "evaluation_episodes = 1", "create_experiment.evaluation_envs = 1", "Evaluator.initial_evaluation = False",
    "Intervals.checkpoint_interval = 4", "Intervals.summary_interval = 4", "Learner.learning_rate = 0.01",
)  # fmt: skip
SHORT = "create_environment.max_episode_steps = 12"
NORMALIZED = ("create_agent.normalize_observations = True", "create_agent.normalize_rewards = True")
ON_CPU = "create_experiment.replay_device = 'cpu'"


@pytest.mark.parametrize("method", every_method("taac", "sac_ez"))
def test_every_method_acts_and_learns(method):
    with pretended():
        trainer = build(*SMALL, SHORT, *fitting(method), method=method)
        learn_until(trainer, 1)
        trainer.collector.rollout.step(trainer.agent.rollout_step)
        trainer.collector.rollout.step(trainer.agent.predict_step)
        assert all(leaf.is_cuda for leaf in trainer.replay_buffer.frames(0, 1).values())
        assert all(tensor.is_cuda for tensor in trainer.agent.state_dict().values())
        trainer.close()


PARTS = {
    "flash": ("taac", ["CriticEnsemble.body = @FlashBody", "ActorNetwork.body = @FlashBody", "FlashBody.width = 8",
                       "CriticEnsemble.returns = @CategoricalReturns()", "normalize_rewards = 'bounded'",
                       "create_collector.explorer = @HeldNoise()", "reward_clip = None"]),
    "renormalised": ("sac", ["CriticEnsemble.body = @MlpBody", "ActorNetwork.body = @MlpBody", "MlpBody.hidden_layers = (8,)",
                             "MlpBody.norm = @BatchNorm", "BatchNorm.renorm_after = 0",
                             "ActorCriticAlgorithm.target_update_tau = 1.0"]),
    "quantiles of a subset": ("taac_q", ["CriticEnsemble.returns = @QuantileReturns()", "CriticEnsemble.num_critics = 3",
                                         "ActorCriticAlgorithm.target_subset = 2"]),
    "sphere, numbers spread": ("temporl", ["CriticEnsemble.body = @SimbaV2Body", "SimbaV2Body.width = 8",
                                           "CriticEnsemble.returns = @CategoricalReturns()", "CategoricalReturns.sigma = 0.75"]),
    "prefixes": ("sac_chunk", ["ActorCriticAlgorithm.critic_ctor = @PrefixCritics", "PrefixCritics.hidden_layers = (8,)"]),
    "price": ("taac", ["TaacAlgorithm.target_decision_rate = 0.3", "ActorCriticAlgorithm.actor_regularizers = (@CAPS, @L2C2)",
                       "create_collector.explorer = @ColoredNoise()", "ColoredNoise.length = 20"]),
    "agents that come and go": ("sac", [f"create_environment.env_name = '{TEAM}'", "create_agent.shared_policy = True",
                                        "create_environment.env_kwargs = {'comes_and_goes': True}"]),
    "gSDE": ("sac", ["ActorNetwork.gsde_log_std = -3.0", "create_collector.explorer = @StateDependentNoise()"]),
    "goals": ("taac", ["create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", "normalize_rewards = False",
                       "create_experiment.replay_buffer_ctor = @HindsightReplayBuffer"]),
    "pictures": ("sac", ["create_environment.env_name = 'tests.environments.test_images:taac-test/Drift-v0'",
                         "create_environment.frame_stack = 2", "create_agent.random_shift = 2", "ImageEncoder.channels = (4,)",
                         "ImageEncoder.kernels = (4,)", "ImageEncoder.strides = (2,)"]),
}  # fmt: skip


@pytest.mark.parametrize("part", thinned(PARTS, ("flash", "price", "goals", "agents that come and go")))
def test_parts_compute_where_the_agent_is(part):
    method, params = PARTS[part]
    with pretended():
        trainer = build(*SMALL, *params, method=method)
        learn_until(trainer, 2)
        assert all(tensor.is_cuda for tensor in trainer.agent.state_dict().values())
        trainer.close()


WHOLE = {
    "around the loss": ("taac", [PRIORITIZED, *NORMALIZED, "create_agent.reward_signals = (@RND,)",
                                 "Learner.diagnostics = 'histograms'"]),
    "explorer, replay on the CPU": ("sac_ez", [PRIORITIZED, ON_CPU, "Learner.optimizer_ctor = @Adam"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE)
def test_a_killed_run_ends_as_the_run_that_was_never_killed(case, tmp_path):
    """With the GPU's random numbers."""
    method, params = WHOLE[case]
    with pretended():
        assert_resumes_exactly(tmp_path, *SMALL, SHORT, *params, method=method, until=[44])


@pytest.mark.parametrize("first_on_gpu", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_goes_on_where_there_is_no_gpu_and_the_other_way_round(first_on_gpu, tmp_path):
    params = (*SMALL, SHORT, PRIORITIZED, *NORMALIZED)
    for on_gpu, until in ((first_on_gpu, 44), (not first_on_gpu, None)):
        if on_gpu:
            with pretended():
                trainer = run(tmp_path, *params, until=until)
        else:
            trainer = run(tmp_path, *params, "create_experiment.device = 'cpu'", until=until)
        assert {tensor.is_cuda for tensor in trainer.agent.state_dict().values()} == {on_gpu}
    with pretended():  # which playing leaves alone
        saved = load_saved(tmp_path, trusted=True)
        saved.environment.close()
    assert not any(tensor.is_cuda for tensor in saved.agent.state_dict().values())


def test_tf32_is_chosen_for_the_learners_products_alone():
    with pretended():
        trainer = build(*SMALL, SHORT, "Learner.matmul = 'tf32'")
        assert trainer.learner.products == "tf32"
        learn_until(trainer, 1)
        assert torch.backends.cuda.matmul.fp32_precision != "tf32"
        trainer.close()
    with pytest.raises(TaacError, match="'tf32' were requested, but they are for GPUs, and the agent is on cpu"):
        build(*SMALL, "create_experiment.device = 'cpu'", "Learner.matmul = 'tf32'")


@pytest.mark.skipif(not REAL, reason="needs a GPU")
@pytest.mark.parametrize("method, params", [("sac", []), ("taac", [PRIORITIZED]), ("td3", []), ("sac_discrete", [])])
def test_updates_replayed_as_cuda_graphs(method, params):
    params = ("hidden_layers = (8,)", "initial_collect_steps = 60", "create_experiment.device = 'cuda'", *params)
    assert_close(updated(method, COMPILE, *params), updated(method, *params), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not REAL, reason="needs a GPU")
@pytest.mark.parametrize("method", ["sac", "taac"])
def test_a_killed_compiled_run_ends_as_the_run_that_was_never_killed(method, tmp_path):
    params = (*SMALL, SHORT, COMPILE, "create_experiment.device = 'cuda'")
    assert_resumes_exactly(tmp_path, *params, method=method, until=[44])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, params",
    [
        (
            "sac",
            [
                "create_experiment.demonstrations_ctor = @SqilReplay", PRIORITIZED, "Reporter.monitor = @SqilMonitor()",
                "create_agent.normalize_rewards = False",
            ],
        ),
        ("sac", ["create_experiment.demonstrations_ctor = @kept_apart", "create_agent.reward_signals = (@GAIL,)"]),
        ("taac", ["Learner.cloning = @Cloning()", "Cloning.pretraining_updates = 1", "Cloning.initial_weight = 1.0"]),
        ("sac", ["Learner.cloning = @Cloning()", "Cloning.pretraining_updates = 1", ON_CPU, *NORMALIZED]),
    ],
    ids=["SQIL", "GAIL", "cloning", "cloning of frames on the CPU"],
)
def test_demonstrations(method, params, demonstrations, tmp_path):  # noqa: F811
    with pretended():
        run(tmp_path, *SMALL, binding(demonstrations), *params, method=method)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_frames_on_another_gpu_are_refused(device):
    """Copies from there would be read before they have arrived, and a resumed run would draw other segments."""
    with pretended(), pytest.raises(TaacError, match=f"replay_device = 'cuda:1', but the agent is on {device}"):
        build(*SMALL, f"create_experiment.device = '{device}'", "create_experiment.replay_device = 'cuda:1'")


@pytest.mark.parametrize("device, replay_device", [("cuda:0", "cuda"), ("cuda", "cuda:0")])
def test_the_same_gpu_by_another_name_is_not_refused(device, replay_device):
    with pretended():
        where = (f"create_experiment.device = '{device}'", f"create_experiment.replay_device = '{replay_device}'")
        build(*SMALL, *where).close()


def test_agents_that_join_and_leave():
    with pretended():
        trainer = build(
            *SMALL[1:], f"create_environment.env_name = '{env_id('Masked')}'", "create_environment.env_kwargs = {'agents': 3}",
            "create_agent.shared_policy = True", method="sac_discrete",
        )  # fmt: skip
        learn_until(trainer, 1)
        trainer.close()


def test_collectors_without_a_gpu():
    with pretended():
        trainer = with_collectors(2, "initial_collect_steps = 20", NORMALIZED[0])
        try:
            learn_until(trainer, 1)
            assert trainer.collector.state_dict()["running"]["version"] == 0
        finally:
            trainer.close()
